"""Mutual information equals the textbook's, for any number of classes and for scores cut into quantiles."""

import json
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from hashee.errors import InputError, TableError
from hashee.tables.counting import count_tokens
from hashee.tables.mutual_information import mutual_information, quantile_classes, rank_by_mutual_information
from hashee.tables.table import ExitTable

words = st.sampled_from(["the", "cat", "dog", "sat", "great", "dull", "zork", ".", "!"])
labelled = st.lists(
    st.tuples(st.lists(words, max_size=6).map(" ".join), st.integers(0, 2)), min_size=2, max_size=15
).filter(lambda rows: len({label for _, label in rows}) > 1)


@settings(max_examples=40)
@given(rows=labelled)
def test_equals_sklearn_for_every_token(tokenizer: PreTrainedTokenizerBase, rows: list[tuple[str, int]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    texts, labels = [text for text, _ in rows], [label for _, label in rows]
    information = mutual_information(count_tokens(tokenizer, texts, labels))
    encoded = [set(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    for token_id in {0, *(token_id for ids in encoded for token_id in ids)}:
        expected = metrics.mutual_info_score([token_id in ids for ids in encoded], labels)
        assert information[token_id] == pytest.approx(expected, abs=1e-12)


def test_equals_a_count_by_hand(tokenizer: PreTrainedTokenizerBase) -> None:
    # "good" occurs in 2 of 2 positive and 0 of 2 negative texts: one bit. "film" occurs everywhere: nothing.
    counts = count_tokens(tokenizer, ["good film", "a good good film", "film", "bad film"], ["+", "+", "-", "-"])
    information = mutual_information(counts)
    good, film, bad = tokenizer.convert_tokens_to_ids(["good", "film", "bad"])
    assert information[good] == pytest.approx(np.log(2))
    assert information[film] == pytest.approx(0)
    assert 0 < information[bad] < np.log(2)
    assert rank_by_mutual_information(counts)[0] == good
    assert rank_by_mutual_information(counts)[-1] == film


def test_most_informative_tokens_exit_first_and_ties_go_by_id(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["good cat film", "good dog film", "bad cat film", "bad dog film"]
    table = ExitTable.by_mutual_information(tokenizer, texts, [1, 1, 0, 0], 6, num_buckets=3)
    exits = {token: int(table.exit_layers[tokenizer.convert_tokens_to_ids(token)]) for token in tokenizer.get_vocab()}
    # good and bad mirror each other, so they tie; so do cat, dog and film, which tell nothing: film has the lowest id.
    assert [exits[word] for word in ("good", "bad", "film", "cat", "dog")] == [1, 1, 3, 3, 5]
    assert exits["the"] == exits["[CLS]"] == 6
    assert table.parameters == {"num_buckets": 3, "min_exit": 1, "num_classes": 2}
    assert table.occurrences == (0, 4, 0, 6, 0, 2, 0)


def test_equal_information_ties_in_spite_of_rounding(tokenizer: PreTrainedTokenizerBase) -> None:
    # Six words occur in 1, 3 and 5 of the 7 texts of three classes, in every order: equal sums, added up differently.
    words = ["film", "story", "good", "bad", "great", "dull"]
    spread = dict(zip(words, permutations((5, 3, 1)), strict=True))
    rows = [
        (" ".join(word for word in words if number < spread[word][label]), label)
        for label in range(3)
        for number in range(7)
    ]
    counts = count_tokens(tokenizer, [text for text, _ in rows], [label for _, label in rows])
    ids = sorted(tokenizer.convert_tokens_to_ids(words))
    assert rank_by_mutual_information(counts).tolist() == ids
    assert len(set(mutual_information(counts)[ids].tolist())) > 1  # or this test would prove nothing


def test_order_of_examples_and_names_of_classes_do_not_matter(tokenizer: PreTrainedTokenizerBase) -> None:
    rng = np.random.default_rng(0)
    words = ["the", "cat", "dog", "good", "bad", "great", "dull", "film"]
    texts = [" ".join(rng.choice(words, size=4)) for _ in range(60)]
    labels = [text.count("good") + text.count("cat") for text in texts]
    table = ExitTable.by_mutual_information(tokenizer, texts, labels, 4)
    order = rng.permutation(60)
    shuffled = ExitTable.by_mutual_information(
        tokenizer, [texts[i] for i in order], [f"class {-labels[i]}" for i in order], 4
    )
    assert torch.equal(table.exit_layers, shuffled.exit_layers)


# --- scores ---


@given(
    scores=st.lists(st.floats(-5, 5), min_size=1, max_size=60),
    num_bins=st.integers(2, 12),
)
def test_bins_are_intervals_and_at_most_as_many_as_asked(scores: list[float], num_bins: int) -> None:
    classes = quantile_classes(scores, num_bins)
    assert len(set(classes)) <= num_bins
    in_order = [name for _, name in sorted(zip((score + 0.0 for score in scores), classes, strict=True))]
    changes = sum(left != right for left, right in pairwise(in_order))
    assert changes == len(set(classes)) - 1


def test_bins_of_different_scores_are_equally_large() -> None:
    classes = quantile_classes(np.random.default_rng(0).permutation(1000) / 7, num_bins=10)
    assert set(Counter(classes).values()) == {100}


def test_a_few_different_scores_are_kept_apart_however_skewed() -> None:
    assert Counter(quantile_classes([0.0] * 99 + [1.0], num_bins=10)) == {"0.0": 99, "1.0": 1}


def test_float_labels_give_the_table_of_their_bins(tokenizer: PreTrainedTokenizerBase) -> None:
    rng = np.random.default_rng(1)
    words = ["the", "cat", "dog", "good", "bad"]
    texts = [" ".join(rng.choice(words, size=3)) for _ in range(50)]
    scores = [text.count("good") + rng.random() for text in texts]
    table = ExitTable.by_mutual_information(tokenizer, texts, scores, 5, num_bins=4)
    # Rank by hand: quartiles are the classes.
    quartile = np.searchsorted(np.quantile(scores, [0.25, 0.5, 0.75]), scores)
    by_hand = ExitTable.by_mutual_information(tokenizer, texts, quartile.tolist(), 5)
    assert torch.equal(table.exit_layers, by_hand.exit_layers)
    assert table.parameters["num_bins"] == 4 and table.parameters["num_classes"] == 4
    for same in (np.array(scores), torch.tensor(scores, dtype=torch.float64), iter(scores)):
        assert ExitTable.by_mutual_information(tokenizer, texts, same, 5, num_bins=4) == table


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), "high", None])
def test_scores_that_are_no_numbers_are_refused(tokenizer: PreTrainedTokenizerBase, wrong: object) -> None:
    with pytest.raises(InputError, match="label 1 is"):
        ExitTable.by_mutual_information(tokenizer, ["a", "b"], [0.5, wrong], 2)


# --- where labels come from ---


def test_labels_are_read_from_the_file(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    texts, scores = ["good cat", "bad cat", "good dog"], [4.5, 1, 5]
    path = tmp_path / "corpus.jsonl"
    rows = ({"text": text, "score": score} for text, score in zip(texts, scores, strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    from_file = ExitTable.by_mutual_information(tokenizer, path, None, 3)
    assert from_file == ExitTable.by_mutual_information(tokenizer, texts, scores, 3)


def test_labelled_counts_can_be_reused(tokenizer: PreTrainedTokenizerBase) -> None:
    texts, labels = ["good cat", "bad cat", "good dog"], [1, 0, 1]
    counts = count_tokens(tokenizer, texts[:1], labels[:1]) + count_tokens(tokenizer, texts[1:], labels[1:])
    table = ExitTable.by_mutual_information(tokenizer, counts, None, 3)
    assert table == ExitTable.by_mutual_information(tokenizer, texts, labels, 3)
    with pytest.raises(InputError, match="labels already"):
        ExitTable.by_mutual_information(tokenizer, counts, labels, 3)


def test_missing_or_useless_labels_are_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError, match="labels=None"):
        ExitTable.by_mutual_information(tokenizer, ["a"], None, 3)
    with pytest.raises(TableError, match="needs labels"):
        ExitTable.by_mutual_information(tokenizer, count_tokens(tokenizer, ["a"]), None, 3)
    with pytest.raises(TableError, match="at least two different"):
        ExitTable.by_mutual_information(tokenizer, ["a", "b"], [1, 1], 3)
    with pytest.raises(InputError, match="one label per text"):
        ExitTable.by_mutual_information(tokenizer, iter(["a", "b"]), [1], 3)
