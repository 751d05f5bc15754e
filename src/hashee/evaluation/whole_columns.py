"""A table of as many columns as a terminal has room for, whose names and numbers are never cut."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class WholeColumns:
    """Names and what belongs to them, the most important columns first: a narrow terminal leaves out the others."""

    headers: Sequence[str]
    """The first is that of the names."""
    rows: Sequence[Sequence[str]]
    """Cells, as many as headers."""
    elsewhere: str
    """Where else the columns are that are left out."""
    groups: Collection[int] = ()
    """Numbers of the rows before which a line is drawn."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = [0]
        for column in range(1, len(self.headers)):
            if self._width([*shown, column]) <= options.max_width:
                shown.append(column)
        table = Table()
        for column in shown:
            # Names may go on in a second line, between words, where there is room for nothing else.
            table.add_column(self.headers[column], justify="right" if column else "left", no_wrap=column > 0)
        for number, row in enumerate(self.rows):
            if number in self.groups:
                table.add_section()
            table.add_row(*(Text(row[column]) for column in shown))
        yield table
        missing = [header for column, header in enumerate(self.headers) if column not in shown]
        if missing:
            yield Text(f"no room for: {', '.join(missing)}; see {self.elsewhere}, or widen the terminal")

    def _width(self, columns: Sequence[int]) -> int:
        """Return how many characters a table of these columns takes."""
        widths = [max(cell_len(row[column]) for row in (self.headers, *self.rows)) for column in columns]
        # A space on both sides of every cell, and lines between them and at the edges.
        return sum(widths) + 3 * len(columns) + 1
