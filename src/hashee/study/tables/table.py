"""A table for readers: in the terminal, as JSON and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

NOT_RUN, NOT_APPLICABLE, NOT_MEASURED = "not run", "-", "not measured"


@dataclass(frozen=True)
class Cell:
    """What a reader sees, and the numbers behind it."""

    text: str
    values: Mapping[str, Any]


Content: TypeAlias = Cell | str | int | float | None
"""Of a cell; None is left empty."""


@dataclass(frozen=True)
class Table:
    """Rows with a title above and notes below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Content, ...], ...]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: each row by column, numbers in full."""
        rows = [
            {
                column: dict(content.values) if isinstance(content, Cell) else content
                for column, content in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]
        return {"title": self.title, "columns": list(self.columns), "rows": rows, "notes": list(self.notes)}

    def to_markdown(self) -> str:
        """Return the table as Markdown, the notes as a list."""
        lines = [f"**{_escaped(self.title)}**", "", _line(self.columns), _line("---" for _ in self.columns)]
        lines += [_line(map(shown, row)) for row in self.rows]
        if self.notes:
            lines += ["", *(f"- {_escaped(note)}" for note in self.notes)]
        return "\n".join(lines) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
        for number, width in enumerate(self.widths(options.max_width)):
            table.add_column(Text(self.columns[number]), justify=self._side(number), overflow="fold", width=width)
        for row in self.rows:
            table.add_row(*(Text(shown(content)) for content in row))
        yield Text(self.title, style="bold")
        yield Text()
        yield table
        if self.notes:
            yield Text()
        yield from (Text(f"- {note}", style="dim") for note in self.notes)

    def widths(self, most: int) -> list[int]:
        """Return the width of each column, so that together they fit if cells break at their spaces."""
        texts = [[column, *(shown(row[number]) for row in self.rows)] for number, column in enumerate(self.columns)]
        widths = [max(map(len, column)) for column in texts]
        least = [max(len(word) for text in column for word in text.split() or [""]) for column in texts]
        # One space between columns; the widest column that can still break gives way first.
        while sum(widths) + len(widths) - 1 > most:
            breakable = [number for number, width in enumerate(widths) if width > least[number]]
            if not breakable:
                break
            widths[max(breakable, key=lambda number: widths[number])] -= 1
        return widths

    def _side(self, column: int) -> Any:
        """Words stand on the left, numbers on the right."""
        contents = [row[column] for row in self.rows if row[column] is not None]
        words = column == 0 or (bool(contents) and all(isinstance(content, str) for content in contents))
        return "left" if words else "right"


def shown(content: Content) -> str:
    """Return a cell as a reader sees it."""
    if content is None:
        return ""
    if isinstance(content, Cell):
        return content.text
    return f"{content:.2f}" if isinstance(content, float) else str(content)


def times(speedup: float) -> str:
    """Return a speed-up as a reader sees it."""
    return f"{speedup:.1f}x"


def signed(value: float) -> str:
    """Return a difference as a reader sees it."""
    # A zero has no sign, whatever rounding has left of it.
    return f"{round(value, 2) + 0.0:+.2f}" if round(value, 2) else "0.00"


def _line(cells: Any) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def without_repeats(notes: Sequence[str]) -> tuple[str, ...]:
    """Return notes once each."""
    return tuple(dict.fromkeys(notes))
