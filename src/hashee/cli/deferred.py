"""Commands that are imported when they are called, so that help, version and completion are fast."""

import importlib
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from hashee.training.stopping import as_stopped


class DeferredCommand(TyperCommand):
    """The name of a command and what it does in one line; `load` gives the command itself."""

    def __init__(self, name: str, function: str, help: str) -> None:
        super().__init__(name, help=help)
        self.function = function
        """Where it is: module:function."""

    def load(self) -> Any:
        """Import the command."""
        path, _, name = self.function.partition(":")
        module = importlib.import_module(path)
        function = getattr(module, name)
        alone = typer.Typer(add_completion=False)
        alone.command(self.name, cls=getattr(function, "command_class", None))(function)
        return get_command(alone)


class DeferredGroup(TyperGroup):
    """A group whose commands are imported when they are called or their options are completed."""

    def add_commands(self, commands: Iterable[Any]) -> None:
        """Add commands, in the order in which help lists them."""
        for command in commands:
            self.add_command(command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return name, command and remaining arguments, the command being loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, DeferredCommand):
            command = command.load()
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named; Ctrl-C becomes Stopped, which typer leaves to `main`."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise as_stopped(error) from None
