"""A checksum of how a tokenizer splits texts: two tokenizers with the same vocabulary may split them differently."""

import json
from typing import TYPE_CHECKING, Any

from hashee.data.tokenizing import TextTokenizer
from hashee.errors import FATAL, TableMismatch
from hashee.files import checksum_of_json
from hashee.tables.vocabulary import vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SAMPLE = 2000
"""Tokens of the vocabulary that are tokenized again."""
_TEXTS = (
    "The quick brown fox didn't jump over 12 lazy dogs; why not, Mr. O'Neil-Smith?",
    "  Two  spaces,\ttabs\nand line breaks \r\n at either end  ",
    "UPPER lower MiXeD naïve café Ångström Straße ŁÓDŹ e\u0301 ﬁne ½ ™",
    "東京は日本の首都です。 Москва столица. πάντα ῥεῖ مرحبا שלום",
    "https://example.org/a_b?c=1&d=2#e mail@example.org $3.50 50% (a) [b] {c} <d> ... --- `''` \\ / | ~ ^",
    "antidisestablishmentarianism " + "ab" * 120,
    "",
)
_PAIR = ("Which film is it?", "The one that I saw.")


def tokenization_of(tokenizer: "PreTrainedTokenizerBase", size: int | None = None) -> str | None:
    """Return the number of ids and a checksum of the tokens of some texts; None for a tokenizer that fails on them.

    The texts are fixed ones and tokens of the first `size` ids (default: all), so that tokens which were added since
    count only where they change how other words are split. Truncation and padding do not count.
    """
    try:
        size = vocabulary_size(tokenizer) if size is None else size
        found: list[Any] = [tokenizer.padding_side, tokenizer.truncation_side]
        tokenize = TextTokenizer(tokenizer, token_types=True)
        for text in (*_TEXTS, _words(tokenizer, size), _PAIR):
            columns = tokenize([text])
            found += [columns["input_ids"][0], columns["token_type_ids"][0]]
        return f"{size}-{checksum_of_json([*found, _learnt(tokenizer)])}"
    except BaseException as error:
        if isinstance(error, FATAL):
            raise
        # A user's own tokenizer need not take all of that, and a model can be saved all the same.
        return None


def check_tokenization(tokenizer: "PreTrainedTokenizerBase", recorded: str | None, record: str) -> None:
    """Raise unless a tokenizer splits texts like the one that a model was saved with. record: the file that says so."""
    if recorded is None:
        return
    size = str(recorded).partition("-")[0]
    known = size.isdecimal() and len(size) < 10
    if not known or tokenization_of(tokenizer, int(size)) != recorded:
        raise TableMismatch(
            "the tokenizer cuts texts differently from the one that the model was saved with; copy its files again; if "
            f'you changed it on purpose, delete "tokenization" from {record}'
        )


def _words(tokenizer: "PreTrainedTokenizerBase", size: int) -> str:
    """Return tokens of the vocabulary, evenly spaced by id, as one text."""
    tokens: Any = tokenizer.convert_ids_to_tokens(list(range(0, size, max(1, size // _SAMPLE))))
    # Some vocabularies skip ids.
    return " ".join(tokenizer.convert_tokens_to_string([token]) for token in tokens if token)


def _learnt(tokenizer: "PreTrainedTokenizerBase") -> Any:
    """Return merges or scores: a single wrong one may not change the tokens of a few texts."""
    if not tokenizer.is_fast:
        return None
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ not in ("BPE", "Unigram"):
        return None
    model = json.loads(backend.to_str())["model"]
    if isinstance(model.get("vocab"), list):
        return model["vocab"]
    # Earlier versions wrote a merge as one string.
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in model.get("merges") or ()]
