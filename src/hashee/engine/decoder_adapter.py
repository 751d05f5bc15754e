"""What hashee must know of a family of decoders: where its layers, embeddings and norms are."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedConfig, PreTrainedModel

from hashee.cost.generation import DecoderShape
from hashee.engine.block import Block
from hashee.engine.parts import AttentionPart


@dataclass(frozen=True)
class DecoderBlock:
    """One Hugging Face decoder layer: self-attention and feed-forward as in an encoder, and attention to the source."""

    block: Block
    cross_attention: AttentionPart | None = None
    cross_attention_norm: Module | None = None


class DecoderAdapter(ABC):
    """One family of decoders. Subclasses name its modules; they have no state and no parameters."""

    model_type: ClassVar[str]
    config_class: ClassVar[type[PreTrainedConfig]]
    decoder_class: ClassVar[type[PreTrainedModel]]
    """The class whose `forward` turns the ids of a text so far into hidden states; hashee replaces that."""

    def decoder_in(self, model: Module) -> tuple[str, Module] | None:
        """Return the decoder inside a model, or the model itself if it is one, and its name; None if it has none."""
        found = ((name, module) for name, module in model.named_modules() if isinstance(module, self.decoder_class))
        return next(found, None)

    def layers(self, decoder: Any) -> list[Module]:
        """Return the Hugging Face layers in the order in which they run."""
        return list(decoder.layers)

    def blocks(self, decoder: Any) -> Iterator[DecoderBlock]:
        """Yield the layers as blocks, in the order in which they run."""
        for index, layer in enumerate(self.layers(decoder)):
            yield self.block(layer, index + 1)

    @abstractmethod
    def block(self, layer: Any, number: int) -> DecoderBlock:
        """Return one Hugging Face layer as a block. number: its exit layer, from 1."""

    @abstractmethod
    def embed(self, decoder: Any, ids: Tensor, words: Tensor | None, positions: Tensor) -> Tensor:
        """Return the states that the first layer takes: (batch, length, width).

        ids: (batch, length); words: (batch, length, width) embeddings given by the caller in place of a look-up;
        positions: (batch or 1, length).
        """

    def rotary(self, decoder: Any, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return cosine and sine of the angles of queries and keys, (batch or 1, length, head width / 2) each."""
        return None

    @abstractmethod
    def max_position(self, decoder: Any) -> int:
        """Return the smallest position that the decoder cannot embed."""

    def final_norm(self, decoder: Any) -> Module | None:
        """Return the norm over all states after the last layer, if the family has one."""
        return None

    def layer_drop(self, decoder: Any) -> float:
        """Return the probability with which training skips a whole layer."""
        return 0.0

    @abstractmethod
    def keep_first_layers(self, config: Any, number: int) -> None:
        """Change a config to that of a model whose decoder has only the first `number` layers."""

    @abstractmethod
    def shape(self, config: Any) -> DecoderShape:
        """Return the sizes that set the cost, from a config alone."""
