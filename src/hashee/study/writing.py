"""What writing costs at an operating point, beside the dense baseline that wrote in the same run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hashee.data.run_record import PARTS
from hashee.data.summaries import TokenizedSummaries
from hashee.data.tokenized import Tokenized
from hashee.study.methods.first_layers import DENSE
from hashee.study.results import TimedPart, WritingPoint
from hashee.training.evaluation import WritingCosts, write_summaries
from hashee.training.stages import Fit


@dataclass(frozen=True)
class DenseWriting:
    """What the dense baseline wrote, and what that cost."""

    costs: WritingCosts
    texts: int

    def per_text(self, part: str) -> float:
        """Return the multiply-accumulates of a part at full depth, by the paper's count."""
        return float(getattr(self.costs.dense, part).paper.sum()) / self.texts

    def point(self, own: WritingCosts, metrics: Mapping[str, Mapping[str, float]]) -> WritingPoint:
        """Set what a model wrote for the same documents beside the baseline."""
        seconds, dense_seconds = _seconds(own), _seconds(self.costs)
        parts: dict[str, Any] = {}
        for part in PARTS:
            dense, costs = self.per_text(part), getattr(own.costs, part)
            paper, executed = float(costs.paper.sum()) / self.texts, float(costs.executed.sum()) / self.texts
            ratios = (dense / max(executed, 1.0), dense / max(paper, 1.0))
            parts[part] = TimedPart(dense, paper, executed, *ratios, seconds[part], dense_seconds[part])
        return WritingPoint(
            metrics=metrics,
            **parts,
            head_per_text=float(own.costs.head.sum()) / self.texts,
            dense_head_per_text=float(self.costs.dense.head.sum()) / self.texts,
            tokens=_tokens(own),
            dense_tokens=_tokens(self.costs),
        )


def dense_writing(fit: Fit, tokenized: Tokenized) -> DenseWriting | None:
    """Let the dense baseline, which all methods of a run's folder share, write; None where no text is written."""
    if not isinstance(tokenized, TokenizedSummaries):
        return None
    model = DENSE.open(DENSE.train(fit).best.folder).to(fit.processes.device)
    costs = write_summaries(model, tokenized, fit.processes).writing
    assert costs is not None  # texts were written
    return DenseWriting(costs, max(len(tokenized), 1))


def _seconds(costs: WritingCosts) -> dict[str, float]:
    parts = (costs.encoder_seconds, costs.decoder_seconds)
    return dict(zip(PARTS, (*parts, sum(parts)), strict=True))


def _tokens(costs: WritingCosts) -> float:
    """Return the mean number of tokens that were read to write a text: all but the last."""
    return sum(max(len(ids) - 1, 0) for ids in costs.ids) / max(len(costs.ids), 1)
