"""Texts of made-up words with the frequencies of real ones, a tokenizer for them and what is counted on them."""

from collections.abc import Callable

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hashee.tables.counting import CorpusInfo, TokenCounts, count_tokens
from hashee.tables.measuring import Importance
from hashee.tables.table import ExitTable, tokenizer_fingerprint

WORDS = 4000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CONFIG = BertConfig(
    vocab_size=WORDS + len(SPECIAL) + 4,
    hidden_size=96,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=384,
)
CLS, SEP = 2, 3
Ids = list[list[int]]
Build = Callable[..., ExitTable]
WAYS = ("importance", "frequency", "mutual information", "clusters", "random")


def make_word_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer that knows 4,000 words, w0 to w3999, and nothing of their parts."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *(f"w{word}" for word in range(WORDS))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


def make_texts(count: int, seed: int) -> Ids:
    """Return texts with the frequencies of words in real text: the first word is one in nine, most are rare."""
    random = np.random.default_rng(seed)
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    return [
        [CLS, *(random.choice(WORDS, size=random.integers(4, 30), p=shares) + len(SPECIAL)).tolist(), SEP]
        for _ in range(count)
    ]


TRAIN = make_texts(800, seed=0)
NEW = make_texts(400, seed=1)


def counts_of(words: PreTrainedTokenizerBase, ids: Ids) -> TokenCounts:
    """Return how often each word is in texts, with made-up labels."""
    texts = [" ".join(words.convert_ids_to_tokens(text[1:-1])) for text in ids]
    return count_tokens(words, texts, [sum(text) % 2 for text in ids])


def made_up_importance(words: PreTrainedTokenizerBase, ids: Ids, coarse: bool = False) -> Importance:
    """Return effects that are exponential for each type, or the same few for all types."""
    random = np.random.default_rng(2)
    counts = np.bincount([token for text in ids for token in text], minlength=CONFIG.vocab_size)
    worth = random.exponential(size=(CONFIG.vocab_size, 6))
    if coarse:
        worth = np.ones_like(worth) * (1 + np.arange(CONFIG.vocab_size) % 2)[:, None]
    sums = worth * counts[:, None]
    corpus = CorpusInfo(len(ids), int(counts.sum()), "0" * 64)
    return Importance(sums, None, counts, "loss", corpus, tokenizer_fingerprint(words))


def builders(words: PreTrainedTokenizerBase) -> dict[str, Build]:
    """Return every way to build a table for a budget."""
    counts, importance = counts_of(words, TRAIN), made_up_importance(words, TRAIN)
    matrix = torch.randn(CONFIG.vocab_size, 8, generator=torch.Generator().manual_seed(0))
    size = CONFIG.vocab_size
    return {
        "importance": lambda budget, **o: ExitTable.from_importance(words, importance, budget, **o),
        "frequency": lambda budget, **o: ExitTable.by_frequency(words, counts, 6, budget=budget, vocab_size=size, **o),
        "mutual information": lambda budget, **o: ExitTable.by_mutual_information(
            words, counts, None, 6, budget=budget, vocab_size=size, **o
        ),
        "clusters": lambda budget, **o: ExitTable.by_clusters(words, matrix, 6, budget=budget, **o),
        "random": lambda budget, **o: ExitTable.at_random(words, 6, budget=budget, vocab_size=size, **o),
    }
