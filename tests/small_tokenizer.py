"""A small real tokenizer, made in memory."""

import string

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

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
