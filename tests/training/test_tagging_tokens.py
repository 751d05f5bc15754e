"""Words that are tagged are tokenized as the text that they make, by every tokenizer and at every stage."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_data import TAGS, make_backbone, make_data
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast, XLMRobertaTokenizer

from hashee.data.task import Examples, Kind, Task
from hashee.data.tokenized import ExampleTokenizer, Tokenized
from hashee.embedded import minilm_folder
from hashee.evaluation import evaluate
from hashee.training import fit
from hashee.training.evaluation import predictions, scores
from small_tokenizer import make_byte_level_tokenizer, make_tokenizer

TAGGING = Task("tags", Kind.TAGS, TAGS, "tag_accuracy")
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁the", -1.0), ("▁cat", -1.0), ("▁", -2.0)]
PIECES += [(letter, -3.0) for letter in "abcdefghijklmnopqrstuvwxyz"] + [("<mask>", 0.0)]
SPLITTING = {
    "WordPiece": make_tokenizer(),
    "MiniLM": AutoTokenizer.from_pretrained(minilm_folder()),
    "SentencePiece": XLMRobertaTokenizer(vocab=PIECES),
}
BYTE_LEVEL = {
    f"{'prefix' if prefix else 'plain'}, {'trimmed' if trimmed else 'whole'} offsets": make_byte_level_tokenizer(
        add_prefix_space=prefix, trim_offsets=trimmed
    )
    for prefix in (False, True)
    for trimmed in (True, False)
}
TOKENIZERS = SPLITTING | BYTE_LEVEL
# No lone surrogates, which no UTF-8 text has, and no spaces, at which no word could be told from two.
WORD = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=" "), max_size=6)
WORDS = st.lists(
    WORD | st.sampled_from(["the", "cat", "zebra", "'t", "\u200b", "\u0301", "日本", "🙂", "I"]), max_size=8
)


def encode(tokenizer: Any, words: list[str], max_length: int = 512) -> Tokenized:
    return ExampleTokenizer(TAGGING, tokenizer, max_length, token_types=False)(Examples([tuple(words)], None))


def starts_of(encoded: Tokenized) -> list[int]:
    assert encoded.starts is not None
    places: list[int] = encoded.starts[0].tolist()
    return places


def pipeline_of(folder: Path) -> dict[str, Any]:
    """Return everything that decides on the tokens of a text, which its length does not."""
    parts: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return {name: part for name, part in parts.items() if name not in ("truncation", "padding")}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(words=WORDS, max_length=st.integers(3, 40))
@example(words=["the", "", "cat"], max_length=40)
@example(words=["", "", ""], max_length=40)
def test_ids_are_those_of_the_text(tokenizer: Any, words: list[str], max_length: int) -> None:
    encoded = encode(tokenizer, words, max_length)
    text = " ".join(words)
    assert encoded.ids[0].tolist() == tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
    starts, all_starts = starts_of(encoded), starts_of(encode(tokenizer, words))
    room = len(encoded.ids[0]) - 1
    assert starts == [place if place < room else -1 for place in all_starts], "only what was cut off is missing"
    assert [word for word, place in zip(words, starts, strict=True) if not word and place >= 0] == []
    found = [place for place in starts if place >= 0]
    assert found == sorted(set(found)) and 0 not in found, "each word has a token of its own, none a special one"


@pytest.mark.parametrize("tokenizer", SPLITTING.values(), ids=SPLITTING)
@given(words=WORDS)
def test_pieces_of_words_start_where_transformers_says(tokenizer: Any, words: list[str]) -> None:
    encoded = encode(tokenizer, words)
    split = tokenizer([words], is_split_into_words=True)
    assert encoded.ids[0].tolist() == split["input_ids"][0]
    of_token = split.word_ids(0)
    assert starts_of(encoded) == [of_token.index(word) if word in of_token else -1 for word in range(len(words))]


@pytest.mark.parametrize("tokenizer", BYTE_LEVEL.values(), ids=BYTE_LEVEL)
@given(words=WORDS)
def test_bytes_from_one_start_to_the_next_spell_the_word(tokenizer: Any, words: list[str]) -> None:
    encoded = encode(tokenizer, words)
    starts, ids = starts_of(encoded), encoded.ids[0].tolist()
    assert [place >= 0 for place in starts] == [bool(word) for word in words], "bytes drop nothing"
    bounds = [place for place in starts if place >= 0] + [len(ids) - 1]
    spelt = [tokenizer.decode(ids[first:end]).strip(" ") for first, end in pairwise(bounds)]
    assert spelt == [word for word in words if word]


def test_words_after_a_space_are_the_tokens_that_the_model_knows() -> None:
    tokenizer = make_byte_level_tokenizer()
    encoded = encode(tokenizer, ["I", "sat", "on", "zebras"])
    tokens = tokenizer.convert_ids_to_tokens(encoded.ids[0].tolist())
    assert [tokens[place] for place in starts_of(encoded)] == ["I", "Ġsat", "Ġon", "z"]


@pytest.mark.parametrize("make", [make_tokenizer, make_byte_level_tokenizer])
def test_an_added_token_of_two_words_is_of_the_first(make: Callable[[], Any]) -> None:
    tokenizer = make()
    tokenizer.add_tokens(["the cat"])
    encoded = encode(tokenizer, ["the", "cat", "sat"])
    assert len(tokenizer) - 1 in encoded.ids[0]
    assert starts_of(encoded)[:2] == [1, -1] and starts_of(encoded)[2] > 1


@pytest.mark.parametrize("generic", [False, True], ids=["RoBERTa's class", "generic class"])
def test_fit_tables_evaluation_and_prediction_read_the_same_tokens(generic: bool, tmp_path: Path) -> None:
    tokenizer: Any = make_byte_level_tokenizer()
    if generic:
        special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer.backend_tokenizer, model_max_length=64, **special
        )
    backbone = make_backbone(tmp_path / "backbone", "roberta", tokenizer=tokenizer)
    data, output = make_data(Kind.TAGS), tmp_path / "out"
    fitted = fit(task=data, backbone=str(backbone), output=output, hash="frequency", warm_start=False, quiet=True)
    assert pipeline_of(output) == pipeline_of(backbone)

    encoder = ExampleTokenizer(data.task, AutoTokenizer.from_pretrained(output), 38, token_types=False)
    table = fitted.model.exit_table
    counted = np.concatenate([row[1:-1] for split in (data.train, data.dev) for row in encoder(split).ids])
    exits = table.exit_layers.numpy()[counted]
    assert tuple(np.bincount(exits, minlength=table.num_layers + 1).tolist()) == table.occurrences

    found = evaluate(output, data, "dev", rounds=0, quiet=True)
    assert found.quality == pytest.approx(fitted.run["metrics"]["dev"])
    assert fitted.run["metrics"]["dev"]["score"] >= 0.97

    texts = [" ".join(words) for words in data.dev.texts]
    places = encoder(data.dev).starts
    assert places is not None
    logits = [row[first] for row, first in zip(fitted.model.predict(texts, progress=False), places, strict=True)]
    assert all(
        len(tags) == len(words) for tags, words in zip(predictions(data.task, logits), data.dev.texts, strict=True)
    )
    assert scores(data.task, logits, data.dev.targets or ()) == pytest.approx(fitted.run["metrics"]["dev"])
