"""Any supported encoder under a BART decoder: the shape of CPT, a deep pretrained encoder and a shallow decoder.

The models are BART's own classes with another encoder, as CPT's are: labels, cache, `generate` and `Seq2SeqTrainer` are
transformers' without a line of ours. Its `EncoderDecoderModel` would not share word embeddings between the two sides
once they are saved, and would wrap the decoder in a causal model. `hashee.build_seq2seq` builds them.
"""

# The constructors of transformers carry no annotations.
# mypy: allow-untyped-calls

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    BartPreTrainedModel,
    BertModel,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import Seq2SeqModelOutput
from transformers.models.bart.modeling_bart import BartDecoder
from transformers.utils.generic import can_return_tuple

from hashee.cost.macs import EncoderShape
from hashee.engine.adapter import Adapter
from hashee.engine.block import Block
from hashee.errors import CheckpointError, UnsupportedModel
from hashee.families.bart import BartDecoderAdapter

__all__ = ["EncoderBartAdapter", "EncoderBartConfig", "EncoderBartForConditionalGeneration", "EncoderBartModel"]


class EncoderBartConfig(BartConfig):
    """BART's configuration, whose fields describe the decoder, and the whole configuration of the encoder.

    pretrained_encoder: the encoder's config as a dictionary, with its `model_type`. `d_model` is the encoder's width,
    and `encoder_layers`, `encoder_attention_heads` and `encoder_ffn_dim` repeat its sizes.
    """

    model_type = "encoder-bart"

    d_model: int = 1024
    pretrained_encoder: dict | None = None  # type: ignore[type-arg]  # transformers checks values against annotations

    def for_encoder(self) -> PreTrainedConfig:
        """Return the configuration of the encoder, for the vocabulary of the whole model."""
        fields = dict(self.pretrained_encoder or {})
        if not isinstance(fields.get("model_type"), str):
            raise CheckpointError("an encoder-bart config needs the config of its encoder; use hashee.build_seq2seq")
        config: PreTrainedConfig = AutoConfig.for_model(fields.pop("model_type"), **fields)
        config.vocab_size = self.vocab_size
        if self._attn_implementation == "eager":
            # Every family has this one; what else there is each encoder knows for itself.
            config._attn_implementation = "eager"
        config.output_attentions, config.output_hidden_states = self.output_attentions, self.output_hidden_states
        if getattr(self, "hashee", None) is not None:
            # ALBERT deals its layers out to groups by the depth that it was trained with.
            config.hashee = self.hashee
        return config


def new_encoder(config: PreTrainedConfig) -> Any:
    """Return an encoder without pooler, by the adapter of its family."""
    encoder_class = inner_adapter(config).encoder_class
    has_pooler = "add_pooling_layer" in signature(encoder_class.__init__).parameters
    return encoder_class(config, **({"add_pooling_layer": False} if has_pooler else {}))


def inner_adapter(config: Any) -> Adapter:
    """Return the adapter of the encoder with this config."""
    # The registry imports this module.
    from hashee.families.adapters import adapter_for  # noqa: PLC0415

    return adapter_for(config)


class EncoderBartModel(BartModel):
    """Encoder and decoder, which share their word embeddings if those of the encoder are as wide as its states."""

    config: EncoderBartConfig

    def __init__(self, config: EncoderBartConfig) -> None:
        # Not BartModel's constructor, which would build BART's encoder.
        BartPreTrainedModel.__init__(self, config)
        self.shared: Any = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder: Any = new_encoder(config.for_encoder())
        self.decoder = BartDecoder(config)
        self._tied_weights_keys = {"decoder.embed_tokens.weight": "shared.weight"}
        name = self._shared_embeddings()
        if name is not None:
            self._tied_weights_keys[f"encoder.{name}.weight"] = "shared.weight"
        self.post_init()

    def _shared_embeddings(self) -> str | None:
        """Return where the encoder has the word embeddings that it shares with the decoder; None: it has its own."""
        words = self.encoder.get_input_embeddings()
        # Projected embeddings (ALBERT, ELECTRA) are narrower, and scaled ones would be scaled in the decoder as well.
        if words.embedding_dim != self.config.d_model or getattr(words, "embed_scale", 1.0) != 1.0:
            return None
        name: str = next(name for name, module in self.encoder.named_modules() if module is words)
        return name

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Give encoder and decoder the weight of one embedding module."""
        self.shared = value
        sharing: list[Any] = [self.decoder.embed_tokens]
        if self._shared_embeddings() is not None:
            sharing.append(self.encoder.get_input_embeddings())
        for embeddings in sharing:
            embeddings.weight, embeddings.num_embeddings = self.shared.weight, self.shared.num_embeddings

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary, of an encoder with embeddings of its own as well."""
        embeddings: nn.Embedding = super().resize_token_embeddings(*args, **kwargs)
        if self._shared_embeddings() is None:
            self.encoder.resize_token_embeddings(embeddings.num_embeddings)
        return embeddings

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        *,
        inputs_embeds: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> Seq2SeqModelOutput:
        """Encode the source and decode the target; `token_type_ids` reach an encoder that has token types.

        input_ids: (batch, tokens); decoder_input_ids: (batch, targets), by default the source shifted right.
        Returns last_hidden_state: (batch, targets, width) and encoder_last_hidden_state: (batch, tokens, width).
        """
        if encoder_outputs is None:
            recorded = {name: kwargs[name] for name in ("output_attentions", "output_hidden_states") if name in kwargs}
            types = {"token_type_ids": token_type_ids} if inner_adapter(self.encoder.config).token_types else {}
            encoder_outputs = self.encoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                inputs_embeds=inputs_embeds,
                **types,
                **recorded,
            )
        outputs: Seq2SeqModelOutput = super().forward(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            return_dict=True,
            **kwargs,
        )
        return outputs


class EncoderBartForConditionalGeneration(BartForConditionalGeneration):
    """Encoder, decoder and a language-model head over the decoder's word embeddings.

    input_ids: (batch, tokens); labels: (batch, targets). Returns logits: (batch, targets, vocabulary).
    """

    config: EncoderBartConfig

    def __init__(self, config: EncoderBartConfig) -> None:
        BartPreTrainedModel.__init__(self, config)
        self.model = EncoderBartModel(config)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary, of an encoder with embeddings of its own as well."""
        embeddings: nn.Embedding = super().resize_token_embeddings(*args, **kwargs)
        encoder = self.model.encoder
        if encoder.get_input_embeddings().num_embeddings != embeddings.num_embeddings:
            encoder.resize_token_embeddings(embeddings.num_embeddings)
        return embeddings

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does. inputs: (batch, tokens); returns (batch, targets)."""
        if not inner_adapter(self.model.encoder.config).token_types:
            kwargs.pop("token_type_ids", None)
        return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]  # transformers types self by a protocol


def register() -> None:
    """Let the Auto classes of transformers find the models by their type."""
    AutoTokenizer.register(EncoderBartConfig, fast_tokenizer_class=PreTrainedTokenizerFast, exist_ok=True)
    AutoModel.register(EncoderBartConfig, EncoderBartModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(EncoderBartConfig, EncoderBartForConditionalGeneration, exist_ok=True)
    # Last, because another thread that reads a config must find its model registered.
    AutoConfig.register(EncoderBartConfig.model_type, EncoderBartConfig, exist_ok=True)


register()


class EncoderBartAdapter(Adapter):
    model_type = "encoder-bart"
    config_class = EncoderBartConfig
    # Where there is no model to look at; `encoder_in` finds the encoder of any family.
    encoder_class = BertModel
    heads_on_first_row = ()

    def encoder_in(self, model: Module) -> tuple[str, Module] | None:
        for name, module in model.named_modules():
            if isinstance(module, EncoderBartModel):
                return f"{name}.encoder".removeprefix("."), module.encoder
        return None

    def layers(self, encoder: Any) -> list[Module]:
        return inner_adapter(encoder.config).layers(encoder)

    def exit_layer(self, encoder: Any, index: int) -> int:
        return inner_adapter(encoder.config).exit_layer(encoder, index)

    def blocks(self, encoder: Any) -> Iterator[Block]:
        return inner_adapter(encoder.config).blocks(encoder)

    def block(self, layer: Any, number: int) -> Block:
        raise UnsupportedModel(f"a {type(layer).__name__} alone does not tell its family; ask for all blocks")

    def keep_first_layers(self, config: Any, number: int) -> None:
        inner = config.for_encoder()
        inner_adapter(inner).keep_first_layers(inner, number)
        fields = inner.to_dict()
        fields.pop("hashee", None)
        config.encoder_layers, config.pretrained_encoder = number, fields

    def max_length(self, config: Any) -> int:
        inner = config.for_encoder()
        return inner_adapter(inner).max_length(inner)

    def shape(self, config: Any) -> EncoderShape:
        inner = config.for_encoder()
        return inner_adapter(inner).shape(inner)


class EncoderBartDecoderAdapter(BartDecoderAdapter):
    model_type = "encoder-bart"
    config_class = EncoderBartConfig
