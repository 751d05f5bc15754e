"""The table of summarization, on results whose values can be worked out by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest
from made_up_results import point, result
from rich.console import Console

from hashee.study import paper
from hashee.study.options import ReportOptions
from hashee.study.results import OperatingPoint, RunResult, TimedPart, WritingPoint
from hashee.study.tables import TABLES, Cell
from hashee.study.tables.summarization import DATASETS

OPTIONS = ReportOptions()


def part(speedup: float, seconds: float = 1.0) -> TimedPart:
    return TimedPart(100.0, 100 / speedup, 100 / speedup, speedup, speedup, seconds, dense_seconds=2.0)


def written(speedup: float, rouge: float, knob: float = 0.0, seconds: float = 1.0) -> OperatingPoint:
    """Return a point of a model that writes text; ROUGE-2 is half of ROUGE-1."""
    metrics = {"rouge1": rouge, "rouge2": rouge / 2, "rougeL": rouge, "score": rouge}
    parts = {"encoder": part(2 * speedup), "decoder": part(1.0), "total": part(speedup, seconds)}
    writing = WritingPoint({"dev": metrics, "test": metrics}, **parts)
    return replace(point(speedup, rouge, rouge, knob), writing=writing)


def results(task: str = "cnndailymail") -> list[RunResult]:
    return [
        result("dense", written(1.0, 0.4, seconds=2.0), task=task),
        result("hash-importance", written(2.1, 0.39, 2.0), written(4.0, 0.3, 4.0), task=task),
        result("hash-importance", written(1.9, 0.37, 2.0), written(4.0, 0.3, 4.0), task=task, seed=1),
        result("lead", written(1e9, 0.2), task=task),
        result("dense", point(1.0, 0.9, 0.9), task="sst2"),
    ]


def shown(found: list[RunResult], options: ReportOptions = OPTIONS) -> dict[tuple[Any, Any], dict[str, Any]]:
    table = TABLES["summarization"](found, options)
    json.dumps(table.to_dict(), allow_nan=False)
    return {(row[0], row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}


def values(content: Any) -> Any:
    assert isinstance(content, Cell)
    return content.values


def test_ours_are_means_at_twice_the_speed() -> None:
    row = shown(results())["cnndailymail", "hash-importance (minilm)"]
    assert values(row["ROUGE-1/2/L"])["rouge1"] == pytest.approx(38.0)
    assert values(row["ROUGE-1/2/L"])["seeds"] == 2 and "±1.4" in row["ROUGE-1/2/L"].text
    assert values(row["of dense"])["share"] == pytest.approx(0.95)
    assert [values(row[name])["speedup"] for name in ("encoder", "decoder", "total")] == pytest.approx([4.0, 1.0, 2.0])
    assert values(row["time"])["total"] == pytest.approx(2.0)
    dense = shown(results())["cnndailymail", "dense (minilm)"]
    assert (dense["of dense"].text, dense["time"].text) == ("100%", "1.0x")


def test_what_computes_nothing_has_no_speedup() -> None:
    row = shown(results())["cnndailymail", "lead (minilm)"]
    assert [row[name] for name in ("encoder", "total", "time")] == ["-", "-", "-"]
    assert row["ROUGE-1/2/L"].text == "20.0/10.0/20.0"


def test_the_papers_rows_stand_beside_its_datasets_alone() -> None:
    rows = shown(results("aeslc"))
    assert not any(name.startswith("  paper") for task, name in rows if task == "aeslc")
    for task, dataset in DATASETS.items():
        assert rows[task, "not run"]["ROUGE-1/2/L"] is None
        for system in paper.SUMMARIZERS:
            assert ((task, f"  paper: {system.name}") in rows) == (dataset in system.rouge)
    hashee = rows["cnndailymail", "  paper: HashEE w/ BART"]
    assert values(hashee["of dense"])["share"] == pytest.approx(41.04 / 44.16)
    assert [hashee[name].text for name in ("encoder", "decoder", "total")] == ["3.3x", "1.0x", "1.8x"]
    assert values(rows["csl", "  paper: CPT-6L"]["of dense"])["share"] == pytest.approx(52.29 / 65.49)


def test_one_task_can_be_asked_for_and_other_tasks_are_left_out() -> None:
    assert {task for task, _ in shown(results(), ReportOptions(task="CSL"))} == {"csl"}
    assert "sst2" not in {task for task, _ in shown(results())}


def test_other_metrics_are_named() -> None:
    translated = written(2.0, 0.6)
    assert translated.writing is not None
    metrics = {"test": {"chrf": 0.6, "score": 0.6}}
    translated = replace(translated, writing=replace(translated.writing, metrics=metrics))
    row = shown([result("dense", translated, task="news")])["news", "dense (minilm)"]
    assert row["ROUGE-1/2/L"].text == "chrf 60.0"


def test_it_prints() -> None:
    console = Console(record=True, width=120)
    console.print(TABLES["summarization"](results(), OPTIONS))
    assert "HashEE w/ BART" in console.export_text()
