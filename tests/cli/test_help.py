"""Help fits on a screen or two, in panels, and whatever it leaves out is in the docs."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from hashee.evaluation.compare import OWN
from hashee.evaluation.settings import EvaluateSettings
from hashee.training import FitSettings

DOCS = Path(__file__).parents[2] / "docs"
LINES = {"fit": 95, "tradeoff": 94, "evaluate": 63}
PANELS = {
    "fit": ["Options", "Data", "Model", "Exits", "Training", "Summaries", "Run"],
    "tradeoff": ["Options", "Data", "Exits", "Model", "Training", "Summaries", "Run"],
    "evaluate": ["Arguments", "Options", "Data", "Model", "Timing", "Report", "Retrieval"],
}
PAGES = {
    "fit": ("fitting.md",),
    "tradeoff": ("evaluating.md", "fitting.md"),
    "evaluate": ("evaluating.md", "fitting.md"),
}


@cache
def help_of(command: str) -> str:
    environment = os.environ | {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    run = [sys.executable, "-m", "hashee", command, "--help"]
    return subprocess.run(run, env=environment, capture_output=True, encoding="utf-8", check=True).stdout


def options_of(command: str) -> list[str]:
    """Return the options that a command must have, from the settings that it is made from."""
    names = {
        "fit": [field.name for field in fields(FitSettings)],
        "tradeoff": [field.name for field in fields(FitSettings) if field.name not in OWN],
        "evaluate": [field.name for field in fields(EvaluateSettings)],
    }[command]
    own = {"fit": [], "tradeoff": ["speedups", "hash", "depths", "json"], "evaluate": ["task", "output", "json"]}[
        command
    ]
    return [f"--{name.replace('_', '-')}" for name in (*names, *own)]


@pytest.mark.parametrize("command", LINES)
def test_help_is_short_and_in_panels(command: str) -> None:
    shown = help_of(command)
    assert len(shown.splitlines()) <= LINES[command]
    assert max(map(len, shown.splitlines())) <= 80 and "…" not in shown
    assert re.findall(r"╭─ (\w+) ─", shown) == PANELS[command]


@pytest.mark.parametrize("command", LINES)
def test_every_option_is_listed_once_with_an_explanation(command: str) -> None:
    lines = help_of(command).splitlines()
    assert not set(options_of(command)) - set(re.findall(r"│ (--[\w-]+)", "\n".join(lines)))
    for name in sorted({*options_of(command), "--help"}):
        listed = [line for line in lines if re.match(rf"│ (--\S+ +)?{name} ", line)]
        assert len(listed) == 1, name
        assert re.search(r"> +\S+ \S+", listed[0]), name


def test_the_essential_options_come_first() -> None:
    first = help_of("fit").split("╭─ Data")[0]
    assert re.findall(r"│ (--\S+)", first) == [
        *("--task", "--output", "--backbone", "--hash", "--speedup", "--resume", "--help")
    ]


@pytest.mark.parametrize("command", LINES)
def test_the_docs_explain_every_option(command: str) -> None:
    pages = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES[command])
    shown = set(re.findall(r"(?<=[ │])--[a-z][\w-]+", help_of(command))) - {"--help"}
    assert not [name for name in shown if not re.search(rf"{name}(?![\w-])", pages)]


def test_defaults_are_said() -> None:
    shown = " ".join(help_of("fit").replace("│", " ").split())
    for default in (
        "model; default minilm.",
        "importance; default auto.",
        "at once; default 8192.",
        "logits; default 2.",
    ):
        assert default in shown
