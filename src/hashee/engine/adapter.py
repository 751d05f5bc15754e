"""What hashee must know of a model family: where its layers, embeddings and norms are."""

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
class Tokens:
    """The real tokens of a batch in packed order, as embedding modules take them; each is (1, tokens)."""

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
    """One model family. Subclasses say where things are; no state, no parameters, one shared instance each."""

    model_type: ClassVar[str]
    """The family's `config.model_type` in Hugging Face; its converted twin is `hashee-<model_type>`."""
    config_class: ClassVar[type[PreTrainedConfig]]
    encoder_class: ClassVar[type[PreTrainedModel]]
    """The class whose `forward` turns ids into hidden states; the only one that hashee replaces."""
    token_types: ClassVar[bool] = True
    """Whether the embeddings take token types."""
    summed_embeddings: ClassVar[type[Module] | None] = None
    """Class of `encoder.embeddings` if it is a layer norm over word + position (+ token type) embeddings by BERT's
    names, so that what the first layer projects can be looked up."""
    heads_on_first_row: ClassVar[tuple[str, ...]] = (
        "ForSequenceClassification",
        "ForMultipleChoice",
        "ForNextSentencePrediction",
    )
    """How the classes end whose heads read the first position only; it must hold a token, not padding."""
    onnx: ClassVar[OnnxLayout | None] = None
    """What the ONNX exporter needs to know; None: the family cannot be exported."""

    def reads_first_row(self, model_class: type, config: Any = None) -> bool:
        """Say whether a model of this class, converted or not, has a head that reads the first position only.

        Known of the classes of transformers and of hashee itself; a class of somebody else's may read any position,
        whatever its name. config: of the model, where a family's heads depend on it; None: as by default.
        """
        dense: type = vars(model_class).get("dense_class", model_class)
        return is_library_class(dense) and dense.__name__.endswith(self.heads_on_first_row or ("\0",))

    def layers(self, encoder: Any) -> list[Module]:
        """Return the Hugging Face layers in the order in which they run."""
        return list(encoder.encoder.layer)

    def exit_layer(self, encoder: Any, place: int) -> int:
        """Return the exit layer, from 1, that the layer at a place in `layers` belongs to."""
        return place + 1

    def blocks(self, encoder: Any) -> Iterator[Block]:
        """Yield the encoder's layers as Blocks, in the order in which they run."""
        for place, layer in enumerate(self.layers(encoder)):
            yield self.block(layer, self.exit_layer(encoder, place))

    @abstractmethod
    def block(self, layer: Any, number: int) -> Block:
        """Point at the sub-modules of one Hugging Face layer."""

    def embed(self, encoder: Any, tokens: Tokens) -> Tensor:
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
        """Return the number of rows of the position table, counted in the ids of `positions`."""
        rows: int = encoder.embeddings.position_embeddings.num_embeddings
        return rows

    def keep_first_layers(self, config: Any, number: int) -> None:
        """Change a config to that of a model with the first layers only."""
        config.num_hidden_layers = number

    def max_length(self, config: Any) -> int:
        """Return the longest text that the model takes, from a config alone."""
        length: int = config.max_position_embeddings
        return length

    def position_bias(self, encoder: Any, columns: Tensor) -> Tensor | None:
        """Return what relative positions add to the scores, or None.

        columns: (sequences, longest) place of each seat in the caller's rows.
        Returns (sequences, heads, longest, longest).
        """
        return None

    def position_terms(
        self, encoder: Any, tokens: Tokens, columns: Tensor, hidden: Tensor
    ) -> Mapping[str, PositionTerms]:
        """Return how positions enter the scores, by the `kind` of a layer's attention; nothing where they do not.

        columns: as in `position_bias`; hidden: (tokens, width) what the first layer takes.
        """
        bias = self.position_bias(encoder, columns)
        return {} if bias is None else {"": PositionTerms(bias)}

    def final_norm(self, encoder: Any) -> Module | None:
        """Return the norm over the states of all tokens after the last layer, if the family has one."""
        return None

    def layer_drop(self, encoder: Any) -> float:
        """Return the probability with which training skips a whole layer."""
        return 0.0

    def pool(self, encoder: Any, hidden: Tensor) -> Tensor | None:
        """Return the pooled output of (batch, length, width) states, or None if the model has no pooler."""
        pooler = getattr(encoder, "pooler", None)
        return None if pooler is None else pooler(hidden)

    def as_tuple(self, output: Any) -> tuple[Any, ...]:
        """Return an output the way the family does under `return_dict=False`."""
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
    """Say whether transformers or hashee defines a class, so that what its forward pass does is known."""
    module = sys.modules.get(model_class.__module__)
    return (
        model_class.__module__.partition(".")[0] in ("transformers", "hashee")
        and getattr(module, model_class.__name__, None) is model_class
    )


def name_of_own_class(model_class: type) -> str | None:
    """Return where a class is defined that neither transformers nor hashee defines."""
    return None if is_library_class(model_class) else f"{model_class.__module__}.{model_class.__qualname__}"


def positions_after_padding(input_ids: Tensor, padding_id: int) -> Tensor:
    """Number the tokens that are not padding from `padding_id + 1`, as RoBERTa and MPNet do: (batch, length)."""
    real = input_ids.ne(padding_id).long()
    return real.cumsum(dim=1) * real + padding_id
