"""The tree stays as the docs say it is: imports go downwards, registry and docs agree."""

import ast
import re
from pathlib import Path

from transformers import PreTrainedModel

import hashee
from hashee.adapters import ADAPTERS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hashee"

# Lower layers first; a module may import only from its own layer or lower ones.
LAYERS = [
    {"errors", "files", "memory", "packages"},
    {"versions"},
    {"texts", "embedded", "pretrained"},
    {"tasks"},
    {"hashing", "models"},
    {"table"},
    {"plan"},
    {"native"},
    {"attention", "linear"},
    {"activation"},
    {"block"},
    {"adapters", "fused"},
    {"first_layer"},
    {"reference", "encoder", "flops", "checkpoint"},
    {"explain", "predict", "budget"},
    {"model"},
    {"families"},
    {"convert"},
    {"export", "quantize", "importance"},
    {"labelled"},
    {"loading", "speed"},
    {"fitting"},
    {"evaluating"},
    {"", "demo", "cli"},
]


def layer_of(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if module in names)


def imports_of(path: Path) -> set[str]:
    """Return the hashee modules that a file imports when it is itself imported."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == "hashee":
            modules = {name for layer in LAYERS for name in layer}
            found |= {name.name if name.name in modules else "" for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "hashee":
            found.add(([*node.module.split("."), ""])[1])
        elif isinstance(node, ast.Import):
            found |= {([*name.name.split("."), ""])[1] for name in node.names if name.name.split(".")[0] == "hashee"}
    return found


def test_imports_go_downwards() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE).with_suffix("").parts[0].removeprefix("__init__").removeprefix("__main__")
        for imported in imports_of(path):
            assert layer_of(imported) <= layer_of(module), f"{path.name} imports {imported}"


def test_docs_list_every_family() -> None:
    table = (ROOT / "docs" / "architectures.md").read_text()
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", table, flags=re.MULTILINE))
    assert listed == set(ADAPTERS)


def test_every_adapter_names_a_real_encoder() -> None:
    for model_type, adapter in ADAPTERS.items():
        assert adapter.model_type == model_type == adapter.config_class.model_type
        assert issubclass(adapter.encoder_class, PreTrainedModel)


def test_public_names_exist() -> None:
    for name in hashee.__all__:
        assert hasattr(hashee, name)
