"""A trade-off fits each point once, goes on where it stopped, and draws what it found."""

import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluating_data import make_task
from rich.console import Console
from transformers import AutoModel

from architectures import make_config
from hashee.cli.evaluate import points_table
from hashee.errors import HasheeError, InputError
from hashee.evaluation import TradeoffPoint, draw_tradeoff, evaluate, read_points, tradeoff, write_points
from hashee.evaluation.points import passes_caption
from hashee.evaluation.terminal import summary_lines
from small_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with three layers."""
    folder, tokenizer = tmp_path_factory.mktemp("backbone"), make_tokenizer()
    torch.manual_seed(0)
    config = make_config("bert", vocab_size=len(tokenizer), pad_token_id=0, num_hidden_layers=3)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fields_of(backbone: Path, output: Path, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"task": make_task(), "backbone": backbone, "output": output, "epochs": 1, "quiet": True}
    return fields | {"learning_rate": 1e-3} | changes


@pytest.fixture(scope="module")
def fitted(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TradeoffPoint]]:
    """Two seeds of two speed-ups, one of which no table reaches, and one shallower model."""
    output = tmp_path_factory.mktemp("tradeoff") / "out"
    points = tradeoff(speedups=(2, 900), hash="frequency", depths=[1], seeds=2, **fields_of(backbone, output))
    return output, points


def test_points_say_what_was_fitted(fitted: tuple[Path, list[TradeoffPoint]]) -> None:
    output, points = fitted
    assert [point.name for point in points] == ["dense", "frequency-2x", "frequency-900x", "static-1"]
    dense, hashed, skipped, static = points
    assert skipped.skipped is not None and "900" in skipped.skipped and skipped.dev is None
    assert (dense.speedup, dense.layers, static.layers) == (1.0, 3, 1)
    for seed in (0, 1):
        run = json.loads((output / f"seed-{seed}" / "frequency-2x" / "run.json").read_text())
        assert run["settings"]["dense"] == str(output / f"seed-{seed}" / "dense"), "one dense model for all points"
        assert run["settings"]["speedup"] == 2
        shallow = json.loads((output / f"seed-{seed}" / "static-1" / "run.json").read_text())
        assert (shallow["table"]["method"], shallow["table"]["num_layers"]) == ("never", 1)
        assert shallow["settings"]["warm_start"] is False and shallow["dense"] is None, "from the backbone at once"
        assert shallow["dense_equal"] == run["dense_equal"] and run["dense"]["passes"] == 1.0
    runs = [json.loads((output / f"seed-{seed}" / "frequency-2x" / "run.json").read_text()) for seed in (0, 1)]
    scores = [run["metrics"]["test"]["score"] for run in runs]
    assert hashed.test == pytest.approx(sum(scores) / 2) and hashed.seeds == 2
    assert hashed.test_std == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)
    assert hashed.speedup == pytest.approx(sum(run["macs"]["speedup"] for run in runs) / 2)
    assert dense.macs == pytest.approx(runs[0]["macs"]["dense_per_text"], rel=0.01)
    assert dense.dev == pytest.approx(sum(run["dense_equal"]["metrics"]["dev"]["score"] for run in runs) / 2)
    assert Path(hashed.folder or "").is_dir() and Path(dense.folder or "").name == "dense-equal"
    assert dense.seconds and hashed.seconds


def test_every_point_has_as_many_passes(fitted: tuple[Path, list[TradeoffPoint]]) -> None:
    output, points = fitted
    assert {point.passes for point in points if point.skipped is None} == {2.0}
    for seed in (0, 1):
        folder = output / f"seed-{seed}"
        start = json.loads((folder / "dense" / "stage.json").read_text())["steps"]
        hashed, static = (json.loads((folder / name / "run.json").read_text()) for name in ("frequency-2x", "static-1"))
        steps = [hashed["dense_equal"]["steps"], static["candidates"][0]["steps"]]
        assert steps == [start + hashed["candidates"][0]["steps"]] * 2, "and as many steps of the optimizer"
    assert passes_caption(points) == "each model had 2 passes over the training examples"


def test_a_caption_says_where_passes_differ_or_nobody_knows() -> None:
    points = [TradeoffPoint("dense", "dense", 6, passes=1.0), TradeoffPoint("a", "mi", 6, passes=2.0)]
    points += [TradeoffPoint("b", "mi", 6), TradeoffPoint("c", "mi", 6, skipped="too fast", passes=7.0)]
    caption = passes_caption(points) or ""
    assert "do not compare; dense: 1 pass, a: 2 passes, b: unknown passes" in caption and "7" not in caption
    assert passes_caption(points[2:]) is None


def test_a_point_is_evaluated_against_a_dense_model_of_as_many_passes(
    fitted: tuple[Path, list[TradeoffPoint]],
) -> None:
    _, (dense, hashed, *_) = fitted
    found = evaluate(hashed.folder, make_task(), rounds=0, quiet=True)
    assert found.dense is not None and Path(found.dense.source).name == "dense-equal"
    assert found.equal_passes is True and found.dense.passes == dense.passes == 2.0
    assert "of its quality is kept; both had 2 passes over the training examples" in summary_lines(found)[0]


def test_files_are_written(fitted: tuple[Path, list[TradeoffPoint]]) -> None:
    output, points = fitted
    assert read_points(output / "tradeoff.json") == points
    row = json.loads((output / "tradeoff.json").read_text())[1]
    assert {"name", "hash", "asked", "speedup", "macs", "dev", "test", "seconds", "folder"} <= set(row)
    png = (output / "tradeoff.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and len(png) > 10_000


def test_what_is_finished_is_used_again(fitted: tuple[Path, list[TradeoffPoint]], backbone: Path) -> None:
    output, points = fitted
    files = [*output.glob("seed-*/**/*.safetensors"), *output.glob("seed-*/dense-equal.json")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert {path.parent.name for path in files} >= {"dense", "dense-equal", "frequency-2x", "static-1", "seed-1"}
    fields = fields_of(backbone, output)
    again = tradeoff(speedups=(2, 900, 2.4), hash=["frequency"], depths=[1], seeds=2, **fields)
    assert [point for point in again if point.name != "frequency-2.4x"] == [
        TradeoffPoint(**(asdict(point) | {"on_front": other.on_front}))
        for point, other in zip(points, [each for each in again if each.name != "frequency-2.4x"], strict=True)
    ]
    assert again[2].name == "frequency-2.4x" and again[2].dev is not None
    after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before, "no model was fitted or evaluated again"
    with pytest.raises(InputError, match=r"was begun otherwise: learning_rate was 0\.001 and is now 0\.5"):
        tradeoff(speedups=(2,), hash="frequency", depths=(), **(fields | {"learning_rate": 0.5}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hash": "auto"}, "unknown hash 'auto'; choose from frequency"),
        ({"speedups": (0.5,)}, r"speed-up 0.5 cannot be asked for"),
        ({"depths": (3,)}, "depth 3 is not from 1 to 2; the backbone has 3 layers"),
        ({"speedups": (), "depths": ()}, "nothing to compare"),
        ({"speedup": 2}, "speedup is what a trade-off varies"),
        ({"lr": 2}, "there is no setting 'lr'"),
        ({"speedups": (900,), "hash": "frequency", "depths": ()}, "none of the models could be fitted; the first"),
    ],
)
def test_bad_input_is_one_clear_line(changes: dict[str, Any], message: str, backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(HasheeError, match=message):
        tradeoff(**(fields_of(backbone, tmp_path / "out") | changes))


def test_points_of_any_origin_can_be_drawn(tmp_path: Path) -> None:
    points = [
        TradeoffPoint("dense", "dense", 6, speedup=1, dev=0.92, test=0.91),
        TradeoffPoint("a", "my own $\\frac table", 6, 2, 2.1, 1e8, 0.9, 0.89, 0.01, 0.01, 3),
        TradeoffPoint("b", "another table", 6, 2, 2.1, 1e8, 0.9, 0.89),
        TradeoffPoint("c", "mi", 6, 900, skipped="too fast"),
    ]
    write_points(points, tmp_path / "points.json")
    assert read_points(tmp_path / "points.json") == points
    path = draw_tradeoff(points, tmp_path / "figure.svg", title="a $task", metric="accuracy")
    drawn = path.read_text(encoding="utf-8")
    assert drawn.lstrip().startswith("<?xml") and "</svg>" in drawn
    with pytest.raises(InputError, match="nothing to draw"):
        draw_tradeoff(points[3:], tmp_path / "empty.png")
    (tmp_path / "points.json").write_text("[3]")
    with pytest.raises(InputError, match="holds no points"):
        read_points(tmp_path / "points.json")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_and_numbers_are_whole_in_the_terminal(width: int) -> None:
    numbers: dict[str, Any] = {"macs": 2.1e8, "seconds": 1234.0, "seeds": 3, "test_std": 0.0123}
    points = [
        TradeoffPoint("dense", "dense", 12, speedup=1.0, dev=0.9, test=0.91, on_front=True, **numbers),
        TradeoffPoint(
            "importance, 12x", "importance", 12, 12.0, 12.06, dev=0.87, test=0.8812, on_front=True, **numbers
        ),
        TradeoffPoint("by mutual information, 12x", "mi", 12, 12.0, 11.5, dev=0.83, test=0.8199, **numbers),
        TradeoffPoint("frequency, 100x", "frequency", 12, 100.0, skipped="no table reaches it"),
    ]
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(points_table(points))
    shown = capture.get()
    assert "…" not in shown and max(map(len, shown.splitlines())) <= width
    for point in points:
        (line,) = (line for line in shown.splitlines() if f"│ {point.name} " in line)
        numbers_of = ("skipped",) if point.skipped else (f"{point.speedup:.2f}x", f"{point.test:.4f} ± 0.0123")
        assert all(number in line for number in numbers_of)
    assert ("no room for" in shown) == (width < 120) and ("seconds │" in shown or "seconds ┃" in shown) == (
        width == 120
    )
