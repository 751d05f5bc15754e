"""Settings are checked when they are made, and the command line has them all."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fitting_data import make_data

from hashee.cli.fit import fit as command
from hashee.data.task import Recipe
from hashee.errors import InputError
from hashee.training import FitSettings
from hashee.training.entry import complete_settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hash": "md5"}, "unknown hash 'md5'; choose from auto, frequency"),
        ({"distill": 1.5}, "distill is 1.5; it must be from 0 to 1"),
        ({"learning_rate": 0}, "learning_rate is 0; it must be from 1e-12 to 1"),
        ({"batch_size": "many"}, "batch_size is 'many'; it must be at least 1"),
        ({"search": "some"}, "search is 'some'; give a number of trials, or 'grid'"),
        ({"table": "t", "speedup": 2.0}, "leave out speedup, or table"),
        ({"resume": True, "overwrite": True}, "give one of them"),
        ({"epoch": 3}, "there is no setting 'epoch'; the settings are task, output"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        complete_settings(None, {"task": "sst2", "output": tmp_path / "out"} | changes)
    assert message in str(error.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task is missing"):
        complete_settings(None, {"output": tmp_path})
    with pytest.raises(InputError, match="output is missing"):
        complete_settings(None, {"task": "sst2"})
    with pytest.raises(InputError, match="is a file; name a folder"):
        FitSettings("sst2", Path(__file__))


def test_the_command_has_every_field_with_its_help_and_default() -> None:
    options = inspect.signature(command).parameters
    assert [name for name in options if name != "context"] == [field.name for field in fields(FitSettings)]
    for field in fields(FitSettings):
        text = field.type.__metadata__[0]  # type: ignore[union-attr]
        assert options[field.name].annotation.__metadata__[0].help.startswith(text.removesuffix("."))
        if field.name not in ("task", "output"):
            assert options[field.name].default == field.default


def test_the_recipe_is_the_task_s_where_nothing_else_is_said(tmp_path: Path) -> None:
    recipe = Recipe(batch_size=16, weight_decay=0.1)
    assert FitSettings("sst2", tmp_path).recipe(recipe) == recipe
    changed = FitSettings("sst2", tmp_path, learning_rate=1e-4, epochs=2).recipe(recipe)
    assert changed == Recipe(learning_rate=1e-4, epochs=2, batch_size=16, weight_decay=0.1)


def test_settings_know_where_they_differ_in_what_matters(tmp_path: Path) -> None:
    settings = FitSettings(make_data(), tmp_path, seed=1)
    assert settings.differences(settings.to_dict()) == []
    other = FitSettings(make_data(), tmp_path / "elsewhere", seed=2, quiet=True)
    assert other.differences(settings.to_dict()) == ["seed was 1 and is now 2"]
    assert len(FitSettings(make_data(train=50), tmp_path, seed=1).differences(settings.to_dict())) == 1
