"""Which modules of hashee import which, read from the source, and the drawing of it in docs/design.md.

Run as a script, it draws the graph anew: `python tests/import_graph.py`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hashee"
DESIGN = ROOT / "docs" / "design.md"

ROOMS = (
    "shared",
    "data",
    "cost",
    "engine",
    "families",
    "tables",
    "hf",
    "export",
    "training",
    "distillation",
    "evaluation",
    "bench",
    "study",
    "serving",
    "bulk",
    "cli",
)
"""Lower rooms first; a module may import only from its own room or lower ones. `shared` is the package's root."""
TOP = {"hashee", "hashee.__main__", "hashee.tasks"}
"""Modules at the root that offer names of the rooms: they stand above all of them."""


def name_of(path: Path) -> str:
    """Return the name under which a file is imported."""
    parts = [part for part in path.relative_to(SOURCE.parent).with_suffix("").parts if part != "__init__"]
    return ".".join(parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def room_of(module: str) -> str:
    """Return the room of a module."""
    if module in TOP:
        return ROOMS[-1]
    first = module.split(".")[1]
    return first if first in ROOMS else "shared"


def imports_of(source: str) -> set[str]:
    """Return the hashee modules that a file imports anywhere: at its top, in functions, for types only."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written out in full"
            # What is imported may be a module itself.
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return {name for name in found if name.split(".")[0] == "hashee"}


def edges() -> set[tuple[str, str]]:
    """Return every module with every other one that it imports."""
    return {(name, other) for name, path in MODULES.items() for other in imports_of(path.read_text()) - {name}}


def drawing() -> str:
    """Return the rooms as a Mermaid graph; an arrow that follows from others is left out."""
    between = {(room_of(name), room_of(other)) for name, other in edges()}
    below: dict[str, set[str]] = {}
    lines = []
    for room in ROOMS:
        direct = {other for name, other in between if name == room and other != room}
        indirect = {further for other in direct for further in below[other]}
        below[room] = direct | indirect
        lines += [f"    {room} --> {other}" for other in ROOMS if other in direct - indirect]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def with_drawing(text: str) -> str:
    """Return a page with its graph drawn anew."""
    return re.sub(r"```mermaid\n.*?```", lambda _: drawing(), text, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    DESIGN.write_text(with_drawing(DESIGN.read_text(encoding="utf-8")), encoding="utf-8")
