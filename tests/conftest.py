"""Fixtures that all tests share: a small real tokenizer, and the folder of real data."""

import os
import signal
from pathlib import Path

# Shells start what runs in the background with Ctrl-C ignored, which would be passed on to every process under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Two workers on two cores: threads that spin while they wait, in processes under test too, would take the other's core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Before transformers reads it: nothing here may ask the Hub, and a look-up that fails is retried for a long time.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedTokenizerBase

from made_up_texts import make_word_tokenizer
from small_tokenizer import make_tokenizer

# Two workers on two cores: threads of their own would only fight each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# The first example of a property pays for imports and caches, which says nothing about the code under test.
settings.register_profile("hashee", deadline=None)
settings.load_profile("hashee")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    """A small WordPiece tokenizer; shared, so never change it."""
    return make_tokenizer()


@pytest.fixture
def own_tokenizer() -> PreTrainedTokenizerBase:
    """The same tokenizer for one test alone, which may change it."""
    return make_tokenizer()


@pytest.fixture(scope="session")
def words() -> PreTrainedTokenizerBase:
    """A tokenizer of whole words, for made-up texts; shared, so never change it."""
    return make_word_tokenizer()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real datasets."""
    folder = os.environ.get("HASHEE_DATA")
    if not folder:
        pytest.skip("HASHEE_DATA is not set; point it to the folder of datasets to run this test")
    return Path(folder)
