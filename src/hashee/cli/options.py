"""Fields of settings as options of the command line: in panels, the essential ones first, short enough for one line."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

Panels = Mapping[str, Sequence[str]]
"""Names of fields below the title of each panel; those below the empty title are essential and come first."""
ESSENTIAL = ""
LAST = "Run"
"""The panel of fields that are in no other."""


def option(name: str, kind: Any, text: str, default: Any, panels: Panels) -> Any:
    """Return what typer needs to know of a field: its name, help, default and panel."""
    # A flag that is off needs no second name to turn it off.
    names = [f"--{name.replace('_', '-')}"] if kind is bool and default is False else []
    return typer.Option(
        *names, help=_with_default(text, default), show_default=False, rich_help_panel=panel(name, panels)
    )


def panel(name: str, panels: Panels) -> str | None:
    """Return the title of a field's panel; None for typer's own, which comes first and has --help."""
    title = next((title for title, names in panels.items() if name in names), LAST)
    return title or None


def _with_default(text: str, default: Any) -> str:
    """Say the default in the same line, which typer would put in one of its own."""
    if default is None or isinstance(default, bool):
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text.removesuffix('.')}; default {shown}."
