"""Scoring many texts: the same answers as one by one, in order, whatever the batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import hashee
from architectures import make_model
from hashee.data.batching import make_batches

WORDS = ["the", "film", "is", "a", "good", "story", "never", "dull", "cat", "zebra", "plot"]


def make_texts(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=generator.integers(0, 12))) for _ in range(count)]


def make_hashed(tokenizer: Any, auto_class: Any, family: str = "bert") -> Any:
    dense = make_model(family, auto_class, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    table = hashee.ExitTable.by_frequency(tokenizer, make_texts(50), num_layers=4, progress=False)
    return hashee.convert(dense, table, tokenizer=tokenizer)


def one_by_one(model: Any, tokenizer: Any, texts: list[Any]) -> list[np.ndarray]:
    answers = []
    for text in texts:
        parts = [text] if isinstance(text, str) else text
        inputs = tokenizer(*parts, return_tensors="pt", truncation=True, max_length=40, return_token_type_ids=True)
        with torch.inference_mode():
            output = model(**inputs)
        answers.append((output.logits if "logits" in output else output.last_hidden_state)[0].numpy())
    return answers


@pytest.mark.parametrize(
    "auto_class",
    [AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoModel],
    ids=lambda c: c.__name__,
)
@pytest.mark.parametrize(
    "batching", [hashee.Batching(), hashee.Batching(tokens=20, active=3, window=7)], ids=["big", "small"]
)
def test_answers_are_those_of_single_texts_in_order(tokenizer: Any, auto_class: Any, batching: Any) -> None:
    model, texts = make_hashed(tokenizer, auto_class), make_texts(30, seed=1)
    ours = list(model.predict(texts, batching=batching, progress=False))
    for mine, other in zip(ours, one_by_one(model, tokenizer, texts), strict=True):
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= 1e-5


def test_pairs_keep_their_token_types(tokenizer: Any) -> None:
    model = make_hashed(tokenizer, AutoModelForSequenceClassification)
    pairs = [(text or "cat", other or "film") for text, other in zip(make_texts(9, 2), make_texts(9, 3), strict=True)]
    for mine, other in zip(model.predict(pairs, progress=False), one_by_one(model, tokenizer, pairs), strict=True):
        assert np.abs(mine - other).max() <= 1e-5


def test_files_and_generators_are_read_as_they_are_needed(tokenizer: Any, tmp_path: Path) -> None:
    model, texts = make_hashed(tokenizer, AutoModelForSequenceClassification), [t for t in make_texts(40) if t]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts))
    assert len(list(model.predict(path, progress=False))) == len(texts)
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "the film"

    answers = model.predict(endless(), batching=hashee.Batching(window=8), progress=False)
    for _ in range(20):
        next(answers)
    answers.close()
    assert taken <= 48, "only the windows in hand are read"


def test_no_texts_give_no_answers(tokenizer: Any) -> None:
    model = make_hashed(tokenizer, AutoModelForSequenceClassification)
    assert list(model.predict([], progress=False)) == []


@pytest.mark.parametrize(
    "texts", [["fine", 3], [("a", "b"), "c"], [("a", "b", "c")], [("a", None)], [(1, 2)], [("a", "b"), ("a", b"b")]]
)
def test_what_is_no_text_is_refused(tokenizer: Any, texts: list[Any]) -> None:
    with pytest.raises(hashee.InputError, match="texts must be"):
        list(make_hashed(tokenizer, AutoModel).predict(texts, progress=False))


@pytest.mark.parametrize("texts", [["fine", "\ud800"], [("a", "b"), ("a", "\udcff b")]])
def test_half_a_surrogate_pair_is_refused_with_its_number(tokenizer: Any, texts: list[Any]) -> None:
    model = make_hashed(tokenizer, AutoModel)
    with pytest.raises(hashee.InputError, match="text 1 holds half of a surrogate pair"):
        list(model.predict(texts, progress=False))
    with pytest.raises(hashee.InputError, match="text 1 holds half of a surrogate pair"):
        hashee.count_flops(model, texts, tokenizer=tokenizer)
    with pytest.raises(hashee.InputError, match="half of a surrogate pair"):
        model.explain(*([texts[1]] if isinstance(texts[1], str) else texts[1]))
    # Numbers go on from one window of texts to the next.
    with pytest.raises(hashee.InputError, match="text 9 holds half"):
        list(model.predict(["fine"] * 9 + ["\ud800"], progress=False, batching=hashee.Batching(window=4)))


def test_models_that_write_text_are_refused(tokenizer: Any) -> None:
    with pytest.raises(hashee.UnsupportedModel, match="generate"):
        list(make_hashed(tokenizer, AutoModelForSeq2SeqLM, "bart").predict(["the film"], progress=False))


@settings(max_examples=60)
@given(
    ids=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), min_size=1, max_size=40),
    tokens=st.integers(1, 60),
    active=st.integers(0, 20),
)
def test_batches_hold_every_text_once_and_keep_to_the_budget(ids: list[list[int]], tokens: int, active: int) -> None:
    exits = np.array([1] * 7 + [2] * 3)
    batches = make_batches(ids, exits, hashee.Batching(tokens=tokens, active=active))
    assert sorted(place for batch in batches for place in batch) == list(range(len(ids)))
    for batch in batches:
        assert len(batch) == 1 or sum(len(ids[place]) for place in batch) <= 4 * tokens
