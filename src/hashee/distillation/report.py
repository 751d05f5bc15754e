"""What a speed-up without labels reached: agreement with the dense model, cost, speed, exits, examples that moved."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from hashee.cost.rounds import alternate
from hashee.data.batching import Batching
from hashee.data.output_types import OutputType
from hashee.data.texts import Text as Input
from hashee.distillation.agreement import SCORE, Array, closeness_of
from hashee.distillation.student import Lesson, outputs_on_held_out
from hashee.errors import shortened
from hashee.hf.flops import count_flops
from hashee.hf.text_models import TextModel, with_prompts
from hashee.training.processes import Processes

_TIMED = 256
"""Texts of a timed round at most."""
_ROUNDS = 5
_MOVED = 5
_BAR = 32


@dataclass(frozen=True)
class SpeedupReport:
    """The faster model beside the dense one, on texts that were held out."""

    output: str
    """embedding, score or states."""
    asked: float
    counted: float
    """Multiply-accumulates of the dense model / those executed with exits."""
    measured: float
    """Median of the ratios of times in interleaved rounds, in batches by cost on this machine."""
    agreement: dict[str, float]
    untrained: dict[str, float]
    """The same before the student was trained."""
    updated: list[float]
    """Share of the tokens that each layer updates."""
    exits: list[int]
    """Tokens of the held-out texts that exit at layers 0, 1, ..."""
    moved: list[dict[str, Any]]
    """The texts whose outputs moved most, with their closeness: a cosine, or the negated difference of scores."""
    texts: dict[str, int]
    """How many were trained on, held out, and cut at the model's length."""
    training: dict[str, Any]
    """Steps, seconds, losses; empty where nothing was trained."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What the run was told, with fingerprints of the dense model and of the texts."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.counted:.2f}x fewer operations counted, {self.measured:.2f}x as fast measured", style="bold")
        table = Table()
        for column in ("agreement with the dense model", "converted", "trained"):
            table.add_column(column, justify="left" if column.startswith("agree") else "right")
        for name, value in self.agreement.items():
            if name != SCORE:
                table.add_row(name, f"{self.untrained[name]:.4f}", f"{value:.4f}")
        yield table
        held_out, train = self.texts["held_out"], self.texts["train"]
        yield Text(f"on {held_out:,} texts that were held out; {train:,} were learnt from")
        yield Text("tokens that each layer updates", style="bold")
        for layer, share in enumerate(self.updated, start=1):
            yield Text(f"{layer:>3} {share:6.1%} {'█' * round(_BAR * share)}")
        yield Text("texts that moved most", style="bold")
        for each in self.moved:
            yield Text(f"{each['closeness']:8.3f}  {shortened(each['text'], 100)}")


def make_report(
    student: TextModel, lesson: Lesson, asked: float, untrained: dict[str, float], training: dict[str, Any]
) -> SpeedupReport:
    """Compare a student with the dense model on the held-out texts, and time both."""
    one = Processes(0, 1, student.device)
    corpus, ids = lesson.corpus, [row.tolist() for row in lesson.corpus.held_out.tokenized.ids]
    count = count_flops(student.transformer, ids)
    found = outputs_on_held_out(student, corpus, one)
    exits = student.exit_table.exit_layers.numpy()[np.concatenate(ids)]
    return SpeedupReport(
        output=str(lesson.teacher.output),
        asked=asked,
        # A student may have fewer layers than the dense model.
        counted=round(count_flops(lesson.teacher.transformer, ids).full_depth_macs / max(count.executed_macs, 1), 4),
        measured=round(measured_speedup(student, lesson.teacher, corpus.held_out.texts), 4),
        agreement=lesson.agreement(student, one),
        untrained=untrained,
        updated=[round(cost.active / max(count.tokens, 1), 4) for cost in count.layers],
        exits=np.bincount(exits, minlength=student.exit_table.num_layers + 1).tolist(),
        moved=_moved(lesson, found),
        texts={
            "train": len(corpus.train.texts),
            "held_out": len(corpus.held_out.texts),
            "truncated": corpus.train.truncated + corpus.held_out.truncated,
        },
        training=training,
    )


def measured_speedup(student: TextModel, dense: TextModel, texts: list[Input]) -> float:
    """Return how many times as fast one model is as another: the median of rounds in which both take turns."""
    some = with_prompts(texts[:_TIMED], dense.prompts)
    runs = [lambda: list(dense.outputs(some, Batching())), lambda: list(student.outputs(some, Batching()))]
    alternate(runs, 1)  # warms up
    dense_times, own_times = alternate(runs, _ROUNDS)
    return median(dense_time / own for dense_time, own in zip(dense_times, own_times, strict=True))


def _moved(lesson: Lesson, found: list[Array]) -> list[dict[str, Any]]:
    output: OutputType = lesson.teacher.output
    closeness = np.array(
        [closeness_of(output, own, dense).mean() for own, dense in zip(found, lesson.held_out, strict=True)]
    )
    texts = lesson.corpus.held_out.texts
    return [
        {"text": " | ".join(text) if isinstance(text := texts[index], tuple) else text, "closeness": float(each)}
        for index, each in ((index, closeness[index]) for index in np.argsort(closeness)[:_MOVED])
    ]
