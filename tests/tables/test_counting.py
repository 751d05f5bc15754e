"""Counts do not depend on batches, order, shards or the tokenizer's settings, and a corpus is only ever streamed."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import PreTokenizedString
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import PreTrainedTokenizerBase

from hashee.data.texts import read_texts
from hashee.errors import InputError, TableError, TableMismatch
from hashee.tables import counting
from hashee.tables.counting import TokenCounts, count_tokens

TEXTS = ["the cat sat on the mat", "A GREAT film!", "", "the dog", "unheard words, é", "the the the"]
LABELS = [0, 1, 0, 2, 1, 0]
words = st.sampled_from(["the", "cat", "dog", "sat", "great", "dull", "zork", ".", "!"])
corpora = st.lists(st.lists(words, max_size=8).map(" ".join), min_size=1, max_size=12)


class SlowTokenizer:
    """The part of a tokenizer without a Rust backend that counting relies on."""

    def __init__(self, fast: PreTrainedTokenizerBase) -> None:
        self.fast = fast
        self.all_special_ids, self.added_tokens_decoder = fast.all_special_ids, fast.added_tokens_decoder

    def __len__(self) -> int:
        return len(self.fast)

    def get_vocab(self) -> dict[str, int]:
        return self.fast.get_vocab()

    def __call__(self, texts: list[str], **options: object) -> object:
        return self.fast(texts, **options)


def expected_occurrences(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[int]:
    counter = Counter(token_id for text in texts for token_id in tokenizer.encode(text, add_special_tokens=False))
    return [counter[token_id] for token_id in range(len(tokenizer))]


@pytest.mark.parametrize("batch_size", [1, 4, 256])
def test_counts_equal_those_of_single_texts(tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
    counts = count_tokens(tokenizer, TEXTS, batch_size=batch_size, progress=False)
    assert counts.occurrences.tolist() == expected_occurrences(tokenizer, TEXTS)
    assert (counts.num_texts, counts.num_tokens) == (6, sum(counts.occurrences))
    assert counts == count_tokens(tokenizer, TEXTS)


def test_a_batch_ends_early_when_texts_are_long(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = count_tokens(tokenizer, TEXTS)
    sizes: list[int] = []
    encoder_of = counting.encoder_of

    def recording(tokenizer: PreTrainedTokenizerBase) -> counting.Encode:
        encode = encoder_of(tokenizer)

        def recorded(texts: list[str]) -> list[list[int]]:
            sizes.append(sum(map(len, texts)))
            return encode(texts)

        return recorded

    monkeypatch.setattr(counting, "_BATCH_CHARACTERS", 25)
    monkeypatch.setattr(counting, "encoder_of", recording)
    assert count_tokens(tokenizer, TEXTS) == whole
    assert len(sizes) > 1 and max(sizes) < 25 + max(map(len, TEXTS))


def test_nothing_is_truncated_padded_or_changed(own_tokenizer: PreTrainedTokenizerBase) -> None:
    own_tokenizer(["the cat", "the"], truncation=True, padding="max_length", max_length=4)
    backend = own_tokenizer.backend_tokenizer
    before = backend.to_str()
    assert backend.truncation is not None and backend.padding is not None
    counts = count_tokens(own_tokenizer, TEXTS)
    assert backend.to_str() == before
    assert counts.occurrences.tolist() == expected_occurrences(own_tokenizer, TEXTS)
    assert counts.occurrences[own_tokenizer.pad_token_id] == 0


def test_slow_tokenizers_count_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    assert count_tokens(SlowTokenizer(tokenizer), TEXTS, LABELS) == count_tokens(tokenizer, TEXTS, LABELS)


class Splitter:
    """A pre-tokenizer written in Python, as for Chinese word segmentation; a backend with one cannot be copied."""

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        text.split(lambda _, part: part.split(" ", "removed"))


def test_backends_that_cannot_be_copied_count_the_same(own_tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["the cat sat", "", "great film"]
    expected = count_tokens(own_tokenizer, texts)
    own_tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Splitter())
    assert count_tokens(own_tokenizer, texts) == expected


def test_a_pair_is_one_text_with_the_tokens_of_both(tokenizer: PreTrainedTokenizerBase) -> None:
    pairs = count_tokens(tokenizer, [("the cat", "the dog"), ("a", "")], [0, 1])
    assert pairs.num_texts == 2
    assert pairs.occurrences.tolist() == expected_occurrences(tokenizer, ["the cat", "the dog", "a"])
    assert pairs.texts_with is not None
    assert pairs.texts_with[0, tokenizer.convert_tokens_to_ids("the")] == 1  # one text, although it occurs twice


def test_texts_per_class_count_presence_not_occurrences(tokenizer: PreTrainedTokenizerBase) -> None:
    counts = count_tokens(tokenizer, TEXTS, LABELS, batch_size=2)
    assert counts.classes == (0, 1, 2)
    assert counts.texts_per_class is not None and counts.texts_per_class.tolist() == [3, 2, 1]
    assert counts.texts_with is not None
    the = tokenizer.convert_tokens_to_ids("the")
    assert counts.texts_with[:, the].tolist() == [2, 0, 1]


@given(corpus=corpora, cuts=st.lists(st.integers(0, 12), max_size=3), seed=st.integers(0, 99))
def test_shards_in_any_order_add_up_to_the_whole(
    tokenizer: PreTrainedTokenizerBase, corpus: list[str], cuts: list[int], seed: int
) -> None:
    labelled = [(text, len(text) % 3 if seed % 2 else str(len(text) % 3)) for text in corpus]
    whole = count_tokens(tokenizer, corpus, [label for _, label in labelled])
    random.Random(seed).shuffle(labelled)
    edges = [0, *sorted(min(cut, len(corpus)) for cut in cuts), len(corpus)]
    shards = [labelled[low:high] for low, high in pairwise(edges) if high > low]
    counted = [count_tokens(tokenizer, [text for text, _ in shard], [label for _, label in shard]) for shard in shards]
    assert TokenCounts.merge(counted) == whole
    assert sum(counted[1:], counted[0]) == whole


def test_corpus_fingerprint_tells_corpora_apart(tokenizer: PreTrainedTokenizerBase) -> None:
    corpora = [["a", "b"], ["a", "b", ""], ["a", "b", "b"], ["ab"], [("a", "b")], [("ab", "")], [("", "ab")]]
    fingerprints = {count_tokens(tokenizer, corpus).corpus_fingerprint for corpus in corpora}
    fingerprints |= {count_tokens(tokenizer, ["a", "b"], labels).corpus_fingerprint for labels in ([0, 1], [1, 0])}
    assert len(fingerprints) == len(corpora) + 2


def test_a_corpus_is_streamed(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, encoded = 0, 0
    encoder_of = counting.encoder_of

    def stream() -> Iterator[str]:
        nonlocal drawn
        for number in range(1000):
            drawn += 1
            assert drawn - encoded <= 16  # never further ahead than a batch
            yield f"cat {number}"

    def recording(tokenizer: PreTrainedTokenizerBase) -> counting.Encode:
        encode = encoder_of(tokenizer)

        def recorded(texts: list[str]) -> list[list[int]]:
            nonlocal encoded
            encoded += len(texts)
            return encode(texts)

        return recorded

    monkeypatch.setattr(counting, "encoder_of", recording)
    assert count_tokens(tokenizer, stream(), batch_size=16).num_texts == 1000


def test_files_are_counted_like_their_texts(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    assert count_tokens(tokenizer, path) == count_tokens(tokenizer, str(path)) == count_tokens(tokenizer, TEXTS)


@pytest.mark.parametrize("labels", [np.array(LABELS), torch.tensor(LABELS), np.array(LABELS, dtype=np.uint8)])
def test_labels_may_come_as_arrays(tokenizer: PreTrainedTokenizerBase, labels: object) -> None:
    assert count_tokens(tokenizer, TEXTS, labels) == count_tokens(tokenizer, TEXTS, LABELS)
    strings = np.where(np.array(LABELS) > 0, "yes", "no")
    assert count_tokens(tokenizer, TEXTS, strings) == count_tokens(tokenizer, TEXTS, strings.tolist())


# --- refusals ---


@pytest.mark.parametrize("item", [None, 3, b"bytes", {"text": "a"}, ("a", "b", "c"), ("a", 1), ["a"]])
def test_items_that_are_no_texts_are_refused_with_their_index(tokenizer: PreTrainedTokenizerBase, item: object) -> None:
    with pytest.raises(InputError, match=f"text 2 is of type {type(item).__name__}"):
        count_tokens(tokenizer, ["a", "b", item])


def test_half_a_surrogate_pair_is_refused_with_its_index(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(InputError, match="text 1 holds half of a surrogate pair"):
        count_tokens(tokenizer, ["a", "\ud800"])


@pytest.mark.parametrize("label", [0.5, np.float32(1), None, [1], torch.tensor([1, 2])])
def test_labels_that_are_no_classes_are_refused_with_their_index(
    tokenizer: PreTrainedTokenizerBase, label: object
) -> None:
    with pytest.raises(InputError, match="label 1 is"):
        count_tokens(tokenizer, ["a", "b"], [0, label])


@pytest.mark.parametrize(("num_texts", "num_labels"), [(3, 2), (2, 3), (2, 0), (0, 2)])
@pytest.mark.parametrize("kind", [list, iter])
def test_texts_and_labels_must_be_equally_many(
    tokenizer: PreTrainedTokenizerBase, num_texts: int, num_labels: int, kind: type
) -> None:
    with pytest.raises(InputError, match="one label per text"):
        count_tokens(tokenizer, kind(["a"] * num_texts), kind([0] * num_labels))


def test_an_empty_corpus_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(TableError, match="corpus is empty"):
        count_tokens(tokenizer, [])
    with pytest.raises(InputError, match="batch_size=0"):
        count_tokens(tokenizer, ["a"], batch_size=0)


def test_identifiers_are_not_classes(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "_MOST_CLASS_ENTRIES", 10 * len(tokenizer))
    with pytest.raises(InputError, match="11 or more different values"):
        count_tokens(tokenizer, ["a"] * 20, range(20))


def test_shards_that_do_not_belong_together_are_refused(
    tokenizer: PreTrainedTokenizerBase, own_tokenizer: PreTrainedTokenizerBase
) -> None:
    own_tokenizer.add_tokens(["zork"])
    with pytest.raises(TableMismatch, match="shard 1 was counted with another tokenizer"):
        count_tokens(tokenizer, ["a"]) + count_tokens(own_tokenizer, ["a"])
    with pytest.raises(TableError, match="only one has labels"):
        count_tokens(tokenizer, ["a"]) + count_tokens(tokenizer, ["a"], [1])
    with pytest.raises(TableError, match="at least one shard"):
        TokenCounts.merge([])


# --- files ---


@pytest.mark.parametrize("labels", [None, LABELS, ["x", 1, "x", 1, "1", "x"]])
def test_saved_counts_load_equal(tokenizer: PreTrainedTokenizerBase, tmp_path: Path, labels: list[int] | None) -> None:
    counts = count_tokens(tokenizer, TEXTS, labels)
    counts.save(tmp_path / "new" / "folder")
    assert TokenCounts.load(tmp_path / "new" / "folder") == counts
    assert TokenCounts.load(tmp_path / "new" / "folder") + counts == counts + counts


def test_damaged_counts_are_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    count_tokens(tokenizer, TEXTS, LABELS).save(tmp_path)
    document = tmp_path / "token_counts.json"
    metadata = json.loads(document.read_text())
    document.write_text(json.dumps(metadata | {"num_texts": 1}))
    with pytest.raises(TableError, match="not as it was saved"):
        TokenCounts.load(tmp_path)
    # As before there was a checksum of the metadata.
    del metadata["metadata_xxh3_128"]
    for name in ("num_texts", "corpus_fingerprint", "tokenizer_fingerprint", "classes"):
        document.write_text(json.dumps({key: value for key, value in metadata.items() if key != name}))
        with pytest.raises(TableError, match=name):
            TokenCounts.load(tmp_path)


def test_counts_cannot_be_changed(tokenizer: PreTrainedTokenizerBase) -> None:
    counts = count_tokens(tokenizer, TEXTS)
    with pytest.raises(ValueError, match="read-only"):
        counts.occurrences[0] = 1


# --- real data ---


@pytest.mark.data
def test_sst2_is_counted_completely_and_follows_zipf(tokenizer: PreTrainedTokenizerBase, data_dir: Path) -> None:
    files = [data_dir / "SST-2" / f"{split}.jsonl.gz" for split in ("train", "dev")]
    parts = [count_tokens(tokenizer, file) for file in files]
    whole = count_tokens(tokenizer, read_texts(files))
    assert parts[1] + parts[0] == whole
    assert [part.num_texts for part in parts] == [8544, 1101]
    texts = " ".join(read_texts(files)).lower().split()
    for word in ("film", "story", "great"):
        assert whole.occurrences[tokenizer.convert_tokens_to_ids(word)] >= texts.count(word) > 100
