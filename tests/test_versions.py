"""The versions that are declared are those of the lowest run, and private parts of other libraries are known ones."""

import ast
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from hashee import versions
from hashee.errors import HasheeError

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hashee"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KNOWN = {name for table in (versions.NEEDED_BY_MODELS, versions.OPTIONAL) for names in table.values() for name in names}


def declared() -> dict[str, str]:
    """Return the lowest version of every dependency."""
    requirements = PROJECT["dependencies"] + [r for rs in PROJECT["optional-dependencies"].values() for r in rs]
    found = (re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in found if match}


def test_the_lowest_run_takes_the_lowest_versions_that_are_declared() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    lowest = dict(line.split("==") for line in lines if not line.startswith("#"))
    not_run = {"torch", "mypy", "ruff"}  # torch's floor was run by hand; the others only read the code
    assert {name: version for name, version in lowest.items() if name not in not_run} == {
        name: version for name, version in declared().items() if name not in not_run
    }


def test_the_docs_name_the_versions_that_are_declared() -> None:
    text = (ROOT / "docs" / "versions.md").read_text()
    for name in ("torch", "transformers"):
        assert f"{name} {declared()[name]}" in text
    pythons = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    assert pythons == set(re.findall(r"\| (3\.\d+)[ .]", text))


def private_names(tree: ast.AST) -> set[str]:
    """Return the private attributes that are used, and operations by their place in torch.ops."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            place = ast.unparse(node)
            if re.fullmatch(r"torch\.ops\.\w+\.\w+", place) or re.fullmatch(r"_[a-z]\w*", node.attr):
                found.add(node.attr)
    return found


def own_names(tree: ast.AST) -> set[str]:
    """Return the private names that are defined here; overriding a foreign one does not make it ours."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            targets = [part for target in targets for part in getattr(target, "elts", [target])]
            own |= {target.attr for target in targets if isinstance(target, ast.Attribute)}
            own |= {target.id for target in targets if isinstance(target, ast.Name)}
    return own - KNOWN


def test_every_private_part_of_other_libraries_is_known_and_in_the_docs() -> None:
    trees = [ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")]
    own = set().union(*map(own_names, trees))
    used = set().union(*map(private_names, trees)) - own
    assert used <= KNOWN, "add it to versions.py with what happens where it is gone, and to docs/versions.md"
    text = (ROOT / "docs" / "versions.md").read_text()
    assert {name for name in KNOWN if f"{name}`" not in text} == set()


def test_what_is_needed_is_there() -> None:
    for library in (torch, transformers):
        versions.check_private(library, versions.NEEDED_BY_MODELS)


def test_what_is_gone_is_named() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            del self._forward_hooks

    library = SimpleNamespace(__name__="torch", __version__="9.9", nn=SimpleNamespace(Module=Bare))
    message = r"torch 9\.9 has no torch\.nn\.Module\._forward_hooks, on which hashee stands; install a version"
    with pytest.raises(HasheeError, match=message):
        versions.check_private(library, versions.NEEDED_BY_MODELS)
    library = SimpleNamespace(__name__="transformers", __version__="9.9")
    with pytest.raises(HasheeError, match=r"transformers 9\.9 has no transformers\.\w+\._"):
        versions.check_private(library, versions.NEEDED_BY_MODELS)
