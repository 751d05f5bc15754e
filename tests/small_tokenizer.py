"""Small real tokenizers, made in memory."""

import json
import string
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, RobertaTokenizer

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


def make_byte_level_tokenizer(**options: Any) -> RobertaTokenizer:
    """Return a new byte-level BPE tokenizer, RoBERTa's: every word above is one token after a space."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        show_progress=False,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=alphabet,
    )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.train_from_iterator([f" {word}" for word in WORDS], trainer)
    learnt = json.loads(backend.to_str())["model"]
    merges = [tuple(pair) for pair in learnt["merges"]]
    return RobertaTokenizer(vocab=learnt["vocab"], merges=merges, model_max_length=64, **options)
