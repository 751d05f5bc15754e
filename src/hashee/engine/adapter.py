"""What hashee must know of a model family: where its layers, embeddings, norms and heads are."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

from hashee.cost.macs import EncoderShape
from hashee.engine.attention import PositionTerms
from hashee.engine.block import Block


@dataclass(frozen=True)
class PackedTokens:
    """The real tokens of a batch in packed order, in the shape that embedding modules take: (1, tokens) each."""

    ids: Tensor
    types: Tensor
    positions: Tensor
    embeds: Tensor | None = None
    """(1, tokens, width) word embeddings given by the caller in place of a look-up."""


HeadLayers = tuple[Any, ...]
"""Linear and LayerNorm modules and activations (modules or class names), in the order in which rows pass them."""


def _dense_and_tanh(encoder: Any) -> HeadLayers | None:
    pooler = getattr(encoder, "pooler", None)
    return None if pooler is None else (pooler.dense, "Tanh")


@dataclass(frozen=True)
class OnnxLayout:
    """Where the models of a family keep what surrounds their layers, as the ONNX exporter needs to know it."""

    classifier: Callable[[Any, Any], HeadLayers]
    """(model, encoder) -> from the state of the first position to the logits of a sequence."""
    masked_lm: Callable[[Any], HeadLayers]
    """model -> from the state of a token to the logits over the vocabulary."""
    positions_after_padding: bool = False
    """Whether position ids count the tokens that are not padding, from the padding id + 1, instead of columns."""
    projection: Callable[[Any], Module | None] = lambda encoder: None
    """encoder -> the Linear between embeddings and layers, or None."""
    pooler: Callable[[Any], HeadLayers | None] = _dense_and_tanh
    """encoder -> from the state of the first position to the pooled output, or None."""


class Adapter(ABC):
    """One model family. Subclasses name its modules; they have no state and no parameters."""

    model_type: ClassVar[str]
    """The family's `config.model_type` in Hugging Face; converted models have `hashee-<model_type>`."""
    config_class: ClassVar[type[PreTrainedConfig]]
    encoder_class: ClassVar[type[PreTrainedModel]]
    """The class whose `forward` turns ids into hidden states; the only one that hashee replaces."""
    token_types: ClassVar[bool] = True
    """Whether the embeddings take token types."""
    summed_embeddings: ClassVar[type[Module] | None] = None
    """Class of `encoder.embeddings` if it is a layer norm over word + position (+ token type) embeddings under BERT's
    names, so that the first layer's projections can be looked up."""
    heads_on_first_row: ClassVar[tuple[str, ...]] = (
        "ForSequenceClassification",
        "ForMultipleChoice",
        "ForNextSentencePrediction",
    )
    """Endings of the names of classes whose heads read the first position only, which must not be padding."""
    onnx: ClassVar[OnnxLayout | None] = None
    """What the ONNX exporter needs to know; None: the family cannot be exported."""

    def reads_first_row(self, model_class: type, config: Any = None) -> bool:
        """Return whether a model of this class, converted or not, has a head that reads the first position only.

        This is known for the classes of transformers and hashee alone; a custom class may read any position, whatever
        its name. config: of the model, where a family's heads depend on it; None: the default.
        """
        dense: type = vars(model_class).get("dense_class", model_class)
        return is_library_class(dense) and dense.__name__.endswith(self.heads_on_first_row or ("\0",))

    def encoder_in(self, model: Module) -> tuple[str, Module] | None:
        """Return the encoder inside a model, or the model itself if it is one, and its name; None if it has none."""
        found = ((name, module) for name, module in model.named_modules() if isinstance(module, self.encoder_class))
        return next(found, None)

    def layers(self, encoder: Any) -> list[Module]:
        """Return the Hugging Face layers in the order in which they run."""
        return list(encoder.encoder.layer)

    def exit_layer(self, encoder: Any, index: int) -> int:
        """Return the exit layer, from 1, that `layers(encoder)[index]` belongs to."""
        return index + 1

    def blocks(self, encoder: Any) -> Iterator[Block]:
        """Yield the encoder's layers as Blocks, in the order in which they run."""
        for index, layer in enumerate(self.layers(encoder)):
            yield self.block(layer, self.exit_layer(encoder, index))

    @abstractmethod
    def block(self, layer: Any, number: int) -> Block:
        """Return one Hugging Face layer as a Block. number: its exit layer, from 1."""

    def embed(self, encoder: Any, tokens: PackedTokens) -> Tensor:
        """Return the states that the first layer takes: (1, tokens, width)."""
        embedded: Tensor = encoder.embeddings(
            input_ids=tokens.ids if tokens.embeds is None else None,
            token_type_ids=tokens.types,
            position_ids=tokens.positions,
            inputs_embeds=tokens.embeds,
        )
        return embedded

    def positions(self, encoder: Any, input_ids: Tensor) -> Tensor:
        """Return the position ids that the family uses when the caller gives none: (batch, length)."""
        return torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)

    def max_position(self, encoder: Any) -> int:
        """Return the smallest position id, as in `positions`, that the model cannot embed."""
        rows: int = encoder.embeddings.position_embeddings.num_embeddings
        return rows

    def keep_first_layers(self, config: Any, number: int) -> None:
        """Change a config to that of a model with only the first `number` layers."""
        config.num_hidden_layers = number

    def max_length(self, config: Any) -> int:
        """Return the most tokens of a text that the model takes, from a config alone."""
        length: int = config.max_position_embeddings
        return length

    def position_bias(self, encoder: Any, columns: Tensor) -> Tensor | None:
        """Return what relative positions add to the scores, or None.

        columns: (sequences, longest) column of the input of the token in each slot.
        Returns (sequences, heads, longest, longest).
        """
        return None

    def position_terms(
        self, encoder: Any, tokens: PackedTokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        """Return how positions enter the scores, by the `attention_type` of a layer; empty if they do not.

        columns: as in `position_bias`; hidden: (tokens, width) input of the first layer.
        """
        bias = self.position_bias(encoder, columns)
        return {} if bias is None else {"": PositionTerms(bias)}

    def final_norm(self, encoder: Any) -> Module | None:
        """Return the norm over the states of all tokens after the last layer, if the family has one."""
        return None

    def freeze_computed_(self, model: Module) -> None:
        """Keep training from changing weights that the family computes whenever a model is loaded, if it has any."""
        return

    def layer_drop(self, encoder: Any) -> float:
        """Return the probability with which training skips a whole layer."""
        return 0.0

    def pool(self, encoder: Any, hidden: Tensor) -> Tensor | None:
        """Return the pooled output of (batch, length, width) states, or None if the model has no pooler."""
        pooler = getattr(encoder, "pooler", None)
        return None if pooler is None else pooler(hidden)

    def as_tuple(self, output: Any) -> tuple[Any, ...]:
        """Return an output as the family does under `return_dict=False`."""
        values: tuple[Any, ...] = output.to_tuple()
        return values

    def shape(self, config: Any) -> EncoderShape:
        """Return the sizes that set the cost, from a config alone."""
        return EncoderShape(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            inner=config.intermediate_size,
            looked_up=self.summed_embeddings is not None,
        )


def is_library_class(model_class: type) -> bool:
    """Return whether transformers or hashee defines a class, so that its forward pass is known."""
    module = sys.modules.get(model_class.__module__)
    return (
        model_class.__module__.partition(".")[0] in ("transformers", "hashee")
        and getattr(module, model_class.__name__, None) is model_class
    )


def name_of_own_class(model_class: type) -> str | None:
    """Return the full name of a class that neither transformers nor hashee defines; None for theirs."""
    return None if is_library_class(model_class) else f"{model_class.__module__}.{model_class.__qualname__}"


def positions_after_padding(input_ids: Tensor, padding_id: int) -> Tensor:
    """Number the tokens that are not padding from `padding_id + 1`, as RoBERTa and MPNet do: (batch, length)."""
    real = input_ids.ne(padding_id).long()
    return real.cumsum(dim=1) * real + padding_id
