"""A seq2seq model with fewer layers on both sides: BART-6L (3+3) and CPT-6L (5+1) of the HashEE paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hashee.data import Task
from hashee.families.adapters import decoder_adapter_for
from hashee.study.methods.first_layers import FirstLayers
from hashee.study.refusals import refuse_without_writing
from hashee.study.students import depth_at
from hashee.training.backbone import Backbone, Seq2SeqBackbone
from hashee.training.method import register_method

ENCODER_SHARES = (0.84, 0.5)
"""Of the encoder's layers that are kept: 5 and 3 of 6, 8 and 5 of 10."""
DECODER_SHARE = 0.5


@dataclass(frozen=True)
class ShallowSeq2Seq(FirstLayers):
    """The first layers of the encoder and of the decoder, fine-tuned."""

    name: str = "shallow-seq2seq"
    shares: tuple[float, ...] = ENCODER_SHARES

    def refusal(self, task: Task) -> str | None:
        """Refuse models without a decoder."""
        return refuse_without_writing(self.name, task)

    def depths(self, backbone: Backbone) -> list[tuple[int, ...]]:
        """Return how many layers are kept of encoder and decoder."""
        assert isinstance(backbone, Seq2SeqBackbone)  # models of other tasks are refused
        decoder = depth_at(DECODER_SHARE, backbone.decoder_layers)
        return [(*encoder, decoder) for encoder in super().depths(backbone)]

    def knobs(self, model: Any) -> Sequence[float]:
        """Return the layers of encoder and decoder together."""
        adapter = decoder_adapter_for(model.config)
        assert adapter is not None  # the backbone has been counted
        return (float(model.exit_table.num_layers + adapter.shape(model.config).layers),)


register_method(ShallowSeq2Seq())
