"""A finished evaluation: what was measured, printed as one page and saved as files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult

from hashee.data.texts import PathLike
from hashee.evaluation.measurements import Measurements
from hashee.evaluation.points import TradeoffPoint
from hashee.evaluation.report import html_report
from hashee.evaluation.terminal import rendered
from hashee.files import replaced_atomically

_WIDTH = 100


@dataclass(frozen=True)
class Evaluation(Measurements):
    """A model on one split of a task; prints as one page."""

    def save(self, folder: PathLike, points: Sequence[TradeoffPoint] = ()) -> Path:
        """Write evaluation.json and report.html to a folder; points of a trade-off are drawn into the report."""
        folder = Path(folder)
        files = {
            "evaluation.json": json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n",
            "report.html": html_report(self, points),
        }
        for name, text in files.items():
            with replaced_atomically(folder / name) as temporary:
                # Texts may hold halves of surrogate pairs, which no file of UTF-8 can.
                temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        return folder

    def __str__(self) -> str:
        console = Console(width=_WIDTH, file=StringIO(), color_system=None)
        with console.capture() as page:
            console.print(self)
        return "\n".join(line.rstrip() for line in page.get().splitlines())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield rendered(self)
