"""The exit table: which layer updates each token of the vocabulary last."""

import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data.texts import Label, PathLike, Text
from hashee.errors import TableError, TableMismatch
from hashee.tables import at_random, by_hand, clusters, frequency, mutual_information
from hashee.tables import importance as by_importance
from hashee.tables.buckets import MOST_LAYERS, Buckets, whole_number
from hashee.tables.counting import CorpusInfo, TokenCounts
from hashee.tables.description import layer_table
from hashee.tables.draft import Draft, occurrences_per_layer
from hashee.tables.importance import Choices, Importance, Shrinkage
from hashee.tables.layers import as_tensor, checked_layers
from hashee.tables.storage import Storage
from hashee.tables.vocabulary import Vocabulary, check_tokenizer, tokenizer_fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hashee.tables.budget import Budget

__all__ = ["CorpusInfo", "ExitTable", "TokenCounts", "tokenizer_fingerprint"]

_STORAGE = Storage("exit_table", "exit table", version=1)


@dataclass(frozen=True, eq=False, repr=False)
class ExitTable:
    """Gives every vocabulary id the last layer that updates it; later layers only read it.

    exit_layers: (vocab,) int64 on the CPU, values 0 (never updated) to num_layers (never exits).
    num_layers: depth of the model that the table is made for.
    method: how the table was built; parameters: with which settings (JSON values only).
    corpus: what was counted, if anything was. tokenizer_fingerprint: whose ids these are, if known.
    occurrences: tokens of that corpus that exit at layers 0..num_layers, (num_layers + 1,).
    """

    exit_layers: Tensor
    num_layers: int
    method: str = "tensor"
    parameters: dict[str, Any] = field(default_factory=dict)
    corpus: CorpusInfo | None = None
    tokenizer_fingerprint: str | None = None
    occurrences: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_layers", whole_number("num_layers", self.num_layers, 1, MOST_LAYERS))
        object.__setattr__(self, "exit_layers", checked_layers(self.exit_layers, self.num_layers))
        try:
            object.__setattr__(self, "parameters", json.loads(json.dumps(self.parameters, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise TableError(f"the table's parameters must be JSON values ({error}): {self.parameters!r}") from None
        if self.occurrences is not None and len(self.occurrences) != self.num_layers + 1:
            entries = len(self.occurrences)
            raise TableError(f"occurrences has {entries} entries; give one per layer, 0..{self.num_layers}, or None")

    # --- building one --------------------------------------------------------------------------------------

    @classmethod
    def by_frequency(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        texts: Iterable[Text] | PathLike | TokenCounts,
        num_layers: int,
        *,
        num_buckets: int | None = None,
        min_exit: int = 1,
        budget: "Budget | None" = None,
        vocab_size: int | None = None,
        progress: bool = True,
    ) -> "ExitTable":
        """Let the most frequent tokens of a corpus exit first; unseen and special tokens never exit.

        texts: strings or pairs of strings, a file, or counts made earlier. num_buckets: groups with equally many
        token types (default: one per layer). min_exit: 0 lets the first group exit before layer 1. budget: size
        the groups to meet its executed speed-up. vocab_size: rows of the embedding matrix, if more than tokens.
        """
        buckets = Buckets.over(num_layers, num_buckets, min_exit, budget)
        return cls._of(frequency.draft(tokenizer, texts, buckets, vocab_size, progress))

    @classmethod
    def by_mutual_information(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        texts: Iterable[Text] | PathLike | TokenCounts,
        labels: Iterable[Label] | None,
        num_layers: int,
        *,
        num_buckets: int | None = None,
        min_exit: int = 1,
        budget: "Budget | None" = None,
        num_bins: int = 10,
        vocab_size: int | None = None,
        progress: bool = True,
    ) -> "ExitTable":
        """Let tokens with the most mutual information with the label exit first; unseen and special tokens never exit.

        labels: one int or str per text for classes, or floats, which are cut into `num_bins` quantiles; None reads
        them from the file that `texts` names, or takes counts made with labels. The rest is as in `by_frequency`.
        """
        buckets = Buckets.over(num_layers, num_buckets, min_exit, budget)
        options: dict[str, Any] = {"num_bins": num_bins, "vocab_size": vocab_size, "progress": progress}
        return cls._of(mutual_information.draft(tokenizer, texts, labels, buckets, **options))

    @classmethod
    def by_clusters(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        model: "PreTrainedModel | Tensor",
        num_layers: int,
        *,
        num_buckets: int | None = None,
        min_exit: int = 1,
        budget: "Budget | None" = None,
        seed: int = 0,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Cluster the input embeddings and let the cluster with the smallest mean norm exit first.

        model: a model with input embeddings, or the matrix itself, (rows, width). The table covers all its rows;
        rows beyond the tokenizer's tokens, and special tokens, are not clustered and never exit.
        """
        buckets = Buckets.over(num_layers, num_buckets, min_exit, budget)
        return cls._of(clusters.draft(tokenizer, model, buckets, seed, vocab_size))

    @classmethod
    def by_importance(
        cls,
        model: "PreTrainedModel",
        data: Any,
        *,
        speedup: float,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        signal: str = "loss",
        progress: bool = True,
        **choices: Any,
    ) -> "ExitTable":
        """Measure on texts what updates are worth to a fitted dense model, and let tokens exit where they cost more.

        data: (text, label) rows, or plain texts for a signal without labels; or a task's data (cost counted on dev).
        speedup: executed, full depth / with exits. choices: see `from_importance`, which does the rest.
        """
        from hashee.tables.labelled import measured_on  # noqa: PLC0415  # only this builder runs a model

        found = measured_on(model, data, speedup, signal=signal, tokenizer=tokenizer, progress=progress)
        return cls.from_importance(found.tokenizer, found.importance, found.budget, model=model, **choices)

    @classmethod
    def from_importance(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        importance: Importance,
        budget: "Budget",
        *,
        min_exit: int = 0,
        signed: bool = False,
        shrinkage: Shrinkage | None = None,
        model: "PreTrainedModel | Tensor | None" = None,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Let every token exit where further updates are worth less than they cost, at the price that meets a budget.

        importance: what `measure_importance` or `measure_movement` returned; the table has its depth. signed: let
        effects of opposite sign cancel out. shrinkage: how means over few occurrences are shrunk. model: whose input
        embeddings define neighbours, for the prior of that name. Unseen and special tokens never exit.
        """
        choices = Choices(budget, min_exit, signed, shrinkage or Shrinkage())
        return cls._of(by_importance.draft(tokenizer, importance, choices, model, vocab_size))

    @classmethod
    def at_random(
        cls,
        tokenizer_or_vocab_size: "PreTrainedTokenizerBase | int",
        num_layers: int,
        *,
        num_buckets: int | None = None,
        min_exit: int = 1,
        budget: "Budget | None" = None,
        seed: int = 0,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Give every token a random bucket, the same for the same seed everywhere; special tokens never exit."""
        buckets = Buckets.over(num_layers, num_buckets, min_exit, budget)
        return cls._of(at_random.draft(tokenizer_or_vocab_size, buckets, seed, vocab_size))

    @classmethod
    def never(
        cls,
        tokenizer_or_vocab_size: "PreTrainedTokenizerBase | int",
        num_layers: int,
        *,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Let no token exit: every layer updates every token, as in the unconverted model."""
        whole_number("num_layers", num_layers, 1, MOST_LAYERS)
        vocabulary = Vocabulary.of(tokenizer_or_vocab_size, vocab_size)
        layers = np.full(vocabulary.size, num_layers, dtype=np.int64)
        return cls(torch.from_numpy(layers), num_layers, "never", tokenizer_fingerprint=vocabulary.fingerprint)

    @classmethod
    def from_tensor(
        cls,
        exit_layers: Tensor | NDArray[Any] | Iterable[int],
        num_layers: int | None = None,
        *,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
    ) -> "ExitTable":
        """Take exit layers as they are, special tokens included. (vocab,), depth = highest layer unless given."""
        layers = as_tensor(exit_layers)
        if num_layers is None:
            num_layers = max(1, int(layers.max())) if layers.numel() else 1
        table = cls(layers, num_layers)
        if tokenizer is None:
            return table
        table.check(tokenizer=tokenizer)
        return replace(table, tokenizer_fingerprint=tokenizer_fingerprint(tokenizer))

    @classmethod
    def from_mapping(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        mapping: Mapping[str, int],
        num_layers: int,
        *,
        default: int | None = None,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Give the named tokens their layers and all others `default` (the last layer); special tokens never exit."""
        options: dict[str, Any] = {"num_layers": num_layers, "default": default, "vocab_size": vocab_size}
        return cls._of(by_hand.draft("mapping", tokenizer, by_hand.entries_of_mapping(mapping), **options))

    @classmethod
    def from_csv(
        cls,
        tokenizer: "PreTrainedTokenizerBase",
        path: PathLike,
        num_layers: int,
        *,
        default: int | None = None,
        vocab_size: int | None = None,
    ) -> "ExitTable":
        """Read a mapping from a `.csv` or `.tsv` file with the columns `token` and `layer`; see `from_mapping`."""
        options: dict[str, Any] = {"num_layers": num_layers, "default": default, "vocab_size": vocab_size}
        return cls._of(by_hand.draft("csv", tokenizer, by_hand.entries_of_file(path), **options))

    @classmethod
    def _of(cls, draft: Draft) -> "ExitTable":
        return cls(
            torch.from_numpy(draft.exit_layers),
            draft.num_layers,
            draft.method,
            dict(draft.parameters),
            draft.corpus,
            draft.tokenizer_fingerprint,
            draft.occurrences,
        )

    # --- using one -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the depth and the exit layers: equal for tables that compute the same."""
        layers = self.exit_layers.numpy().astype("<i8").tobytes()
        return hashlib.sha256(b"%d " % self.num_layers + layers).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExitTable):
            return NotImplemented
        return self.metadata() == other.metadata()

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __len__(self) -> int:
        return len(self.exit_layers)

    def __repr__(self) -> str:
        summary = f"{self.method}, {len(self)} tokens, {self.num_layers} layers"
        return f"ExitTable({summary}, fingerprint {self.fingerprint[:12]})"

    def resized(self, vocab_size: int) -> "ExitTable":
        """Return a table for another number of ids: new ones go to the last layer, surplus ones are dropped."""
        vocab_size = whole_number("vocab_size", vocab_size, at_least=1)
        added = torch.full((max(0, vocab_size - len(self)),), self.num_layers, dtype=torch.int64, device="cpu")
        # Which of the counted tokens were dropped is not known, so neither are the occurrences that remain.
        occurrences = self.occurrences if vocab_size >= len(self) else None
        return replace(self, exit_layers=torch.cat([self.exit_layers[:vocab_size], added]), occurrences=occurrences)

    def check(
        self,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        vocab_size: int | None = None,
        num_layers: int | None = None,
    ) -> None:
        """Raise TableMismatch unless the table fits the tokenizer, the model's vocabulary and its depth.

        A tokenizer fits if it is the table's own, or that one with tokens added since and the table resized.
        A model may be deeper than the table, whose depth it is then cut to; never shallower.
        """
        if tokenizer is not None:
            check_tokenizer(tokenizer, len(self), self.tokenizer_fingerprint, self.num_layers)
        if vocab_size is not None and vocab_size != len(self):
            raise TableMismatch(
                f"the table covers {len(self)} tokens but the model's vocabulary has {vocab_size}; "
                f"if both belong to the same tokenizer, use table.resized({vocab_size})"
            )
        if num_layers is not None and self.num_layers > num_layers:
            raise TableMismatch(
                f"the table is made for {self.num_layers} layers but the model has {num_layers}; "
                f"rebuild it with num_layers={num_layers}"
            )

    def occurrences_in(self, counts: TokenCounts) -> tuple[int, ...]:
        """Return how many tokens of a counted corpus exit at each of the layers 0..num_layers."""
        if len(counts.occurrences) > len(self):
            raise TableMismatch(
                f"the counts cover {len(counts.occurrences)} tokens but the table only {len(self)}; "
                f"count with the table's own tokenizer"
            )
        return occurrences_per_layer(self.exit_layers.numpy(), self.num_layers, counts.occurrences)

    def describe(self, tokenizer: "PreTrainedTokenizerBase | None" = None, counts: TokenCounts | None = None) -> str:
        """Return the table as text: per layer the token types, occurrences, and with a tokenizer some tokens.

        counts: a corpus to take the occurrences from, instead of the one the table was built from.
        """
        occurrences = self.occurrences if counts is None else self.occurrences_in(counts)
        corpus = self.corpus if counts is None else counts.corpus
        settings = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        lines = [f"{self!r} with {settings}" if settings else repr(self)]
        if corpus is not None:
            lines.append(f"corpus of {corpus.num_texts:,} texts and {corpus.num_tokens:,} tokens")
        return "\n".join([*lines, layer_table(self.exit_layers.numpy(), self.num_layers, occurrences, tokenizer)])

    # --- saving one ------------------------------------------------------------------------------------------

    def metadata(self) -> dict[str, Any]:
        """Return everything but the exit layers, as JSON values, with the fingerprint that ties both together."""
        return {
            "format_version": _STORAGE.version,
            "method": self.method,
            "num_layers": self.num_layers,
            "parameters": copy.deepcopy(self.parameters),
            "corpus": None if self.corpus is None else asdict(self.corpus),
            "occurrences": None if self.occurrences is None else list(self.occurrences),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_parts(cls, exit_layers: Tensor, metadata: Mapping[str, Any]) -> "ExitTable":
        """Put a table together from its exit layers, (vocab,), and what `metadata` returned for it."""
        _STORAGE.check_version(metadata, "the table's metadata")
        try:
            table = cls(
                exit_layers,
                metadata["num_layers"],
                metadata["method"],
                metadata["parameters"],
                None if metadata["corpus"] is None else CorpusInfo(**metadata["corpus"]),
                metadata["tokenizer_fingerprint"],
                None if metadata["occurrences"] is None else tuple(metadata["occurrences"]),
            )
            fingerprint = metadata["fingerprint"]
        except (KeyError, TypeError) as error:
            raise TableError(f"the table's metadata is incomplete or damaged ({error}); rebuild the table") from None
        if fingerprint != table.fingerprint:
            raise TableError("the exit layers and the metadata belong to different tables; rebuild or copy both again")
        return table

    def save(self, folder: PathLike) -> None:
        """Write `exit_table.safetensors` and `exit_table.json` into the folder."""
        _STORAGE.save(Path(folder), {"exit_layers": self.exit_layers.numpy()}, self.metadata())

    @classmethod
    def load(
        cls,
        folder: PathLike,
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        num_layers: int | None = None,
    ) -> "ExitTable":
        """Read what `save` wrote, and check it against a tokenizer and a depth if given."""
        arrays, metadata = _STORAGE.load(Path(folder))
        if "exit_layers" not in arrays:
            raise TableError(f"the safetensors file in {folder} holds no exit_layers; rebuild the table")
        table = cls.from_parts(torch.from_numpy(arrays["exit_layers"]), metadata)
        table.check(tokenizer=tokenizer, num_layers=num_layers)
        return table
