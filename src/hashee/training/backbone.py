"""Opening what a fit starts from: a dense model of a known family with a head for the task, and its tokenizer.

For tasks whose models write text it is a seq2seq model, or an encoder that gets a new decoder.
"""

import copy
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from hashee.data import Task
from hashee.data.summaries import SummaryTokenizer
from hashee.data.task_types import TASK_TYPES, type_of
from hashee.data.tokenized import ExampleTokenizer
from hashee.data.writing import Writing
from hashee.embedded import minilm_folder
from hashee.engine.adapter import Adapter
from hashee.engine.decoder_adapter import DecoderAdapter
from hashee.errors import InputError, UnsupportedModel
from hashee.families.adapters import adapter_for, decoder_adapter_for
from hashee.hf.building import build_seq2seq
from hashee.hf.convert import convert
from hashee.hf.opening import open_config, open_dense, open_tokenizer
from hashee.tables.table import ExitTable
from hashee.training.settings import EMBEDDED


@dataclass(frozen=True)
class Backbone:
    """A dense model on disk or on the Hub, of which the first `depth` layers are used for a task."""

    source: str
    task: Task
    tokenizer: Any
    config: Any
    """The whole model's, at its full depth."""
    depth: int

    @property
    def adapter(self) -> Adapter:
        """What hashee knows of the model's family."""
        return adapter_for(self.config)

    @property
    def layers(self) -> int:
        """Layers of the whole model."""
        return self.adapter.shape(self.config).layers

    def encoder(self, max_length: int | None) -> ExampleTokenizer:
        """Return how texts are tokenized for this model."""
        longest = min(self.adapter.max_length(self.config), self.tokenizer.model_max_length)
        return ExampleTokenizer(
            self.task, self.tokenizer, min(longest, max_length or longest), self.adapter.token_types
        )

    def load(self, seed: int = 0, depth: int | None = None) -> Any:
        """Return the dense model at a depth (`self.depth`) with a head for the task; the seed draws a new head."""
        task_type = TASK_TYPES[self.task.kind]
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = depth or self.depth
        labels = self.task.labels or ("score",)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: number for number, label in enumerate(labels)}
        if task_type.problem_type is not None:
            config.problem_type = task_type.problem_type
        set_seed(seed)
        return open_dense(self.source, task_type.head, config=config, new_head=True)

    def has_head(self) -> bool:
        """Say whether the model on disk has a head for the very labels of the task."""
        labels = self.task.labels or ("score",)
        return (self.config.architectures or [""])[0].endswith("Classification") and (
            list(self.config.id2label.values()) == list(labels)
        )

    def packed(self, dense: Any) -> Any:
        """Return a dense model on the packed engine: the same maths without padding, the same parameters."""
        vocabulary = dense.get_input_embeddings().num_embeddings
        return convert(dense, ExitTable.never(vocabulary, adapter_for(dense.config).shape(dense.config).layers))


@dataclass(frozen=True)
class Seq2SeqBackbone(Backbone):
    """A seq2seq model, or an encoder under a decoder that is drawn anew."""

    new_decoder_layers: int | None = None
    """Layers of a new decoder; None if the model has its own."""
    writing: Writing = field(default_factory=Writing)
    """How fitted models write; it is saved with them."""

    def encoder(self, max_length: int | None) -> SummaryTokenizer:
        """Return how documents and summaries are tokenized for this model."""
        read = super().encoder(max_length)
        # A decoder that is built starts with the end of text.
        start = self.load().config.decoder_start_token_id if self.builds else self._start_id()
        longest = self.writing.max_new_tokens or self.adapter.max_length(self.config)
        return SummaryTokenizer(
            self.task, self.tokenizer, read.max_length, False, start, max_target_length=longest, writing=self.writing
        )

    @property
    def builds(self) -> bool:
        """Whether the decoder is drawn anew."""
        return self.new_decoder_layers is not None

    def _start_id(self) -> int:
        start = self.config.decoder_start_token_id
        if start is None:
            raise UnsupportedModel(f"the config in {self.source} has no decoder_start_token_id; set it there")
        return int(start)

    def load(self, seed: int = 0, depth: int | None = None, decoder_depth: int | None = None) -> Any:
        """Return the dense model at a depth of its encoder (`self.depth`); the seed draws a new decoder.

        decoder_depth: layers of the decoder that are kept, or drawn; default: all.
        """
        config = copy.deepcopy(self.config)
        self.adapter.keep_first_layers(config, depth or self.depth)
        set_seed(seed)
        if self.new_decoder_layers is None:
            if decoder_depth is not None:
                self.decoder_adapter.keep_first_layers(config, decoder_depth)
            model = open_dense(self.source, type_of(self.task).head, config=config)
            self.adapter.freeze_computed_(model)
        else:
            encoder = open_dense(self.source, config=config, new_head=True)
            model = build_seq2seq(encoder, decoder_depth or self.new_decoder_layers, self.tokenizer)
        # Whoever opens the folder writes as models were judged here.
        model.generation_config.update(**self.writing.options())
        return model

    @property
    def decoder_adapter(self) -> DecoderAdapter:
        """What hashee knows of the decoder of a model that has its own."""
        adapter = decoder_adapter_for(self.config)
        assert adapter is not None  # others are refused when they are opened
        return adapter

    @property
    def decoder_layers(self) -> int:
        """Layers of the whole decoder."""
        return self.new_decoder_layers or self.decoder_adapter.shape(self.config).layers

    def dense_config(self, config: Any) -> Any:
        """Return the config of the whole model, given that of one that was made from it."""
        return self._dense_config(config) if self.builds else self.config

    def _dense_config(self, config: Any) -> Any:
        whole = copy.deepcopy(config)
        adapter_for(whole).keep_first_layers(whole, self.layers)
        whole.decoder_layers = self.new_decoder_layers
        return whole

    def has_head(self) -> bool:
        """Say whether the model on disk writes text."""
        return not self.builds


@dataclass(frozen=True)
class Decoder:
    """What else must be known of a model that writes text."""

    layers: int = 2
    """Of a decoder that an encoder gets."""
    writing: Writing = field(default_factory=Writing)


def open_backbone(source: str, task: Task, depth: int | None, decoder: Decoder | None = None) -> Backbone:
    """Find a backbone and check that it can be fitted to the task at this depth; its weights are not read yet.

    decoder: for tasks whose models write text.
    """
    if source == EMBEDDED and not Path(source).exists():
        source = str(minilm_folder())
    config = open_config(source, "backbone")
    if getattr(config, "hashee", None) is not None:
        raise UnsupportedModel(f"the model in {source} has exits already; name the backbone that it was made from")
    full = adapter_for(config).shape(config).layers
    if depth is not None and depth > full:
        raise InputError(f"depth is {depth} but the backbone {source} has {full} layers; give at most {full}")
    if depth not in (None, full) and getattr(config, "num_hidden_groups", 1) > 1:
        raise UnsupportedModel(
            f"{source} deals its layers out to {config.num_hidden_groups} groups, so its first {depth} layers are no "
            f"model of their own; leave out depth"
        )
    parts = (source, task, open_tokenizer(source), config, depth or full)
    if not type_of(task).writes_text:
        return Backbone(*parts)
    decoder = decoder or Decoder()
    return _checked(Seq2SeqBackbone(*parts, None if config.is_encoder_decoder else decoder.layers, decoder.writing))


def _checked(backbone: Seq2SeqBackbone) -> Seq2SeqBackbone:
    """Refuse seq2seq models whose vocabularies do not fit, or whose decoders cannot be counted."""
    source, config = backbone.source, backbone.config
    of_decoder = getattr(config, "decoder_vocab_size", None) or config.vocab_size
    if of_decoder != config.vocab_size:
        raise UnsupportedModel(
            f"the encoder in {source} reads {config.vocab_size} tokens but its decoder writes {of_decoder}; one exit "
            f"table and one tokenizer are for both, so name a model with one vocabulary"
        )
    if len(backbone.tokenizer) > config.vocab_size:
        raise InputError(
            f"the tokenizer in {source} has {len(backbone.tokenizer)} tokens but the model embeds {config.vocab_size}; "
            f"put the model's own tokenizer into its folder"
        )
    if not backbone.builds and decoder_adapter_for(config) is None:
        raise UnsupportedModel(
            f"{config.model_type} models can be converted, but what their decoders cost cannot be counted; name "
            f"another backbone"
        )
    return backbone


def weights_fingerprint(model: Any) -> str:
    """Return the SHA-256 of all parameters with their names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"{name} {tuple(parameter.shape)} ".encode())
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
