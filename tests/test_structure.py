"""The tree stays as the docs say it is: imports go downwards, files fit in a head, registry and docs agree."""

import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from transformers import PreTrainedModel

import hashee
from hashee.families import FAMILIES
from hashee.families.adapters import ADAPTERS
from import_graph import DESIGN, MODULES, ROOMS, SOURCE, TOP, edges, imports_of, room_of, with_drawing

ROOT = Path(__file__).parents[1]
MOST_LINES = 400


def test_imports_are_found_wherever_they_are() -> None:
    source = """
import os, hashee.engine.plan
from typing import TYPE_CHECKING
from hashee.engine import native
from hashee.errors import HasheeError
if TYPE_CHECKING:
    from hashee.tables.budget import Budget
class Model:
    def forward(self):
        from hashee.hf.classes import hashed_class
        with open("x"):
            import hashee.hf.convert as convert
    async def later(self):
        importlib.import_module("hashee.tables.labelled")
"""
    names = {"engine.plan", "engine.native", "errors", "tables.budget", "hf.classes", "hf.convert", "tables.labelled"}
    assert imports_of(source) == {f"hashee.{name}" for name in names}
    with pytest.raises(AssertionError, match="written out in full"):
        imports_of("from .plan import Plan")


def test_imports_go_downwards() -> None:
    assert {
        (name, other) for name, other in edges() if ROOMS.index(room_of(other)) > ROOMS.index(room_of(name))
    } == set()


def test_imports_go_in_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for name, other in edges():
        graph.setdefault(name, set()).add(other)
    TopologicalSorter(graph).prepare()


def test_the_docs_draw_the_imports_and_describe_every_room() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    assert with_drawing(text) == text, "draw it anew: python tests/import_graph.py"
    described = set(re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE))
    assert described == set(ROOMS) - {"shared"}
    for name in sorted(set(MODULES) - TOP):
        room, _, rest = name.removeprefix("hashee.").partition(".")
        file = (rest or room).split(".")[0]
        assert f"`{file}`" in text or f"`{file}.py`" in text or f"`{file}/`" in text, (
            f"docs/design.md leaves {name} out"
        )


def test_files_fit_in_a_head() -> None:
    paths = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.[ch]"), *(ROOT / "tests").rglob("*.py")]
    assert {path.name: lines for path in paths if (lines := len(path.read_text().splitlines())) > MOST_LINES} == {}


def test_few_modules_lie_at_the_root() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8


def test_the_tests_mirror_the_tree() -> None:
    rooms = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    assert rooms == set(ROOMS) - {"shared"}


def test_docs_list_every_family() -> None:
    table = (ROOT / "docs" / "architectures.md").read_text()
    listed = set(re.findall(r"^\| `([a-z0-9_-]+)` \|", table, flags=re.MULTILINE))
    assert listed == {family.model_type for family in FAMILIES}


def test_every_adapter_names_a_real_encoder() -> None:
    for model_type, adapter in ADAPTERS.items():
        assert adapter.model_type == model_type == adapter.config_class.model_type
        assert issubclass(adapter.encoder_class, PreTrainedModel)


def test_public_names_exist() -> None:
    for name in hashee.__all__:
        assert hasattr(hashee, name)
