"""A tokenizer is recognised by its tokens, not by its settings."""

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hashee.errors import TableError
from hashee.tables.vocabulary import Vocabulary, extends, special_ids, tokenizer_fingerprint, vocabulary_size


def word_level(vocabulary: dict[str, int]) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="a")))


def test_every_special_token_is_found(own_tokenizer: PreTrainedTokenizerBase) -> None:
    assert special_ids(own_tokenizer) == (0, 1, 2, 3, 4, 5)
    own_tokenizer.add_tokens(["[LATE]"], special_tokens=True)
    own_tokenizer.add_tokens(["ordinary"])
    assert special_ids(own_tokenizer) == (0, 1, 2, 3, 4, 5, len(own_tokenizer) - 2)


def test_fingerprint_ignores_truncation_and_padding(own_tokenizer: PreTrainedTokenizerBase) -> None:
    before = tokenizer_fingerprint(own_tokenizer)
    own_tokenizer(["a", "a cat sat"], truncation=True, padding=True, max_length=3)
    assert tokenizer_fingerprint(own_tokenizer) == before


def test_fingerprint_tells_vocabularies_apart() -> None:
    fingerprints = {
        tokenizer_fingerprint(word_level(vocabulary))
        for vocabulary in ({"a": 0, "b": 1}, {"a": 1, "b": 0}, {"a": 0, "c": 1}, {"a": 0, "b": 2}, {"a": 0})
    }
    assert len(fingerprints) == 5


def test_a_tokenizer_with_added_tokens_extends_the_original(own_tokenizer: PreTrainedTokenizerBase) -> None:
    original = tokenizer_fingerprint(own_tokenizer)
    own_tokenizer.add_tokens(["zork", "grue"])
    assert tokenizer_fingerprint(own_tokenizer) != original
    assert extends(own_tokenizer, original)
    assert not extends(word_level({"a": 0, "b": 1}), original)


def test_ids_beyond_the_number_of_tokens_are_covered() -> None:
    assert vocabulary_size(word_level({"a": 0, "b": 9})) == 10


def test_vocabulary_makes_room_for_spare_rows_only(tokenizer: PreTrainedTokenizerBase) -> None:
    assert Vocabulary.of(tokenizer, 100).size == 100
    with pytest.raises(TableError, match="vocab_size=5 is smaller"):
        Vocabulary.of(tokenizer, 5)
    with pytest.raises(TableError, match="0 tokens"):
        Vocabulary.of(0)
