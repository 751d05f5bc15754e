"""A tiny model of every family, with every parameter randomised, and batches with every kind of mask."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BertConfig,
    CamembertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    EuroBertConfig,
    LlamaConfig,
    MarianConfig,
    MBartConfig,
    ModernBertConfig,
    MPNetConfig,
    NomicBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaPreLayerNormConfig,
    T5Config,
    XLMRobertaConfig,
)

import hashee
from hashee.families.adapters import adapter_for
from hashee.families.cpt import CptConfig
from hashee.families.elasticbert import ElasticBertConfig
from hashee.families.encoder_bart import EncoderBartConfig

VOCABULARY = 97
LAYERS = 4
FIRST_WORD = 5
"""Ids below are special tokens in one family or another."""

BERT_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
}
BART_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 24,
    "encoder_layers": LAYERS,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
}
CONFIGS: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    # Two groups of two inner layers: the depth is dealt out to the groups, and a layer is more than one block.
    "albert": (AlbertConfig, BERT_LIKE | {"embedding_size": 16, "num_hidden_groups": 2, "inner_group_num": 2}),
    "bart": (BartConfig, BART_LIKE | {"scale_embedding": True}),
    "bert": (BertConfig, BERT_LIKE),
    "camembert": (CamembertConfig, BERT_LIKE),
    "cpt": (
        CptConfig,
        BART_LIKE
        | {"understanding_layers": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 2, "forced_eos_token_id": 2},
    ),
    # Four buckets to either side: distances beyond two columns share them. Embeddings narrower than the states.
    "deberta-v2": (
        DebertaV2Config,
        BERT_LIKE
        | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4, "embedding_size": 16}
        | {"norm_rel_ebd": "layer_norm", "type_vocab_size": 2},
    ),
    "distilbert": (
        DistilBertConfig,
        {
            "vocab_size": VOCABULARY,
            "dim": 24,
            "n_layers": LAYERS,
            "n_heads": 3,
            "hidden_dim": 40,
            "max_position_embeddings": 40,
        },
    ),
    "elasticbert": (ElasticBertConfig, BERT_LIKE),
    "electra": (ElectraConfig, BERT_LIKE | {"embedding_size": 16}),
    "encoder-bart": (
        EncoderBartConfig,
        BART_LIKE
        | {"pretrained_encoder": BERT_LIKE | {"model_type": "bert"}, "pad_token_id": 0, "bos_token_id": 1}
        | {"eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": 2},
    ),
    # Four heads of queries on two of keys and values, wider together than the states; the first position classifies.
    "eurobert": (
        EuroBertConfig,
        BERT_LIKE
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "classifier_pooling": "bos"}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3}
        | {"tie_word_embeddings": True},
    ),
    "marian": (
        MarianConfig,
        BART_LIKE
        | {"scale_embedding": True, "pad_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 1, "forced_eos_token_id": 2},
    ),
    "mbart": (MBartConfig, BART_LIKE),
    # A window of four columns on either side, in layers 2 and 3.
    "modernbert": (
        ModernBertConfig,
        BERT_LIKE
        | {"local_attention": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"cls_token_id": 1, "sep_token_id": 2},
    ),
    "mpnet": (MPNetConfig, BERT_LIKE),
    "nomic_bert": (NomicBertConfig, BERT_LIKE),
    "roberta": (RobertaConfig, BERT_LIKE),
    "roberta-prelayernorm": (RobertaPreLayerNormConfig, BERT_LIKE),
    # Three heads of six columns: all of them together are narrower than the states.
    "t5": (
        T5Config,
        {
            "vocab_size": VOCABULARY,
            "d_model": 24,
            "d_kv": 6,
            "d_ff": 40,
            "num_layers": LAYERS,
            "num_decoder_layers": 2,
            "num_heads": 3,
            "feed_forward_proj": "gated-gelu",
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
        },
    ),
    "xlm-roberta": (XLMRobertaConfig, BERT_LIKE),
}
if hasattr(transformers, "GteConfig"):  # not in the lowest version that hashee supports
    CONFIGS["gte"] = (transformers.GteConfig, BERT_LIKE | {"type_vocab_size": 2})
FAMILIES = sorted(CONFIGS)
# Four heads of queries on two of keys and values, wider together than the states.
LLAMA: dict[str, Any] = BERT_LIKE | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SEQ2SEQ = ("bart", "cpt", "encoder-bart", "marian", "mbart", "t5")
"""The families whose models write text."""


def make_config(family: str, **changes: Any) -> PreTrainedConfig:
    """Return the tiny config of a family."""
    config_class, fields = CONFIGS[family]
    if family == "encoder-bart":
        # What BART's config does not know is said of the encoder.
        inner = {name: changes.pop(name) for name in list(changes) if not hasattr(config_class, name)}
        changes["pretrained_encoder"] = fields["pretrained_encoder"] | inner
    return config_class(**(fields | changes))


def make_model(family: str, auto_class: Any = AutoModel, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Return a tiny dense model in eval mode in which no parameter has its initial value."""
    torch.manual_seed(seed)
    model = auto_class.from_config(make_config(family, **changes), attn_implementation="eager").eval()
    return randomise(model)


def make_writer(family: str, **changes: Any) -> Any:
    """Return a tiny dense model that writes text, whose decoder has as many layers as other models."""
    if family != "llama":
        return make_model(family, AutoModelForSeq2SeqLM, **({"decoder_layers": LAYERS} | changes))
    torch.manual_seed(0)
    config = LlamaConfig(**(LLAMA | changes))
    return randomise(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())


def randomise(model: Any) -> Any:
    """Give every parameter a random value, norms included: with initial values, swapped norms would pass."""
    # T5 neither scales its scores nor norms its sums, so larger weights would leave few digits to compare.
    spread = 0.15 if getattr(getattr(model, "config", None), "model_type", "") == "t5" else 0.25
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue  # Marian's sinusoids, which are not saved
            is_norm = name.lower().endswith(("norm.weight", "norm_embedding.weight", "layernorm.weight"))
            parameter.normal_(1.0 if is_norm else 0.0, spread)
    return model


def targets(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """Return what a model that writes text must be given beside the source; BART and CPT make it up from that."""
    needed = ("MarianModel", "MarianMTModel", "T5Model", "T5ForConditionalGeneration")
    return {"decoder_input_ids": ids} if type(model).__name__.removeprefix("Hashee") in needed else {}


def encoder_of(model: Any) -> Any:
    """Return the part of a dense or converted model that turns ids into hidden states."""
    adapter = adapter_for(model.config)
    return adapter.encoder_in(model)[1]


def make_ids(batch: int = 5, length: int = 12, seed: int = 0) -> Tensor:
    """Return random word ids: (batch, length)."""
    return torch.randint(FIRST_WORD, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def make_mask(kind: str, batch: int = 5, length: int = 12) -> Tensor:
    """Return a 0/1 mask with padding on the right, on the left, or with holes: (batch, length)."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if kind == "holes":
        mask = (torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) < 0.6).long()
        mask[:, 3] = 1
        return mask
    for row in range(1, batch):
        padding = min(2 * row + 1, length - 1)
        mask[row, length - padding :] = 0
    return mask.flip(1) if kind == "left" else mask


def padded(ids: Tensor, mask: Tensor, config: Any) -> Tensor:
    """Put the family's padding id where the mask is zero."""
    return ids.masked_fill(mask == 0, config.pad_token_id or 0)


def make_exits(kind: str, layers: int = LAYERS, seed: int = 2) -> Tensor:
    """Return an exit layer for every token id: at the last layer, at random from 1, or at random from 0."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "full depth":
        return torch.full((VOCABULARY,), layers)
    lowest = 0 if kind == "exits at 0" else 1
    return torch.randint(lowest, layers + 1, (VOCABULARY,), generator=generator)


def converted(model: Any, exits: Tensor, layers: int = LAYERS) -> Any:
    """Convert a model with an explicit table; it shares its parameters with the dense one."""
    return hashee.convert(model, hashee.ExitTable.from_tensor(exits, num_layers=layers))
