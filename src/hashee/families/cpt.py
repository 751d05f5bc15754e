"""CPT: a deep BERT encoder and a shallow BART decoder over the same word embeddings.

The encoder's last layers are the "understanding decoder": classification reads them, generation does not. The
generating decoder attends to the layers below, the "shared encoder". The authors' checkpoints (fnlp/cpt-base, -large)
hold a BertModel at `encoder.`, BART's decoder at `decoder.`, the embeddings at `shared.weight`, and BART's config.json.
"""

# The constructors of transformers carry no annotations.
# mypy: allow-untyped-calls

import copy
import dataclasses
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    BartPreTrainedModel,
    BertConfig,
    BertModel,
    BertTokenizer,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqModelOutput, SequenceClassifierOutput
from transformers.models.bart.modeling_bart import BartClassificationHead, BartDecoder
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from hashee.cost.macs import EncoderShape
from hashee.errors import CheckpointError, UnsupportedModel
from hashee.families.bart import BartAdapter, BartDecoderAdapter
from hashee.families.bert import BertAdapter
from hashee.families.elasticbert import layers_above

__all__ = [
    "CptAdapter",
    "CptConfig",
    "CptForConditionalGeneration",
    "CptForSequenceClassification",
    "CptModel",
    "load_cpt",
]


class CptConfig(BartConfig):
    """BART's configuration with the numbers of CPT-base, and fields that the authors' BART-like file lacks.

    encoder_layers: shared and understanding layers together; decoder_layers: the generating decoder.
    understanding_layers: the last encoder layers, which generation does not read; None for as many as decoder layers.
    encoder_positions: positions the encoder can embed; None for as many as the decoder, `max_position_embeddings`.
    cls_mode: what a classifier reads; 1, the encoder, is the only mode supported here.
    """

    model_type = "cpt"

    vocab_size: int = 51271
    d_model: int = 768
    encoder_layers: int = 12
    encoder_ffn_dim: int = 3072
    encoder_attention_heads: int = 12
    decoder_layers: int = 2
    decoder_ffn_dim: int = 3072
    decoder_attention_heads: int = 12
    attention_dropout: float | int = 0.1
    activation_dropout: float | int = 0.1
    classifier_dropout: float | int = 0.0
    pad_token_id: int | None = 0
    bos_token_id: int | None = 101
    eos_token_id: int | list[int] | None = 102
    decoder_start_token_id: int | None = 102
    forced_eos_token_id: int | list[int] | None = 102
    understanding_layers: int | None = None
    encoder_positions: int | None = None
    cls_mode: int = 1

    @property
    def shared_layers(self) -> int:
        """Return the number of encoder layers below the generating decoder."""
        above = self.decoder_layers if self.understanding_layers is None else self.understanding_layers
        if above > self.encoder_layers:
            raise UnsupportedModel(
                f"{self.encoder_layers} encoder layers cannot hold {above} understanding layers; "
                "ask for more encoder_layers or set understanding_layers"
            )
        return self.encoder_layers - above

    def for_generation(self) -> "CptConfig":
        """Return this configuration without the understanding layers."""
        config = copy.deepcopy(self)
        config.encoder_layers, config.understanding_layers = self.shared_layers, 0
        return config

    def for_encoder(self) -> BertConfig:
        """Return the configuration of the BERT encoder, by the authors' rules."""
        config = BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.d_model,
            num_hidden_layers=self.encoder_layers,
            num_attention_heads=self.encoder_attention_heads,
            intermediate_size=self.encoder_ffn_dim,
            # As in the authors' code: BART's rate inside the feed-forward is BERT's rate for all hidden states.
            hidden_dropout_prob=self.activation_dropout,
            attention_probs_dropout_prob=self.attention_dropout,
            max_position_embeddings=self.encoder_positions or self.max_position_embeddings,
            pad_token_id=self.pad_token_id,
        )
        config._attn_implementation = self._attn_implementation
        config.output_attentions, config.output_hidden_states = self.output_attentions, self.output_hidden_states
        return config


def one_segment(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor | None:
    """Return CPT's token types, which are always ones, as in pre-training, whatever the tokenizer returns.

    input_ids: (batch, tokens) or inputs_embeds: (batch, tokens, width). Returns (batch, tokens).
    """
    inputs = inputs_embeds if input_ids is None else input_ids
    return None if inputs is None else torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)


class CptModel(BartModel):
    """Encoder and decoder; the decoder attends to the state after `config.shared_layers` encoder layers.

    The encoder is a plain BertModel: direct calls must pass `token_type_ids` of one, as `encode` does.
    """

    config: CptConfig
    _tied_weights_keys = {
        "encoder.embeddings.word_embeddings.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: CptConfig) -> None:
        # Not BartModel's constructor, which would build BART's encoder.
        BartPreTrainedModel.__init__(self, config)
        self.shared: Any = nn.Embedding(config.vocab_size, config.d_model, config.pad_token_id)
        self.encoder: Any = BertModel(config.for_encoder(), add_pooling_layer=False)
        self.decoder = BartDecoder(config)
        self._keys_to_ignore_on_load_unexpected = [
            layers_above("encoder.encoder.layer", config.encoder_layers),
            layers_above("decoder.layers", config.decoder_layers),
        ]
        self.post_init()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Give encoder and decoder the same embedding module."""
        self.shared = value
        self.encoder.set_input_embeddings(value)
        self.decoder.embed_tokens = value  # type: ignore[assignment]

    def encode(self, input_ids: Tensor | None, inputs_embeds: Tensor | None = None, **kwargs: Any) -> Any:
        """Run the encoder on token types of one. input_ids: (batch, tokens); states: (batch, tokens, width)."""
        kwargs["token_type_ids"] = one_segment(input_ids, inputs_embeds)
        return self.encoder(input_ids=input_ids, inputs_embeds=inputs_embeds, **kwargs)

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
        """Encode the source and decode the target; the `token_type_ids` of a tokenizer are not read.

        input_ids: (batch, tokens); decoder_input_ids: (batch, targets), by default the source shifted right.
        Returns last_hidden_state: (batch, targets, width) and encoder_last_hidden_state: (batch, tokens, width).
        """
        depth, shared = self.config.encoder_layers, self.config.shared_layers
        if encoder_outputs is None:
            recorded = {name: kwargs[name] for name in ("output_attentions", "output_hidden_states") if name in kwargs}
            if shared != depth:
                recorded["output_hidden_states"] = True
            encoder_outputs = self.encode(input_ids, inputs_embeds, attention_mask=attention_mask, **recorded)
        states: Any = getattr(encoder_outputs, "hidden_states", None)
        if shared != depth and states is None:
            raise ValueError(f"the decoder reads layer {shared} of {depth}: encoder_outputs needs its hidden_states")
        shared_outputs = BaseModelOutput(
            last_hidden_state=encoder_outputs[0] if shared == depth else states[shared],
            hidden_states=states,
            attentions=getattr(encoder_outputs, "attentions", None),
        )
        outputs: Seq2SeqModelOutput = super().forward(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            shared_outputs,
            return_dict=True,
            **kwargs,
        )
        outputs.encoder_last_hidden_state = encoder_outputs[0]
        return outputs


class CptForConditionalGeneration(BartForConditionalGeneration):
    """Shared encoder, decoder and language-model head; the understanding layers, never read here, are not built.

    input_ids: (batch, tokens); labels: (batch, targets). Returns logits: (batch, targets, vocabulary).
    """

    config: CptConfig

    def __init__(self, config: CptConfig) -> None:
        BartPreTrainedModel.__init__(self, config.for_generation())
        self.model = CptModel(self.config)
        self.register_buffer("final_logits_bias", torch.zeros(1, config.vocab_size))
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as transformers does, on token types of one. inputs: (batch, tokens); returns (batch, targets)."""
        source = kwargs.get("input_ids") if inputs is None else inputs
        # generate() calls the encoder itself, not `encode`.
        types = one_segment(source, kwargs.get("inputs_embeds"))
        kwargs |= {} if types is None else {"token_type_ids": types}
        return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]  # transformers types self by a protocol


class CptForSequenceClassification(BartPreTrainedModel):
    """A classifier on the first token of the whole encoder, the authors' `cls_mode` 1; the decoder does not run."""

    config: CptConfig

    def __init__(self, config: CptConfig) -> None:
        super().__init__(config)
        if config.cls_mode != 1:
            raise UnsupportedModel(f"cls_mode {config.cls_mode} classifies with the decoder; only cls_mode 1 is built")
        self.model = CptModel(config)
        labels = config.num_labels or 0
        self.cls_head = BartClassificationHead(config.d_model, config.d_model, labels, config.classifier_dropout)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """input_ids: (batch, tokens); labels: (batch,). Returns logits: (batch, labels)."""
        encoded = self.model.encode(input_ids, inputs_embeds, attention_mask=attention_mask, **kwargs)
        logits = self.cls_head(encoded.last_hidden_state[:, 0])
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states, encoded.attentions)


def load_cpt(path: str | Path, **overrides: Any) -> CptForConditionalGeneration:
    """Load CPT for generation from the authors' folder or one of `save_pretrained`; raise if weights are missing.

    overrides: fields of CptConfig and options of `from_pretrained`.
    """
    try:
        config, options = read_config(path, overrides)
        model, report = load_with_report(path, config, options)
        for name, stored, _ in report["mismatched_keys"]:
            # The authors' first release has 512 encoder positions where its config.json says 1024.
            if name.endswith("encoder.embeddings.position_embeddings.weight"):
                config.encoder_positions = stored[0]
                model, report = load_with_report(path, config, options)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read as CPT: {str(error).splitlines()[0]}") from error
    wrong = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    if wrong:
        raise CheckpointError(
            f"{path} is no complete CPT checkpoint: {len(wrong)} weights are missing or of another shape, "
            f"the first is {wrong[0]}; take all files of fnlp/cpt-base, fnlp/cpt-large or save_pretrained"
        )
    return model


def read_config(path: str | Path, overrides: dict[str, Any]) -> tuple[CptConfig, dict[str, Any]]:
    """Return the configuration in a folder with `overrides` applied, and the overrides that are not its fields."""
    stored, _ = CptConfig.get_config_dict(path)
    model_type = stored.pop("model_type", None)
    if model_type not in ("bart", CptConfig.model_type):
        raise CheckpointError(
            f"{path} holds a model of type {model_type}, not CPT (cpt, or bart as the authors wrote it)"
        )
    if "encoder_layers" in stored:
        # BART files repeat the depth under this name; for the authors `encoder_layers` decides.
        stored.pop("num_hidden_layers", None)
    return CptConfig.from_dict(stored, return_unused_kwargs=True, **overrides)  # type: ignore[return-value]


def load_with_report(
    path: str | Path, config: CptConfig, options: dict[str, Any]
) -> tuple[CptForConditionalGeneration, dict[str, Any]]:
    """Return the model and what was missing, without the table that transformers prints: it becomes an error."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return CptForConditionalGeneration.from_pretrained(  # type: ignore[return-value]
            path, config=config, ignore_mismatched_sizes=True, output_loading_info=True, **options
        )
    finally:
        logging.set_verbosity(verbosity)


def register() -> None:
    """Let the Auto classes of transformers find CPT by its model type."""
    AutoTokenizer.register(CptConfig, BertTokenizer, exist_ok=True)
    AutoModel.register(CptConfig, CptModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(CptConfig, CptForConditionalGeneration, exist_ok=True)
    AutoModelForSequenceClassification.register(CptConfig, CptForSequenceClassification, exist_ok=True)
    # Last, because another thread that reads a config must find its model registered.
    AutoConfig.register(CptConfig.model_type, CptConfig, exist_ok=True)


register()


class CptAdapter(BertAdapter):
    model_type = "cpt"
    config_class = CptConfig
    encoder_class = BertModel
    onnx = None  # the exporter has no decoder

    def shape(self, config: Any) -> EncoderShape:
        return dataclasses.replace(BartAdapter().shape(config), looked_up=True)


class CptDecoderAdapter(BartDecoderAdapter):
    model_type = "cpt"
    config_class = CptConfig

    def keep_first_layers(self, config: Any, number: int) -> None:
        # By default there are as many understanding layers in the encoder as layers in the decoder.
        if config.understanding_layers is None:
            config.understanding_layers = config.decoder_layers
        super().keep_first_layers(config, number)
