"""Fixtures that all tests share: a small real tokenizer, and the folder of real data."""

import os
import string
from pathlib import Path

# Before transformers reads it: nothing here may ask the Hub, and a look-up that fails is retried for a long time.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# Two workers on two cores: threads of their own would only fight each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# The first example of a property pays for imports and caches, which says nothing about the code under test.
settings.register_profile("hashee", deadline=None)
settings.load_profile("hashee")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[ENT]"]
WORDS = ["the", "a", "of", "and", "film", "story", "good", "bad", "great", "dull", "plot", "actor", "never", "always"]
WORDS += ["cat", "dog", "sat", "mat", "on", "is"]
PIECES = [*string.ascii_lowercase[1:], *(f"##{letter}" for letter in string.ascii_lowercase), *".,!?"]


def make_tokenizer() -> PreTrainedTokenizerBase:
    """Return a new WordPiece tokenizer: 6 special tokens, 20 words, and letters for all other words."""
    vocabulary = {token: token_id for token_id, token in enumerate([*SPECIAL, *WORDS, *PIECES])}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        additional_special_tokens=["[ENT]"],
        model_max_length=64,
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    """A small WordPiece tokenizer; shared, so never change it."""
    return make_tokenizer()


@pytest.fixture
def own_tokenizer() -> PreTrainedTokenizerBase:
    """The same tokenizer for one test alone, which may change it."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real datasets."""
    folder = os.environ.get("HASHEE_DATA")
    if not folder:
        pytest.skip("HASHEE_DATA is not set; point it to the folder of datasets to run this test")
    return Path(folder)
