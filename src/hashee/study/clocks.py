"""The file of measured times: what a text takes by method, texts and batch size; `clocking` measures them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hashee.errors import InputError
from hashee.files import replaced_atomically
from hashee.study.paper import TASKS

SHORT, LONG = TASKS["snli"], TASKS["imdb"]
"""Texts that times are taken with unless told otherwise, as in the paper: short and long ones."""
_SHOWN = ("cpu", "instruction_sets", "cores", "threads")
"""What a line about a machine says of it; files have more."""


@dataclass(frozen=True)
class ClockRow:
    """The rounds of one method at one operating point with one batch size."""

    method: str
    texts: str
    """Whose they are: a task as the paper writes it."""
    batch: int
    seconds_per_text: tuple[float, ...]
    """One for each round; methods take turns in each round."""
    speedup: float | None = None
    """Full depth of the backbone / executed multiply-accumulates, counted on the same texts."""
    quality: float | None = None
    """On the whole test set, or dev without one, at the same operating point."""
    knob: float | None = None
    """Of the operating point."""
    candidate: str = ""
    """Which of the method's models it is, where it has several."""
    asked_speedups: tuple[float, ...] = ()
    """Speed-ups that were asked for to which this point is the nearest; empty in files with one point per method."""

    @property
    def median(self) -> float:
        """Of the rounds."""
        return median(self.seconds_per_text)

    @property
    def spread(self) -> float:
        """(Longest - shortest round) / median."""
        return (max(self.seconds_per_text) - min(self.seconds_per_text)) / self.median


@dataclass(frozen=True)
class Clocks:
    """Times taken in one run on one machine."""

    rows: tuple[ClockRow, ...]
    hardware: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """How they were taken: backbone, texts and their lengths, rounds, warm-up."""

    @property
    def machine(self) -> str:
        """The machine in a few words; empty if nothing is known of it."""
        shown = {name: value for name, value in self.hardware.items() if name in _SHOWN and value not in (None, "")}
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items())

    @property
    def asked_speedup(self) -> float | None:
        """The executed speed-up that was asked for, the first of several; None if the file does not say."""
        asked = self.protocol.get("asked_speedups") or [self.protocol.get("asked_speedup")]
        return None if asked[0] is None else float(asked[0])

    def of(self, texts: str) -> dict[str, list[ClockRow]]:
        """Return the rows of each method on some texts at the first speed-up asked for, small batches first."""
        found: dict[str, list[ClockRow]] = {}
        for rows in self.points(texts):
            if not rows[0].asked_speedups or self.asked_speedup in rows[0].asked_speedups:
                found.setdefault(rows[0].method, rows)
        return found

    def points(self, texts: str) -> list[list[ClockRow]]:
        """Return the rows of each operating point of each method on some texts, small batches first."""
        found: dict[tuple[str, str, float | None], list[ClockRow]] = {}
        for row in sorted((row for row in self.rows if row.texts == texts), key=lambda row: row.batch):
            found.setdefault((row.method, row.candidate, row.knob), []).append(row)
        return list(found.values())

    def write(self, path: Path) -> None:
        """Write {"hardware", "protocol", "rows": [{"method", "texts", "batch", "seconds_per_text": [...], ...}]}."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_atomically(path) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_clocks(path: Path) -> Clocks:
    """Read a file of measured times."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return Clocks(tuple(_rows(values["rows"])), values.get("hardware", {}), values.get("protocol", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no file of measured times ({error})") from None


def _rows(values: Iterable[Mapping[str, Any]]) -> Iterable[ClockRow]:
    for value in values:
        tuples = {name: tuple(value.get(name, ())) for name in ("seconds_per_text", "asked_speedups")}
        row = ClockRow(**{**value, "batch": int(value["batch"])} | tuples)
        if row.texts not in TASKS.values() or row.batch < 1:
            raise ValueError(f"texts are of {', '.join(TASKS.values())}, batches at least 1: {row.texts}, {row.batch}")
        if not row.seconds_per_text or min(row.seconds_per_text) <= 0:
            raise ValueError(f"{row.method} has no times, or times that are not above 0")
        yield row
