"""`hashee evaluate` needs nothing of what trains models, neither our modules nor accelerate."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from evaluating_data import make_task, save_hashed

import hashee.evaluation
from hashee.data.task import Kind

SCRIPT = """
import json, sys
sys.modules["accelerate"] = None  # as if it were not installed
from hashee.cli import main
sys.argv = ["hashee", "evaluate", *sys.argv[1:]]
try:
    main()
finally:
    loaded = {name for name in sys.modules if name.startswith("hashee.training.")}
    light = {f"hashee.training.{name}" for name in ("settings", "distillation", "stopping")}  # options and signals
    assert loaded <= light, loaded - light
"""


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.TAGS])
def test_evaluate_runs_without_accelerate(kind: Kind, tmp_path: Path) -> None:
    data = make_task(kind)
    assert data.test is not None
    for name, examples in (("train", data.train), ("dev", data.dev), ("test", data.test)):
        column, named = ("words", list) if kind is Kind.TAGS else ("text", str)
        rows = [
            {
                column: named(text),
                "tags" if kind is Kind.TAGS else "label": [data.task.labels[tag] for tag in target]
                if isinstance(target, tuple)
                else data.task.labels[int(target)],
            }
            for text, target in zip(examples.texts, examples.targets or (), strict=True)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = save_hashed(tmp_path / "model", kind)
    arguments = [str(folder), "--task", str(tmp_path / "train.jsonl"), "--test", str(tmp_path / "test.jsonl"), "--json"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments, "--dev", str(tmp_path / "dev.jsonl"), "--rounds", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["texts"] == len(data.test)


def test_only_the_tradeoff_imports_training() -> None:
    importing = set()
    for path in Path(hashee.evaluation.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hashee.training"):
                importing.add(path.name)
    assert importing == {"compare.py"}, "it fits the models that it compares"
