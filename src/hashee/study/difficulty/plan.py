"""The whole study from one file: sets to build, predictors to run on them, and tasks to test the hypothesis on."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from hashee.errors import InputError
from hashee.study.difficulty.building_human import HumanSettings, build_human
from hashee.study.difficulty.building_model import ModelSettings, build_by_model
from hashee.study.difficulty.datasets import LEVELS, DifficultySet, Level, load_set, save_set
from hashee.study.difficulty.hypothesis import HypothesisSettings
from hashee.study.difficulty.run import WORK, Block
from hashee.study.grid import expanded

T = TypeVar("T")


@dataclass(frozen=True)
class Build:
    """A set that is built into a folder, unless it is there."""

    level: Level
    output: Path
    settings: HumanSettings | ModelSettings

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InputError(f"unknown level {self.level!r} of difficulty; choose from {', '.join(LEVELS)}")

    def run(self) -> DifficultySet:
        """Build the set and write it; a folder that holds one is left as it is."""
        if not (self.output / "test.jsonl").exists():
            if isinstance(self.settings, HumanSettings):
                made = build_human(self.settings)
            else:
                made = build_by_model(self.level, self.settings, self.output / WORK)
            save_set(made, self.output)
        return load_set(self.output)


@dataclass(frozen=True)
class Plan:
    """What the study consists of."""

    output: Path = Path("results/study/difficulty")
    builds: tuple[Build, ...] = ()
    blocks: tuple[Block, ...] = ()
    hypotheses: tuple[HypothesisSettings, ...] = field(default_factory=tuple)
    """One for each seed."""


def read_plan(path: Path) -> Plan:
    """Read a TOML file with `output` and tables `[[build]]`, `[[runs]]` and `[[hypothesis]]`."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"cannot read a study of difficulty from {path}: {error}") from None
    output = Path(values.pop("output", Plan.output))
    tables = {name: values.pop(name, []) for name in ("build", "runs", "hypothesis")}
    if values:
        raise InputError(f"{path} has {min(values)!r}; there are output, [[build]], [[runs]] and [[hypothesis]]")
    return Plan(
        output,
        tuple(_build(path, row) for row in tables["build"]),
        tuple(_made(path, Block, _with_paths(row)) for row in tables["runs"]),
        tuple(each for row in tables["hypothesis"] for each in hypotheses(path, row)),
    )


def hypotheses(path: Path, row: Mapping[str, Any]) -> list[HypothesisSettings]:
    """Return the settings of each seed."""
    settings = _made(path, HypothesisSettings, _with_limits(_with_paths(row)))
    return [_made(path, HypothesisSettings, {**vars(settings), "seed": seed}) for seed in range(settings.seeds)]


def _build(path: Path, row: Mapping[str, Any]) -> Build:
    own = _with_limits(_with_paths(row))
    try:
        level, output = own.pop("level"), Path(own.pop("output"))
    except KeyError as error:
        raise InputError(f"{path}: [[build]] needs {error}") from None
    own.setdefault("name", output.name)
    if level == "human":
        own["files"] = [Path(expanded(str(file))) for file in own.pop("files", ())]
        return Build(level, output, _made(path, HumanSettings, own))
    return Build(level, output, _made(path, ModelSettings, own))


def _with_paths(row: Mapping[str, Any]) -> dict[str, Any]:
    """Put environment variables into what names models and sets."""
    own = dict(row)
    if "backbone" in own:
        own["backbone"] = expanded(own["backbone"])
    for name in ("backbones", "sets"):
        if name in own:
            own[name] = [expanded(each) for each in own[name]]
    return own


def _with_limits(row: dict[str, Any]) -> dict[str, Any]:
    if "limits" in row:
        limits = row["limits"]
        row["limits"] = (limits.get("train"), limits.get("dev"), limits.get("test"))
    return row


def _made(path: Path, kind: type[T], values: Mapping[str, Any]) -> T:
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise InputError(f"{path} has {name!r} where there are {', '.join(sorted(known))}")
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(f"{path}: {error}") from None
