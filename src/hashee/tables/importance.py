"""Tokens exit where further updates are not worth what they cost."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hashee.data.texts import PathLike
from hashee.errors import TableError, TableMismatch
from hashee.tables.buckets import whole_number
from hashee.tables.budget import Seen
from hashee.tables.budgeted import Scale, solve
from hashee.tables.choices import MOST_RARITY, Prior
from hashee.tables.clusters import input_embeddings
from hashee.tables.counting import CorpusInfo
from hashee.tables.draft import Draft, occurrences_per_layer
from hashee.tables.reliability import PARTS, pseudo_counts_of
from hashee.tables.storage import Storage
from hashee.tables.vocabulary import Vocabulary, extends

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hashee.tables.budget import Budget

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_STORAGE = Storage("importance", "importance", version=1)
# Rows of similarities held at a time: with 100,000 types seen they take 200 MB.
_ROWS_AT_A_TIME = 512


@dataclass(frozen=True, eq=False)
class Importance:
    """What every layer's update of every token type was worth, summed over the occurrences in a corpus.

    absolute: (vocab, layers) sums of the sizes of the effects.
    signed: (vocab, layers) sums of the effects, positive where the update helped; None if effects have no sign.
    counts: (vocab,) occurrences, special tokens included.
    signal: what an effect is; see `hashee.tables.measuring`. corpus: what it was measured on.
    tokenizer_fingerprint: whose ids these are, if known.
    parts: (vocab, 2, PARTS) occurrences, and sizes of effects over all layers, in random parts of the corpus.
    """

    absolute: Floats
    signed: Floats | None
    counts: Ids
    signal: str
    corpus: CorpusInfo
    tokenizer_fingerprint: str | None = None
    parts: Floats | None = None

    def __post_init__(self) -> None:
        shapes = {"counts": self.absolute.shape[:1], "parts": (*self.absolute.shape[:1], 2, PARTS)}
        for name, array in self._arrays().items():
            if self.absolute.ndim != 2 or array.shape != shapes.get(name, self.absolute.shape):
                raise TableError(f"{name} of an importance has shape {array.shape}; it is damaged, so measure again")
            array.setflags(write=False)

    @property
    def num_layers(self) -> int:
        """Depth of the model that was measured."""
        return int(self.absolute.shape[1])

    def worth(self, signed: bool = False) -> Floats:
        """Return the mean effect of an update of each type, 0 for types never seen. (vocab, layers)"""
        return self._sums(signed) / np.maximum(self.counts, 1)[:, None]

    def _sums(self, signed: bool) -> Floats:
        if not signed:
            return self.absolute
        if self.signed is None:
            raise TableError(f"effects measured as {self.signal!r} have no sign; leave out signed=True")
        return self.signed

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Importance):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            self._metadata() == other._metadata()
            and mine.keys() == theirs.keys()
            and all(np.array_equal(mine[name], theirs[name]) for name in mine)
        )

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: "Importance") -> "Importance":
        """Return the importance measured on both corpora with the same model."""
        same = (self.signal, self.tokenizer_fingerprint) == (other.signal, other.tokenizer_fingerprint)
        if not same or self.absolute.shape != other.absolute.shape:
            raise TableMismatch(
                f"importance by {self.signal} {self.absolute.shape} and by {other.signal} {other.absolute.shape} do "
                f"not add up; measure both alike, with the same model and tokenizer"
            )
        return Importance(
            self.absolute + other.absolute,
            _added(self.signed, other.signed),
            self.counts + other.counts,
            self.signal,
            _joint(self.corpus, other.corpus),
            self.tokenizer_fingerprint,
            _added(self.parts, other.parts),
        )

    def save(self, folder: PathLike) -> None:
        """Write `importance.safetensors` and `importance.json` into the folder."""
        _STORAGE.save(Path(folder), self._arrays(), self._metadata())

    @classmethod
    def load(cls, folder: PathLike) -> "Importance":
        """Read what `save` wrote; damaged or foreign files are a TableError."""
        arrays, metadata = _STORAGE.load(Path(folder))
        try:
            return cls(
                arrays["absolute"],
                arrays.get("signed"),
                arrays["counts"],
                metadata["signal"],
                CorpusInfo(**metadata["corpus"]),
                metadata["tokenizer_fingerprint"],
                arrays.get("parts"),
            )
        except (KeyError, TypeError) as error:
            raise TableError(f"the importance in {folder} lacks {error}; measure it again") from None

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays = {"absolute": self.absolute, "signed": self.signed, "counts": self.counts, "parts": self.parts}
        return {name: array for name, array in arrays.items() if array is not None}

    def _metadata(self) -> dict[str, Any]:
        return {
            "signal": self.signal,
            "corpus": asdict(self.corpus),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
        }


def _added(one: Floats | None, other: Floats | None) -> Floats | None:
    return None if one is None or other is None else one + other


def _joint(one: CorpusInfo, other: CorpusInfo) -> CorpusInfo:
    """Return the corpus of all texts of two; fingerprints add up, so that their order does not matter."""
    fingerprint = (int(one.fingerprint, 16) + int(other.fingerprint, 16)) % (1 << 256)
    return CorpusInfo(one.num_texts + other.num_texts, one.num_tokens + other.num_tokens, f"{fingerprint:064x}")


@dataclass(frozen=True)
class Shrinkage:
    """How the worth of a type follows from its occurrences.

    Its mean is shrunk towards a prior as if that had been seen `pseudo_counts` times; None estimates the number from
    how far parts of the corpus disagree on such means. Before that, effects are multiplied by the type's surprisal,
    -log of its share of all tokens, to the power of `rarity`: when a model is trained with exits, other tokens can take
    over what frequent words contributed to it, but not what rare ones say.
    """

    prior: Prior = Prior.FREQUENCY
    pseudo_counts: float | None = None
    rarity: float = 1.0
    neighbours: int = 10
    """Number of nearest neighbours, for the prior of that name."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "prior", Prior(self.prior))
        except ValueError:
            raise TableError(f"prior={self.prior!r} is unknown; use one of {', '.join(Prior)}") from None
        if self.pseudo_counts is not None and not 0 <= self.pseudo_counts < float("inf"):
            raise TableError(f"pseudo_counts={self.pseudo_counts} must be a number of at least 0")
        if not 0 <= self.rarity <= MOST_RARITY:
            raise TableError(f"rarity={self.rarity} must be a number from 0 to {MOST_RARITY}")
        whole_number("neighbours", self.neighbours, at_least=1)

    def strength(self, importance: Importance, ids: Ids) -> float:
        """Return the pseudo-counts given, or those estimated from the measurements of these types."""
        if self.pseudo_counts is not None:
            return self.pseudo_counts
        return round(pseudo_counts_of(None if importance.parts is None else importance.parts[ids]), 1)

    def settings(self) -> dict[str, Any]:
        """Return what a table built with it should remember."""
        count = {"neighbours": self.neighbours} if self.prior is Prior.NEIGHBOURS else {}
        return {"prior": str(self.prior), "pseudo_counts": self.pseudo_counts, "rarity": self.rarity, **count}


@dataclass(frozen=True)
class Choices:
    """How exits are chosen from an importance; see `ExitTable.by_importance`."""

    budget: "Budget"
    min_exit: int = 0
    signed: bool = False
    shrinkage: Shrinkage = field(default_factory=Shrinkage)

    def __post_init__(self) -> None:
        whole_number("min_exit", self.min_exit, at_least=0)


def draft(
    tokenizer: "PreTrainedTokenizerBase",
    importance: Importance,
    choices: Choices,
    model: "PreTrainedModel | Tensor | None",
    vocab_size: int | None,
) -> Draft:
    """Build the table of `ExitTable.by_importance`."""
    if importance.tokenizer_fingerprint is not None and not extends(tokenizer, importance.tokenizer_fingerprint):
        raise TableMismatch("the importance was measured with another tokenizer; measure it again with this one")
    vocabulary = Vocabulary.of(tokenizer)
    vocabulary = vocabulary.padded(max(vocabulary.size, len(importance.counts)) if vocab_size is None else vocab_size)
    depth = importance.num_layers
    if choices.min_exit > depth:
        raise TableError(f"min_exit={choices.min_exit} is beyond the last layer ({depth})")
    ids = np.flatnonzero(importance.counts)
    ids = ids[~np.isin(ids, vocabulary.special_ids)]
    if not len(ids):
        raise TableError(f"none of the {importance.corpus.num_texts} texts holds a token that could exit")
    embeddings = None if model is None else input_embeddings(model).numpy()
    shrinkage = replace(choices.shrinkage, pseudo_counts=choices.shrinkage.strength(importance, ids))
    worth = shrunk(importance, ids, shrinkage, choices.signed, embeddings)
    price = choices.budget.update_costs(depth)
    # In units of one average update, so that lambda is the worth below which an average update is left out.
    prices = Prices.of(worth, price / price.mean(), choices.min_exit)
    seen = Seen(ids, importance.counts[ids], importance.corpus.num_texts)
    scale = Scale(ids, depth, vocabulary.size, prices.layers_at, ordered=False, seen=seen)
    solution = solve(scale, choices.budget)
    return Draft(
        solution.exit_layers,
        depth,
        "importance",
        {"min_exit": choices.min_exit, "signal": importance.signal, "signed": choices.signed}
        | shrinkage.settings()
        | {"lambda": prices.price_at(solution.position)}
        | solution.settings(choices.budget),
        importance.corpus,
        vocabulary.fingerprint,
        occurrences_per_layer(solution.exit_layers, depth, importance.counts),
    )


@dataclass(frozen=True)
class Prices:
    """The best exit of every type at every price of an update, from one at which none pays to one at which all do.

    gains: (types, exits) worth of all updates up to each possible exit; costs: (exits,) what they cost.
    """

    gains: Floats
    costs: Floats
    min_exit: int
    highest: float
    lowest: float

    @classmethod
    def of(cls, worth: Floats, costs: Floats, min_exit: int) -> "Prices":
        """Add up worth, (types, layers), and costs, (layers,), over the layers from `min_exit` on."""
        # Updates that no later layer or head reads cost nothing; a price must still order them.
        costs = np.maximum(costs, 1e-6)
        ratios = (worth / costs)[:, min_exit:] if min_exit < len(costs) else np.zeros((1, 1))
        highest, lowest = float(ratios.max()), float(ratios.min())
        # At the ratios themselves an update is a tie, which rounding would decide.
        margin = 1e-9 * max(highest - lowest, abs(highest)) + 1e-300
        gains, totals = _running(worth)[:, min_exit:], _running(costs)[min_exit:]
        return cls(gains, totals, min_exit, highest + margin, lowest - margin)

    def price_at(self, position: float) -> float:
        """Return the price of an update at a position between 0 (none pays) and 1 (all do)."""
        return self.highest + position * (self.lowest - self.highest)

    def layers_at(self, position: float) -> Ids:
        """Return the exit with the highest worth less price of every type, the earliest of equals. (types,)"""
        best: Ids = np.argmax(self.gains - self.price_at(position) * self.costs, axis=1)
        return best + self.min_exit


def _running(values: Floats) -> Floats:
    """Return the sums up to each layer, starting with 0 for none. (..., layers + 1)"""
    sums: Floats = np.cumsum(values, axis=-1)
    return np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1)


# --- shrinking ---------------------------------------------------------------------------------------------


def shrunk(
    importance: Importance, ids: Ids, shrinkage: Shrinkage, signed: bool, embeddings: NDArray[np.float32] | None
) -> Floats:
    """Return the mean worth of types that were seen, shrunk towards their prior. ids: (types,). (types, layers)"""
    counts = importance.counts[ids][:, None].astype(np.float64)
    sums = importance._sums(signed)[ids] * np.log(importance.counts.sum() / counts) ** shrinkage.rarity
    strength = shrinkage.strength(importance, ids)
    overall = sums.sum(axis=0, keepdims=True) / counts.sum()
    if shrinkage.prior is Prior.OVERALL:
        prior = overall
    elif shrinkage.prior is Prior.FREQUENCY:
        prior = _mean_of_band(sums, counts)
    else:
        if embeddings is None:
            raise TableError("the prior of nearest neighbours needs embeddings; pass model=...")
        if len(embeddings) <= ids.max():
            raise TableMismatch(
                f"the embedding matrix has {len(embeddings)} rows but token id {ids.max()} was measured"
            )
        near = nearest(embeddings[ids], shrinkage.neighbours)
        # Rare neighbours of a rare type have few occurrences too, so they are shrunk towards the overall mean first.
        known = sums[near].sum(axis=1) + strength * overall
        prior = known / np.maximum(counts[near].sum(axis=1) + strength, 1e-12)
    means: Floats = (sums + strength * prior) / (counts + strength)
    return means


def _mean_of_band(sums: Floats, counts: Floats) -> Floats:
    """Return for each type the mean over all types within the same power of two of occurrences. (types, layers)"""
    band = np.log2(counts[:, 0]).astype(np.int64)
    totals = np.zeros((band.max() + 1, sums.shape[1]))
    np.add.at(totals, band, sums)
    weights = np.bincount(band, counts[:, 0])
    return totals[band] / weights[band][:, None]


def nearest(vectors: NDArray[np.float32], neighbours: int) -> Ids:
    """Return the indices of the vectors with the highest cosine to each, itself left out. (rows, neighbours)"""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    neighbours = min(neighbours, len(unit) - 1)
    parts: list[Ids] = []
    for start in range(0, len(unit), _ROWS_AT_A_TIME):
        cosine = unit[start : start + _ROWS_AT_A_TIME] @ unit.T
        rows = np.arange(len(cosine))
        cosine[rows, start + rows] = -2.0
        parts.append(np.argsort(-cosine, axis=1, kind="stable")[:, :neighbours])
    return np.concatenate(parts)
