"""Fields of settings as options of commands: in panels, the essential ones first, each with help of one line."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

Panels = Mapping[str, Sequence[str]]
"""Names of fields by the title of their panel; those below the empty title are essential and come first."""
LAST = "Run"
"""The panel of fields that are in no other."""
_TYPES: Mapping[str, Any] = {"task": str | None, "output": Path | None, "depth": str | None}
"""Types on the command line of fields that are otherwise in Python: what settings require may be read from a folder,
and a depth is a number or a word."""

Command = TypeVar("Command", bound=Callable[..., None])


def options_from(settings: type, panels: Panels, names: Iterable[str] | None = None) -> Callable[[Command], Command]:
    """Return a decorator that gives a command an option for each field of a settings class.

    The fields' values arrive in the command's `**options`. In the help they come after its positional parameters and
    before its keyword-only ones. names: which fields; None for all.
    """

    def with_options(command: Command) -> Command:
        own = inspect.signature(command).parameters.values()
        parameters = [
            *(each for each in own if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *_parameters(settings, panels, names),
            *(each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY),
        ]
        # typer reads a command's options from these two.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return with_options


def given_options(context: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user gave; the library knows the defaults of the others."""
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: value
        for name, value in options.items()
        if (source := sources[name]) is not None and source.name != "DEFAULT"
    }


def _parameters(settings: type, panels: Panels, names: Iterable[str] | None) -> list[inspect.Parameter]:
    hints = get_type_hints(settings, include_extras=True)
    defaults = {field.name: None if field.default is MISSING else field.default for field in fields(settings)}
    made = []
    for name in defaults if names is None else names:
        type_, text = get_args(hints[name])
        type_, default = _TYPES.get(name, type_), defaults[name]
        made.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[type_, _option(name, type_, text, default, panels)],
            )
        )
    return made


def _option(name: str, type_: Any, text: str, default: Any, panels: Panels) -> Any:
    """Return what typer needs to know of a field: its name, help, default and panel."""
    # A flag that is off needs no second name to turn it off.
    names = [f"--{name.replace('_', '-')}"] if type_ is bool and default is False else []
    return typer.Option(
        *names, help=_with_default(text, default), show_default=False, rich_help_panel=_panel(name, panels)
    )


def _panel(name: str, panels: Panels) -> str | None:
    """Return the title of a field's panel; None for typer's own, which comes first and has --help."""
    title = next((title for title, names in panels.items() if name in names), LAST)
    return title or None


def _with_default(text: str, default: Any) -> str:
    """Append the default to the help, so that typer does not give it a line of its own."""
    if default is None or isinstance(default, bool):
        return text
    shown = f"{default:g}" if isinstance(default, float) else default
    return f"{text.removesuffix('.')}; default {shown}."
