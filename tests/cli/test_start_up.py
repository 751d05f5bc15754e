"""Help, version and completion answer at once: nothing heavy is imported before a command runs."""

import os
import subprocess
import sys
from typing import Any

import pytest

from hashee import __version__
from hashee.cli import app
from hashee.cli.deferred import DeferredCommand

HEAVY = "heavy = {'torch', 'transformers'} & set(sys.modules); assert not heavy, heavy"


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=False
    )


def run_hashee(*arguments: str) -> str:
    """Run `hashee ...` in a fresh process, which fails if torch or transformers was imported."""
    call = f"import sys; sys.argv = ['hashee', *{arguments!r}]; from hashee.cli import main"
    done = run_python(f"{call}\ntry:\n main()\nfinally:\n {HEAVY}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_and_version_import_neither_torch_nor_transformers() -> None:
    assert run_hashee("--version").strip() == f"hashee {__version__}"
    assert set(app.commands) <= set(run_hashee("--help").split())
    assert "--speedup" in run_hashee("fit", "--help")


def test_completion_imports_neither_torch_nor_transformers() -> None:
    for typed, offered in (("hashee ", "predict"), ("hashee fit --spe", "--speedup")):
        code = f"import sys; from hashee.cli import app\ntry:\n app(prog_name='hashee')\nfinally:\n {HEAVY}"
        done = run_python(
            code, _HASHEE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(typed.split(" ")) - 1)
        )
        assert offered in done.stdout, done.stderr
        assert "AssertionError" not in done.stderr


def commands(group: Any = app, prefix: str = "") -> dict[str, DeferredCommand]:
    """Return all commands by their full names."""
    found: dict[str, DeferredCommand] = {}
    for name, command in group.commands.items():
        if isinstance(command, DeferredCommand):
            found[prefix + name] = command
        else:
            found |= commands(command, f"{name} ")
    return found


@pytest.mark.parametrize("name", commands())
def test_what_help_lists_is_what_the_command_says(name: str) -> None:
    deferred = commands()[name]
    loaded = deferred.load()
    assert loaded.name == deferred.name
    assert loaded.help.strip().split("\n\n")[0] == deferred.help


def test_a_module_is_a_command_too() -> None:
    done = subprocess.run([sys.executable, "-m", "hashee", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"hashee {__version__}"
