"""What a tokenizer is given of texts that are far longer than what a model reads.

Tokenizers keep the parts that truncation cuts off; of a pair they keep every part of one text with every part of the
other, so that two texts of a megabyte fill all memory. The tokens that the model reads are those of the whole text: its
beginning is taken with some tokens more than the model reads, up to the end of a word.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Offsets: TypeAlias = Sequence[tuple[int, int]]
"""Where each token of a text begins and ends in it."""

_PARTS = 64
"""Pieces of a text, or of a pair, that truncation may leave; with more, texts are cut first."""
_SPARE_TOKENS = 16
"""Tokens more than the model reads, since those next to a cut may differ from the whole text's."""
_LONGEST_WORD = 1000
"""Characters after the last of these tokens among which the end of a word is looked for."""
_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class LongTexts:
    """Cuts texts down to what a model can read of them."""

    tokens_of: Callable[[str], tuple[int, Offsets | None]]
    """Returns how many tokens a text has, without special ones, and where they are if the tokenizer knows."""
    most: int
    """Tokens that the model reads."""
    from_left: bool = False
    """Whether the end of a text is read, not its beginning."""

    def cut(self, texts: Sequence[str], pairs: Sequence[str] | None) -> tuple[list[str], list[str] | None]:
        """Return texts, and the seconds of pairs, of which those that are far too long are cut."""
        if pairs is None:
            return [self._part(text) if self._parts(text) > _PARTS else text for text in texts], None
        found = [
            (self._part(text), self._part(pair)) if self._parts(text) * self._parts(pair) > _PARTS else (text, pair)
            for text, pair in zip(texts, pairs, strict=True)
        ]
        return [text for text, _ in found], [pair for _, pair in found]

    def _parts(self, text: str) -> int:
        """Return how many times over the model could read a text with a token for every character."""
        return len(text) // self.most + 1

    def _part(self, text: str) -> str:
        """Return the beginning of a text or its end, whichever is read; all of it if it has too few tokens."""
        if self._parts(text) <= 2:
            return text
        size, needed = 16 * self.most, self.most + _SPARE_TOKENS
        while True:
            part = text[-size:] if self.from_left else text[:size]
            count, offsets = self.tokens_of(part)
            if count >= needed:
                return _cut(part, offsets, needed, self.from_left)
            if len(part) == len(text):
                return text
            size *= 4


def _cut(part: str, offsets: Offsets | None, tokens: int, from_left: bool) -> str:
    """Return the first tokens of a text, or the last, with the rest of the word."""
    if offsets is None:  # of a tokenizer in Python, which throws away what it cuts
        return part
    if from_left:
        start = offsets[-tokens][0]
        before = [found.end() for found in _SPACE.finditer(part, max(0, start - _LONGEST_WORD), start)]
        return part[before[-1] if before else start :]
    end = offsets[tokens - 1][1]
    space = _SPACE.search(part, end, end + _LONGEST_WORD)
    return part[: space.start() if space else end]
