"""The figures in the docs are those of the result files."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[1]
Benchmark: TypeAlias = Callable[[str], ModuleType]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Import a script of benchmarks/, which imports its neighbours."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_the_page_of_results_shows_the_files(benchmark: Benchmark) -> None:
    page = (ROOT / "docs" / "earlier_results.md").read_text(encoding="utf-8")
    assert benchmark("results_table").figures() in page, "run benchmarks/results_table.py"


def test_readme_and_results_show_what_the_study_found(benchmark: Benchmark) -> None:
    for name, part in benchmark("study_pages").pages().items():
        assert part in (ROOT / name).read_text(encoding="utf-8"), f"{name}: run benchmarks/study_pages.py"


def test_the_page_of_embedders_shows_the_files(benchmark: Benchmark) -> None:
    page = (ROOT / "docs" / "embedders.md").read_text(encoding="utf-8")
    for part in benchmark("embedder_pages").parts().values():
        assert part in page, "run benchmarks/embedder_pages.py"


def test_result_files_say_what_was_run() -> None:
    files = sorted((ROOT / "results" / "quality").glob("*/*.json"))
    assert files
    for path in files:
        result = json.loads(path.read_text(encoding="utf-8"))
        assert 0 < result["metrics"]["test"]["score"] <= 1, path
        assert result["macs"]["speedup"] >= result["macs"]["paper_speedup"] >= 1, path
        assert result["versions"]["torch"] and result["data"]["fingerprint"], path
        assert "/" not in result["backbone"]["name"], path
