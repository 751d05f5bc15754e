"""Rows, ratios, batches and reports are what their names say."""

import io
import json
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hashee.bench.baselines import BASELINES, REFERENCE, TRAINING_REFERENCE, Baseline, register, select
from hashee.bench.batches import TokenizedTexts, cut, draw, pad
from hashee.bench.cost import COSTS
from hashee.bench.protocol import Benchmark, ClockJob, Row, Timing, add_ratios, fill_row
from hashee.bench.report import COLUMNS, as_table, read_json, speed_figure, write_json, write_plot
from hashee.bench.workloads import load_workload
from hashee.cost.machine import describe_machine
from hashee.errors import HasheeError, InputError

KEYS = {"name", "texts_per_second", "ratio", "executed_gflops", "utilisation", "peak_memory_mb"}


def row(name: str, *seconds: float, macs: int = 10**9, batch_size: int = 32) -> Row:
    blank = Row(name, texts=100, tokens=2500, batch_size=batch_size, depth=6, machine=describe_machine(2))
    return fill_row(blank, Timing(seconds, macs, 512.0), sgemm_gflops=8.0)


def make_tokens(count: int = 50) -> TokenizedTexts:
    lengths = [3 + (7 * number) % 19 for number in range(count)]
    return TokenizedTexts(
        tuple(tuple(range(1, length + 1)) for length in lengths), tuple((0,) * length for length in lengths)
    )


def test_numbers_follow_from_the_median() -> None:
    found = row("a", 1.0, 4.0, 2.0)
    assert found.texts_per_second == 50 and found.tokens_per_second == 1250
    assert found.executed_gflops == 1.0 and found.utilisation == 0.125
    assert found.executed_flops_per_text == 2e7
    assert (found.min_seconds, found.median_seconds, found.max_seconds, found.spread) == (1.0, 2.0, 4.0, 1.5)


def test_ratio_is_to_the_reference_of_the_same_rounds() -> None:
    rows = add_ratios([row("slow", 2.0, 4.0, 4.0), row("fast", 1.0, 1.0, 0.5), Row("out", skipped="why")], "slow")
    slow, fast, out = rows
    assert slow.ratio == 1.0 and out.ratio is None
    assert fast.ratio == 4.0 and (fast.ratio_min, fast.ratio_max) == (2.0, 8.0)


def test_without_the_reference_there_is_no_ratio() -> None:
    assert add_ratios([row("fast", 1.0)], REFERENCE)[0].ratio is None


def test_json_is_a_list_of_objects_with_the_promised_keys(tmp_path: Path) -> None:
    rows = [*add_ratios([row("slow", 2.0), row("fast", 1.0)], "slow"), Row("out", skipped="package x is missing")]
    write_json(rows, tmp_path / "speed.json")
    written = json.loads((tmp_path / "speed.json").read_text())
    assert isinstance(written, list) and all(set(entry) >= KEYS for entry in written)
    assert written[1]["ratio"] == 2.0 and written[2]["skipped"] == "package x is missing"
    assert {"cpu", "cores", "threads", "python", "versions", "date", "commit"} <= set(written[0]["machine"])
    assert read_json(tmp_path / "speed.json") == rows


def rendered(rows: list[Row], width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as capture:
        console.print(as_table(rows))
    return capture.get()


def every_baseline() -> list[Row]:
    """Rows of all baselines that a user can meet in one table, with numbers as wide as they get."""
    rows = [row(baseline.name, 0.081, 0.09, 0.0713, macs=10**10) for baseline in select("minilm", False)]
    return [
        replace(each, dtype=dtype, max_difference=1e-6, agreement=0.9987 if dtype == "int8" else None)
        for each in add_ratios(rows, REFERENCE)
        for dtype in ["int8" if "int8" in each.name else "float32"]
    ]


def test_table_shows_skipped_baselines_with_the_reason() -> None:
    shown = rendered([row("fast", 1.0), Row("out", skipped="package x is missing")], 80)
    assert "fast" in shown and "skipped out: package x is missing" in shown


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_names_and_numbers_are_whole_at_every_width(width: int) -> None:
    rows = every_baseline()
    shown = rendered(rows, width)
    lines = shown.splitlines()
    assert "…" not in shown and max(map(len, lines)) <= width
    cells = {line.strip("│ ").split("│")[0].strip(): line for line in lines if line.startswith("│")}
    assert set(cells) == {each.name for each in rows}, "one line for each baseline, its name whole"
    for each in rows:
        assert f"{each.texts_per_second:,.1f}" in cells[each.name] and f"{each.ratio:.2f}" in cells[each.name]
    assert all(word in shown.replace("\n", " ").split() for word in ("tokens,", "length-sorted", "rounds"))


def test_rows_are_grouped_by_precision_and_int8_shows_what_it_costs_in_quality() -> None:
    lines = rendered(every_baseline(), 80).splitlines()
    at = {line.strip("│ ").split("│")[0].strip(): number for number, line in enumerate(lines) if line.startswith("│")}
    (border,) = (number for number, line in enumerate(lines) if line.startswith("├"))
    assert all((number > border) == ("int8" in name) for name, number in at.items())
    assert all(("0.9987" in lines[number]) == ("int8" in name) for name, number in at.items())
    assert any("mean cosine" in line for line in lines) and "groups by precision: float32, int8" in lines
    # Without int8 there is nothing to agree.
    assert "agrees" not in rendered([row for row in every_baseline() if row.dtype == "float32"], 80)


def test_a_wide_terminal_shows_all_columns_and_a_narrow_one_says_what_it_leaves_out() -> None:
    wide, narrow = rendered(every_baseline(), 160), rendered(every_baseline(), 80)
    assert "no room" not in wide
    header = next(line for line in narrow.splitlines() if "method" in line)
    left_out = next(line for line in narrow.splitlines() if line.startswith("no room for: "))
    for column in COLUMNS:
        assert f" {column.header} " in wide
        assert (column.header in header) != (column.header in left_out), column.header
    assert all(column in header for column in ("texts/s", "ratio", "agrees", "of rounds", "layers"))


def test_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot([row("a", 1.0, 1.2), row("a", 0.5, batch_size=128), Row("out", skipped="x")], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    with pytest.raises(HasheeError, match="nothing to plot"):
        write_plot([Row("out", skipped="x")], tmp_path / "empty.png")


@pytest.mark.parametrize("sizes", [(32,), (1, 8, 32, 128)])
def test_no_text_of_the_plot_lies_on_another(sizes: tuple[int, ...]) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        row(baseline.name, (0.5 + 0.2 * number) / size**0.3, 0.6 / size**0.3, batch_size=size)
        for size in sizes
        for number, baseline in enumerate(select("minilm", False))
    ]
    figure = speed_figure(rows)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    legend = [text for each in figure.legends for text in each.get_texts()]
    texts = [*axes.get_xticklabels(which="both"), *axes.get_yticklabels(which="both"), *legend]
    written = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    for (one, box), (two, other) in combinations(written, 2):
        assert not box.overlaps(other), f"{one!r} and {two!r}"
    names = {f"{each.name} ({each.depth} layers)" for each in rows}
    assert names <= {text for text, _ in written}
    numbers = [text for text, _ in written if text not in names]
    assert len(numbers) >= 4 and all(re.fullmatch(r"[\d,.]+", number) for number in numbers), numbers


@pytest.mark.parametrize("batch_size", [1, 4, 16])
def test_drawn_texts_are_whole_uniform_batches(batch_size: int) -> None:
    tokens = make_tokens()
    drawn = draw(tokens, 16, batch_size, seed=0)
    assert len(drawn) == 16
    assert draw(tokens, 16, batch_size, seed=0) == drawn != draw(tokens, 16, batch_size, seed=1)
    everything = cut(tokens, batch_size, "sorted")
    widest = max(max(tokens.lengths[index] for index in batch) - tokens.lengths[batch[0]] for batch in everything)
    for batch in cut(drawn, batch_size, "sorted"):
        lengths = [drawn.lengths[index] for index in batch]
        assert max(lengths) - min(lengths) <= widest


def test_every_text_is_in_one_batch() -> None:
    tokens = make_tokens(10)
    for order in ("sorted", "arrival"):
        assert sorted(index for batch in cut(tokens, 4, order) for index in batch) == list(range(10))
    assert cut(tokens, 4, "arrival")[0] == [0, 1, 2, 3]


def test_padding_is_masked() -> None:
    tokens = TokenizedTexts(((5, 6, 7), (8,)), ((0, 0, 1), (0,)))
    batch = pad(tokens, [0, 1])
    np.testing.assert_array_equal(batch.input_ids, [[5, 6, 7], [8, 0, 0]])
    np.testing.assert_array_equal(batch.attention_mask, [[1, 1, 1], [1, 0, 0]])
    np.testing.assert_array_equal(batch.token_type_ids, [[0, 0, 1], [0, 0, 0]])


def test_every_baseline_has_a_way_to_count_and_a_reference() -> None:
    assert {baseline.cost for baseline in BASELINES.values()} <= set(COSTS)
    assert not BASELINES[REFERENCE].training and BASELINES[TRAINING_REFERENCE].training
    assert (BASELINES[REFERENCE].layers(12), BASELINES["hashee"].layers(12), BASELINES["hashee"].layers(4)) == (
        12,
        6,
        4,
    )


def test_a_name_stands_for_one_baseline() -> None:
    with pytest.raises(InputError, match="already another baseline"):
        register(Baseline("hashee", "elsewhere:load"))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no baseline 'tensorflow'"):
        select("bert-base", False, ["tensorflow"])
    with pytest.raises(InputError, match="no workload"):
        load_workload("CoLA", 6)
    assert "sentence-transformers onnx" not in {baseline.name for baseline in select("bert-base", False)}
    assert "sentence-transformers onnx" in {baseline.name for baseline in select("minilm", False)}


@pytest.mark.parametrize("fields", [{"rounds": 0}, {"threads": 0}, {"batch_sizes": (8, 0)}, {"batch_sizes": ()}])
def test_impossible_benchmarks_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Benchmark(**fields)  # type: ignore[arg-type]


def test_a_job_survives_the_pipe() -> None:
    job = ClockJob("hashee", 6, "sorted", 32, 2, "texts.json", "model", "table", "artifacts", ("a", "b"))
    assert ClockJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job
