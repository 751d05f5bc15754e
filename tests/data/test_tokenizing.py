"""Texts are tokenized and padded in one module each, as transformers does it."""

import ast
import copy
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hashee.data.batching import padded_inputs
from hashee.data.tokenizing import TextTokenizer, encoder_of, token_ids
from hashee.embedded import minilm_folder
from hashee.errors import InputError
from import_graph import MODULES
from small_tokenizer import make_byte_level_tokenizer, make_tokenizer

TEXTS = ["the cat sat", "the film is good and long and good", "zebra", ""]
PAIRS = [(text, other) for text, other in zip(TEXTS, reversed(TEXTS), strict=True)]
TOKENIZERS = {
    "WordPiece": make_tokenizer(),
    "MiniLM": AutoTokenizer.from_pretrained(minilm_folder()),
    "bytes": make_byte_level_tokenizer(),
}


def calls_of_tokenizers(source: str) -> list[int]:
    """Return the lines on which something called a tokenizer is called, or pads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            of_tokenizer = isinstance(function, ast.Attribute) and "tokenizer" in ast.unparse(function.value)
            if name == "tokenizer" or (of_tokenizer and name in ("__call__", "pad", "encode", "encode_batch")):
                found.append(node.lineno)
    return found


def test_calls_of_tokenizers_are_found() -> None:
    calls = "self.tokenizer(texts)\ntokenizer([text], padding=True)\ntokenizer.pad(rows)\nself.tokenizer.encode(text)"
    assert calls_of_tokenizers(calls) == [1, 2, 3, 4]
    assert calls_of_tokenizers("read_tokenizer(folder)\ntokenizer.convert_ids_to_tokens(ids)\nlen(tokenizer)") == []


def test_one_module_calls_tokenizers() -> None:
    callers = {name for name, path in MODULES.items() if calls_of_tokenizers(path.read_text(encoding="utf-8"))}
    assert callers == {"hashee.data.tokenizing"}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
@pytest.mark.parametrize("max_length", [6, 40])
def test_batches_are_those_of_transformers(tokenizer: Any, texts: list[Any], max_length: int) -> None:
    columns = TextTokenizer(tokenizer, max_length, token_types=True)(texts)
    indices = [2, 0, 1]
    chosen = [texts[index] for index in indices]
    sides = (chosen,) if isinstance(chosen[0], str) else tuple(map(list, zip(*chosen, strict=True)))
    options: dict[str, Any] = {"truncation": True, "max_length": max_length, "return_token_type_ids": True}
    wanted = tokenizer(*sides, padding=True, return_tensors="np", **options)
    inputs = padded_inputs(columns, indices, tokenizer.pad_token_id)
    assert set(inputs) == set(wanted)
    for name, array in inputs.items():
        assert array.dtype == np.int64 and (array == wanted[name]).all(), name


def test_the_shorter_limit_holds_and_without_one_nothing_is_truncated() -> None:
    tokenizer = make_tokenizer()
    long = "the " * 100
    assert len(TextTokenizer.within(tokenizer, 10)([long])["input_ids"][0]) == 10
    assert len(TextTokenizer.within(tokenizer, 500)([long])["input_ids"][0]) == tokenizer.model_max_length == 64
    assert len(TextTokenizer(tokenizer)([long])["input_ids"][0]) == 102
    assert list(map(len, token_ids([long, "the"], tokenizer, 10))) == [10, 3]
    assert len(encoder_of(tokenizer)([long])[0]) == 100, "counting has no special tokens"


def test_refused_texts_have_their_number_in_the_stream() -> None:
    with pytest.raises(InputError, match="text 5 is int"):
        list(token_ids(["the"] * 5 + [3], make_tokenizer(), 10, batch_size=2))


LONG = {
    "words": "a good film and a long one , never dull " * 400,
    "one word": "a" * 20_000,
    "Chinese": "我" * 9000,
    "marks": "e\u0301" * 9000,
    "spaces": " " * 20_000 + "a good film " * 2000,
    "empty": "",
    "short": "a cat",
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["WordPiece", "MiniLM", "bytes"])
def test_far_too_long_texts_have_the_tokens_that_transformers_gives_them(name: str, side: str) -> None:
    tokenizer = copy.deepcopy(TOKENIZERS[name])
    tokenizer.truncation_side = side
    tokenize = TextTokenizer(tokenizer, 40)
    whole = tokenizer([*LONG.values()], verbose=False)["input_ids"]
    found = tokenize([*LONG.values()])["input_ids"]
    assert found == tokenizer([*LONG.values()], truncation=True, max_length=40)["input_ids"]
    assert tokenize.truncated([*LONG.values()], found) == [len(ids) > 40 for ids in whole]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", ["WordPiece", "MiniLM", "bytes"])
def test_far_too_long_pairs_have_the_tokens_that_transformers_gives_them(name: str, side: str) -> None:
    tokenizer = copy.deepcopy(TOKENIZERS[name])
    tokenizer.truncation_side = side
    # Not longer: what transformers itself keeps of pairs grows with the product of their lengths.
    texts = [text[:300] for text in LONG.values()]
    pairs = [(text, other) for text in texts for other in texts]
    sides = tuple(map(list, zip(*pairs, strict=True)))
    special = tokenizer.num_special_tokens_to_add(pair=True)
    # An even number of other tokens: an odd one goes to the longer text, which is not known of two that are cut.
    most = 12 + special
    found = TextTokenizer(tokenizer, most)(pairs)["input_ids"]
    assert found == tokenizer(*sides, truncation=True, max_length=most)["input_ids"]


def test_two_texts_of_a_megabyte_do_not_fill_the_memory() -> None:
    # The parts that truncation cuts off would be 15 million encodings.
    text = "我" * 1_000_000
    (ids,) = TextTokenizer(TOKENIZERS["MiniLM"], 512)([(text, text)])["input_ids"]
    assert len(ids) == 512
