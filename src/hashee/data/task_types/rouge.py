"""How near written texts are to those that people wrote: ROUGE by words or characters, and chrF."""

import unicodedata
from collections.abc import Iterable, Sequence

from hashee.packages import require

ROUGE = ("rouge1", "rouge2", "rougeL")
"""Overlap of single tokens, of pairs, and of the longest common subsequence; F1 each."""
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA")
"""How the Unicode names begin of letters whose scripts put no spaces between words."""


class Characters:
    """Every character but spaces is a token, as Chinese summaries are compared."""

    def tokenize(self, text: str) -> list[str]:
        """Return the characters of a text."""
        return [character for character in text.lower() if not character.isspace()]


def rouge(texts: Sequence[str], references: Sequence[str], characters: bool | None = None) -> dict[str, float]:
    """Return the mean F1 of ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 1; the first reference of each text counts.

    characters: compare characters instead of stemmed English words; None: if most letters of the references are of a
    script without spaces between words.
    """
    scorer_module = require("rouge_score.rouge_scorer", "generate", "measuring ROUGE")
    characters = written_without_spaces(references) if characters is None else characters
    tokens = {"tokenizer": Characters()} if characters else {"use_stemmer": True}
    scorer = scorer_module.RougeScorer(list(ROUGE), **tokens)
    found = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {name: sum(each[name].fmeasure for each in found) / max(len(found), 1) for name in ROUGE}


def chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return chrF of a whole corpus, from 0 to 1: n-grams of characters, as translations are compared."""
    metrics = require("sacrebleu", "generate", "measuring chrF")
    return float(metrics.corpus_chrf(list(texts), [list(references)]).score) / 100


def written_without_spaces(texts: Iterable[str]) -> bool:
    """Tell whether most letters of some texts are of a script that puts no spaces between words."""
    letters = without = 0
    for text in texts:
        for character in text:
            if character.isalpha():
                letters += 1
                without += not character.isascii() and unicodedata.name(character, "").startswith(_WITHOUT_SPACES)
    return 2 * without > letters
