"""The texts that a model is made faster on: read, counted, split into those to learn from and those held out."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hashee.data.output_types import OutputType
from hashee.data.texts import Text, read_texts, text_columns
from hashee.data.tokenized import Tokenized, tokenized_texts
from hashee.distillation.settings import SpeedupSettings
from hashee.embedded import rotten_tomatoes
from hashee.errors import InputError
from hashee.hf.text_models import TextModel, with_prompts

FEWEST = 10
"""Different texts that a table can be made from at all."""
_HELD_OUT_SHARE, _FEWEST_HELD_OUT, _MOST_HELD_OUT = 0.05, 50, 1000


@dataclass(frozen=True)
class Split:
    """Some of the texts, as they were given and tokenized with their prompts."""

    texts: list[Text]
    tokenized: Tokenized
    groups: NDArray[np.int64] | None
    """(texts,) number of each pair's first text, which rerankers compare documents for; None for single texts."""
    truncated: int
    """Texts that are longer than the model reads."""


@dataclass(frozen=True)
class Corpus:
    """All texts of a run."""

    train: Split
    held_out: Split
    fingerprint: str
    """SHA-256 of the texts and of how they are tokenized."""


def read_corpus(model: TextModel, texts: Iterable[Text] | None, settings: SpeedupSettings) -> Corpus:
    """Read, check, shuffle and tokenize texts. texts: given in Python; None to read those that the settings name."""
    found = _distinct(model, texts, settings)
    order = np.random.default_rng(settings.seed).permutation(len(found)).tolist()
    found = [found[index] for index in order]
    if settings.limit is not None:
        found = found[: settings.limit]
    if len(found) < FEWEST:
        number = "one text" if len(found) == 1 else f"{len(found)} different texts"
        raise InputError(f"{_named(settings)} {number}; give at least {FEWEST}, better some thousands")
    held, rest = _split(found)
    halves = [_tokenized(model, half) for half in (rest, held)]
    if truncated := sum(half.truncated for half in halves):
        note = (
            f"warning: {truncated:,} of {len(found):,} texts are longer than {model.max_length:,} tokens and were cut"
        )
        print(note, file=sys.stderr, flush=True)
    digest = hashlib.sha256()
    for half in halves:
        for row in half.tokenized.ids:
            digest.update(b"%d " % len(row) + row.tobytes())
    return Corpus(halves[0], halves[1], digest.hexdigest())


def _distinct(model: TextModel, texts: Iterable[Text] | None, settings: SpeedupSettings) -> list[Text]:
    """Return all texts that hold more than white space, each once, in their order."""
    if texts is None and settings.texts is not None:
        texts = read_texts(settings.texts, settings.column, settings.pair_column)
    if texts is None:
        texts = _embedded(model)
    if isinstance(texts, str):
        raise InputError("texts is one string; pass a list of texts, or the path of a file as a Path")
    given = [tuple(text) if isinstance(text, list) else text for text in texts]
    for first in range(0, len(given), 1024):
        text_columns(given[first : first + 1024], first)  # refuses what is no text
    stripped: list[Text] = [text.strip() if isinstance(text, str) else text for text in given]
    kept = [text for text in stripped if (text if isinstance(text, str) else text[0].strip() and text[1].strip())]
    if not kept:
        raise InputError(f"{_named(settings)} no text, only {len(given):,} blank ones; give texts like those in use")
    if isinstance(kept[0], tuple) and model.output is not OutputType.SCORE:
        # Both texts of a pair are texts for an embedder.
        kept = [part.strip() for pair in kept for part in pair]
    return list(dict.fromkeys(kept))


def _named(settings: SpeedupSettings) -> str:
    return f"{settings.texts} holds" if settings.texts is not None else "there is"


def _embedded(model: TextModel) -> list[Text]:
    if model.output is OutputType.SCORE:
        raise InputError("no texts were given; name a file of pairs (query, document) like those in use with --texts")
    print("note: no texts were given, so film reviews are taken; your own texts are better", file=sys.stderr)
    return [text for text, _ in rotten_tomatoes()]


def _split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Return held-out texts and the others; pairs with the same first text stay together. texts: in random order."""
    wanted = min(max(round(_HELD_OUT_SHARE * len(texts)), _FEWEST_HELD_OUT), _MOST_HELD_OUT, len(texts) // 2)
    if isinstance(texts[0], str):
        return list(texts[:wanted]), list(texts[wanted:])
    by_first: dict[str, list[Text]] = {}
    for pair in texts:
        by_first.setdefault(pair[0], []).append(pair)
    held: list[Text] = []
    rest: list[Text] = []
    for pairs in by_first.values():
        (held if len(held) + len(pairs) <= wanted else rest).extend(pairs)
    if not held:  # one query alone, or few with very many documents
        held, rest = list(texts[:wanted]), list(texts[wanted:])
    return held, rest


def _tokenized(model: TextModel, texts: list[Text]) -> Split:
    groups = None
    if not isinstance(texts[0], str):
        numbers: dict[str, int] = {}
        groups = np.array([numbers.setdefault(pair[0], len(numbers)) for pair in texts], dtype=np.int64)
    tokenize, prompted = model.tokenize, with_prompts(texts, model.prompts)
    tokenized = tokenized_texts(tokenize, prompted)
    return Split(texts, tokenized, groups, sum(tokenize.truncated(prompted, [row.tolist() for row in tokenized.ids])))
