"""The two mixins that turn Hugging Face classes into ones with exits: encoders, and models around an encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from hashee.data.batching import Batching
from hashee.data.texts import Text
from hashee.engine.adapter import Adapter
from hashee.engine.decoder_adapter import DecoderAdapter
from hashee.engine.encoder import EncoderState, Reads, check_first_position, encode, read_batch, start
from hashee.engine.first_layer import FirstLayerCache
from hashee.engine.memory import align_
from hashee.engine.one_text import OneTextCache, run_one_text
from hashee.engine.relative_attention import DistanceCache
from hashee.errors import CheckpointError, HasheeError, UnsupportedModel, UnsupportedOption
from hashee.hf.explain import Explanation, explain
from hashee.hf.integrity import ENTRY, opened_with_checksums, save_with_checksums
from hashee.hf.loaded import check_loaded, install_resized
from hashee.hf.opener import name_opener
from hashee.hf.predict import Scorer, predict, predict_batch, run_in_torch
from hashee.hf.pretrained import read_tokenizer
from hashee.tables.table import ExitTable
from hashee.tables.tokenization import check_tokenization, tokenization_of

# The mixins are only ever combined with Hugging Face models (see hashee.hf.classes).
Host: Any = object

UNSET = -1
"""Exit layer of every token until a table is installed or loaded."""

REFUSED = {
    "output_attentions": "frozen tokens have no attention of their own; inspect the unconverted model",
    "encoder_hidden_states": "a converted model is an encoder; convert the encoder of a seq2seq model instead",
    "past_key_values": "a converted model is an encoder and keeps no cache; leave it out",
    "cu_seq_lens_q": "hashee packs batches itself; pass padded input_ids with a (batch, length) attention_mask",
    "cu_seq_lens_k": "hashee packs batches itself; pass padded input_ids with a (batch, length) attention_mask",
    "head_mask": "packed attention runs all heads; prune heads before converting",
}
"""Options that cannot be honoured, with what to do instead."""


class HashedModel(Host):  # type: ignore[misc]
    """A Hugging Face model whose encoder lets tokens exit; mixed in before the Hugging Face class."""

    adapter: ClassVar[Adapter]
    """Of the encoder; None in classes of models that only decode."""
    decoder_adapter: ClassVar[DecoderAdapter | None]
    """Of the decoder, if tokens can exit in that."""
    dense_class: ClassVar[type]
    """The class that this one adds exits to."""
    class_with_exits: ClassVar[Any]
    new_instance: ClassVar[Any]
    """`hashed_class` and `new_hashed` of `hashee.hf.classes`, which makes classes out of these mixins."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, HashedEncoder) and not (getattr(config, "hashee", None) or {}).get("pooler", True):
            kwargs.setdefault("add_pooling_layer", False)
        super().__init__(config, *args, **kwargs)
        # Some constructors keep a changed copy of the config that they are given.
        settings = getattr(self.config, "hashee", None)
        if settings is None:
            raise CheckpointError(
                f"{type(self).__name__} needs a config with an exit table; call hashee.convert on the unconverted model"
            )
        self._tokenizer: Any = None
        self.add_exits(settings)

    def add_exits(self, settings: dict[str, Any]) -> None:
        """Put an encoder and a decoder with exits where the Hugging Face constructor put dense ones."""
        # What the constructor did to the modules that go is done to those that come.
        checkpointing = self.is_gradient_checkpointing
        if settings["table"] is not None and (encoder := self.adapter.encoder_in(self)) is not None:
            hashed = self._put_with_exits(encoder, settings)
            hashed.reads_first_row = self.adapter.reads_first_row(type(self), self.config)
        of_decoder = self.decoder_adapter if settings.get("decoder_table") is not None else None
        if of_decoder is not None and (decoder := of_decoder.decoder_in(self)) is not None:
            self._put_with_exits(decoder, settings)
        if checkpointing:
            self.gradient_checkpointing_enable()
        self.tie_weights()

    def _put_with_exits(self, found: tuple[str, Any], settings: dict[str, Any]) -> Any:
        """Put a module with exits in the place of a dense one, and return it."""
        name, module = found
        module.config.hashee = settings
        hashed = self.class_with_exits(type(module))(module.config, **pooling_of(module))
        self.set_submodule(name, hashed)
        return hashed

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise what a checkpoint lacks; an exit table that was not loaded is marked so, not left undefined."""
        super()._init_weights(module)
        for name in ("exit_layers", "train_exit_layers", "decoder_exit_layers"):
            buffer = module._buffers.get(name)
            if buffer is not None and not getattr(buffer, "_is_hf_initialized", False):
                buffer.fill_(UNSET)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and copy by the class that exits were added to: this one exists only where it was made."""
        return self.new_instance, (self.dense_class,), self.__getstate__()

    @property
    def hashed_encoder(self) -> HashedEncoder:
        """The encoder in which tokens exit."""
        found = next((module for module in self.modules() if isinstance(module, HashedEncoder)), None)
        if found is None:
            raise UnsupportedModel(f"{type(self).__name__} only decodes; its tokens exit in `hashed_decoder`")
        return found

    @property
    def hashed_decoder(self) -> Any:
        """The decoder in which tokens exit; None if they exit in the encoder alone."""
        return next((module for module in self.modules() if "decoder_exit_layers" in module._buffers), None)

    @property
    def decoder_exit_table(self) -> ExitTable | None:
        """The table by which tokens exit in the decoder, if they do."""
        metadata = self.config.hashee.get("decoder_table")
        if metadata is None:
            return None
        return ExitTable.from_parts(self.hashed_decoder.decoder_exit_layers.cpu(), metadata)

    @property
    def exit_table(self) -> ExitTable:
        """The table by which tokens exit in `eval()`, and in `train()` unless there is another for it.

        It is the encoder's, or that of a model that only decodes.
        """
        if (of_decoder := self.decoder_exit_table) is not None and self.config.hashee["table"] is None:
            return of_decoder
        return ExitTable.from_parts(self.hashed_encoder.exit_layers.cpu(), self.config.hashee["table"])

    @property
    def train_exit_table(self) -> ExitTable | None:
        """The table by which tokens exit in `train()`, if it is another one."""
        metadata = self.config.hashee["train_table"]
        if metadata is None:
            return None
        return ExitTable.from_parts(self.hashed_encoder.train_exit_layers.cpu(), metadata)

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that the model was converted with or that lies in its folder."""
        if self._tokenizer is None:
            path = self.config.name_or_path
            if not path:
                raise HasheeError("this model knows no tokenizer; pass one, or convert with tokenizer=...")
            self.use_tokenizer(read_tokenizer(path))
        return self._tokenizer

    def __dir__(self) -> list[str]:
        # torch.jit and inspectors ask for whatever is listed, which for a tokenizer that is not there is an error.
        unknown = {"tokenizer"} if self._tokenizer is None else set()
        return [name for name in super().__dir__() if name not in unknown]

    def use_tokenizer(self, tokenizer: Any) -> None:
        """Remember a tokenizer after checking that the exit table was made for it."""
        for table in (self.exit_table, self.decoder_exit_table):
            if table is not None:
                table.check(tokenizer=tokenizer)
        check_tokenization(tokenizer, self.config.hashee.get("tokenization"), '"hashee" in config.json')
        self._tokenizer = tokenizer

    def explain(self, text: str, text_pair: str | None = None, tokenizer: Any = None) -> Explanation:
        """Return every token of a text with its exit layer, and what the text costs."""
        return explain(self.config, self.exit_table, tokenizer or self.tokenizer, text, text_pair)

    def predict(
        self,
        texts: Iterable[Text] | str | Path,
        *,
        tokenizer: Any = None,
        batching: Batching | None = None,
        progress: bool = True,
    ) -> Iterator[NDArray[Any]]:
        """Yield the output for each text in order, grouping texts into batches by what they will cost.

        texts: any number of texts or pairs: a list, an iterator, or a file. Outputs are logits, (labels,) for a text
        and (tokens, labels) for its tokens; states (tokens, width) of a model without a head. Texts are cut at the
        model's length. Memory is bounded by `batching`, so a million lines may pass through.
        """
        return predict(self.scorer(), texts, tokenizer or self.tokenizer, batching or Batching(), progress)

    def predict_batch(self, texts: Sequence[Text], *, batching: Batching | None = None) -> list[NDArray[Any]]:
        """Return what `predict` yields for a list of texts or pairs, without a thread or progress bar of its own."""
        return predict_batch(self.scorer(), texts, self.tokenizer, batching or Batching())

    def scorer(self) -> Scorer:
        """Return what runs batches of this model, and what must be known to make them."""
        if self.config.is_encoder_decoder or self.config.hashee["table"] is None:
            raise UnsupportedModel(f"{type(self).__name__} writes text; call generate() instead of predict()")
        self.eval()
        return Scorer(
            run=partial(run_in_torch, self),
            max_length=self.adapter.max_length(self.config),
            token_types=self.adapter.token_types,
            exit_layers=self.hashed_encoder.exit_layers.cpu().numpy(),
        )

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary; new tokens go to the last layer."""
        embeddings: nn.Embedding = super().resize_token_embeddings(*args, **kwargs)
        install_resized(self, embeddings.num_embeddings)
        # The vocabulary has changed, so the tokenizer has; it is read anew when it is needed.
        self._tokenizer = None
        self.config.hashee.pop("tokenization", None)
        return embeddings

    def install_tables(
        self, table: ExitTable | None, train_table: ExitTable | None, decoder_table: ExitTable | None = None
    ) -> None:
        """Make the model exit by these tables, of which it must have as many, and describe them in its config.

        table: None for a model that only decodes. decoder_table: None leaves a decoder's table as it is.
        """
        device = self.get_input_embeddings().weight.device
        settings = self.config.hashee
        if table is not None:
            settings["table"] = table.metadata()
            settings["train_table"] = None if train_table is None else train_table.metadata()
            self.hashed_encoder.exit_layers = table.exit_layers.to(device)
            if train_table is not None:
                self.hashed_encoder.train_exit_layers = train_table.exit_layers.to(device)
        if decoder_table is not None:
            settings["decoder_table"] = decoder_table.metadata()
            self.hashed_decoder.decoder_exit_layers = decoder_table.exit_layers.to(device)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Load a converted model; missing, damaged or non-finite weights and foreign tokenizers are errors."""
        source = pretrained_model_name_or_path
        wants_info = kwargs.pop("output_loading_info", False)
        with opened_with_checksums(source, kwargs):
            model, info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
            align_(model)
            check_loaded(model, info, source)
        # They are those of the files that were read, and the model may change from now on.
        model.config.hashee.pop(ENTRY, None)
        folder = Path(source or "", kwargs.get("subfolder") or "")
        if source is not None and (folder / "tokenizer_config.json").exists():
            model.use_tokenizer(read_tokenizer(folder))
        return (model, info) if wants_info else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as transformers does, with checksums; a folder that a kill left half written is refused."""
        if self._tokenizer is not None:
            self.config.hashee["tokenization"] = tokenization_of(self._tokenizer)
        name_opener(self.config)
        save_with_checksums(self, super().save_pretrained, save_directory, *args, **kwargs)


class HashedEncoder(HashedModel):
    """The encoder itself: its `forward` packs the batch and updates each token up to its exit layer."""

    exit_layers: Tensor
    train_exit_layers: Tensor
    reads_first_row: bool = False
    """Whether the head around the encoder reads the first position only; set it to False for a head of your own that
    reads more. The last layer then updates no other row, and the other rows of `last_hidden_state` are NaN."""

    def add_exits(self, settings: dict[str, Any]) -> None:
        """Make room for the exit tables, so that checkpoints and devices carry them like weights."""
        vocab_size = self.config.vocab_size
        self.first_layer_cache = FirstLayerCache()
        self.one_text_cache = OneTextCache()
        self.distance_cache = DistanceCache()
        self.register_buffer("exit_layers", torch.full((vocab_size,), UNSET))
        if settings["train_table"] is not None:
            self.register_buffer("train_exit_layers", torch.full((vocab_size,), UNSET))

    def train(self, mode: bool = True) -> Any:
        """Switch to training, for which nothing that is derived from the weights is kept, or to inference."""
        if mode:
            self.first_layer_cache.clear()
            self.one_text_cache.clear()
            self.distance_cache.clear()
        return super().train(mode)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Encode a batch as the Hugging Face encoder does; padding positions of the result are zero."""
        if torch.jit.is_tracing():  # type: ignore[attr-defined]
            raise UnsupportedOption(
                "torch.jit.trace records what one batch does, but which rows a layer updates depends on the batch; "
                "use hashee.export.export_onnx"
            )
        refuse_options(self.config, options)
        wanted = options.get("output_hidden_states")
        wanted = getattr(self.config, "output_hidden_states", False) if wanted is None else wanted
        # Whoever asks for the hidden states sees all rows, not only those that the head reads.
        first_only = self.reads_first_row and not wanted
        hidden, states, first_is_real = None, None, None
        if not wanted and input_ids is not None and position_ids is None and inputs_embeds is None:
            inputs = (input_ids, attention_mask, token_type_ids)
            hidden = run_one_text(self.adapter, self, inputs, self._current_exits, first_only=first_only)
        if hidden is None:
            batch = read_batch(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
            if self.reads_first_row:
                check_first_position(batch.mask)
            reads: Reads = "first" if first_only else "all"
            encoded = encode(self.adapter, self, batch, self._current_exits, reads=reads, keep_states=bool(wanted))
            hidden, states, first_is_real = encoded.unpacked(), encoded.states, batch.mask[:, :1].any(dim=1)

        output = self._output(hidden, states, first_is_real, wanted)
        return_dict = options.get("return_dict")
        return_dict = getattr(self.config, "return_dict", True) if return_dict is None else return_dict
        return output if return_dict else self.adapter.as_tuple(output)

    def start(self, *, reads: Reads = "all", **inputs: Tensor | None) -> EncoderState:
        """Embed a batch and return it ready to be run layer by layer, while sequences leave it.

        inputs: tensors as `forward` takes them; reads: "first" if only first positions are read after the last layer.
        """
        batch = read_batch(**inputs)
        if reads == "first":
            check_first_position(batch.mask)
        state: EncoderState = start(self.adapter, self, batch, self._current_exits, reads=reads)
        return state

    @property
    def _current_exits(self) -> Tensor:
        two_tables = self.training and "train_exit_layers" in self._buffers
        return self.train_exit_layers if two_tables else self.exit_layers

    def _output(
        self, hidden: Tensor, states: Sequence[Tensor] | None, first_is_real: Tensor | None, wanted: Any
    ) -> Any:
        """Return the output that the family has: the last states, those around each layer, and the pooled output.

        first_is_real: (batch,) whether the first position is no padding; None if it never is.
        """
        kept_states: Any = None
        if states is not None:
            # Besides True, transformers takes a list of the layers to keep.
            kept = range(len(states)) if wanted is True else wanted
            kept_states = tuple(state if number in kept else None for number, state in enumerate(states))
        # Annotated as None in the output classes of transformers.
        last: Any = hidden
        if not hasattr(self, "pooler"):
            return BaseModelOutput(last_hidden_state=last, hidden_states=kept_states)
        pooled: Any = self.adapter.pool(self, hidden) if hidden.shape[1] else None
        if pooled is not None and first_is_real is not None and not self.reads_first_row:
            # The pooler reads the first position; where that is padding there is nothing it could say.
            pooled = pooled.masked_fill(~first_is_real[:, None], float("nan"))
        return BaseModelOutputWithPooling(last_hidden_state=last, pooler_output=pooled, hidden_states=kept_states)


class HashedEncoderWithoutTypes(HashedEncoder):
    """An encoder of a family that has no token types, so that callers see that in its signature."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Encode a batch as the Hugging Face encoder does; padding positions of the result are zero."""
        options.pop("token_type_ids", None)
        return super().forward(input_ids, attention_mask, None, position_ids, inputs_embeds, **options)


def refuse_options(config: Any, options: dict[str, Any]) -> None:
    """Raise for a requested option that would otherwise be ignored silently."""
    refuse(REFUSED, config, options)


def refuse(refused: dict[str, str], config: Any, options: dict[str, Any]) -> None:
    """Raise for a requested option among those that cannot be honoured, with what to do instead."""
    for name, remedy in refused.items():
        value = options.get(name)
        value = getattr(config, name, None) if value is None else value
        if value is not None and value is not False:
            raise UnsupportedOption(f"{name} cannot be honoured with exits: {remedy}")


def pooling_of(encoder: Any) -> dict[str, bool]:
    """Return what the constructor of an encoder's class must be told to give it a pooler, or none, as it has."""
    return {"add_pooling_layer": encoder.pooler is not None} if hasattr(encoder, "pooler") else {}
