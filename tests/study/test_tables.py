"""Tables of the study, on results whose values can be worked out by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_up_results import baselines, point, result
from rich.console import Console
from transformers import AutoTokenizer

from hashee.cost.macs import BERT_BASE, layer_cost
from hashee.data import load_task
from hashee.embedded import minilm_folder
from hashee.errors import InputError
from hashee.hf.flops import lengths_and_active
from hashee.study import paper
from hashee.study.clocks import ClockRow, Clocks, read_clocks
from hashee.study.curves import at_cost, baseline_curve, dev_front, nearest, reached, score_above
from hashee.study.flops_table import (
    EXPLANATIONS,
    TOLERANCE,
    Builders,
    FlopsRow,
    FlopsStudy,
    TaskTokens,
    paper_flops,
    read_flops,
    tokens_of,
)
from hashee.study.options import ReportOptions
from hashee.study.tables import TABLES, Cell, Table
from hashee.study.tables.saved_macs import COSTS, savings
from hashee.study.tables.table import shown
from hashee.tables.counting import TokenCounts
from hashee.tables.table import ExitTable

ROOT = Path(__file__).parents[2]
OPTIONS = ReportOptions()


def rows(table: Table) -> dict[str, dict[str, Any]]:
    """Return the rows by what their first cell says."""
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows if isinstance(row[0], str)}


# --- curves ------------------------------------------------------------------------------------------------


def test_the_front_is_chosen_on_dev_alone() -> None:
    best_on_test = point(3.0, dev=0.70, test=0.99)
    curve = (point(2.0, 0.90, 0.80), best_on_test, point(3.1, 0.80, 0.75), point(6.0, 0.60, 0.50))
    assert [each.speedup for each in dev_front(curve)] == [2.0, 3.1, 6.0]
    assert nearest(curve, 3.0).test == 0.75
    found = at_cost(curve, 3.0)
    assert found is not None and found < 0.80


def test_of_points_that_cost_the_same_dev_takes_the_better() -> None:
    assert dev_front([point(2.0, 0.7, 0.9), point(2.0, 0.8, 0.6)]) == [point(2.0, 0.8, 0.6)]
    # As good on dev and cheaper: nobody would run the costly one.
    assert dev_front([point(2.0, 0.8, 0.9), point(4.0, 0.8, 0.6)]) == [point(4.0, 0.8, 0.6)]


def test_quality_is_interpolated_in_the_logarithm_of_the_speedup() -> None:
    curve = [point(8.0, 0.5, 0.4), point(2.0, 0.9, 0.8)]
    # 4 lies in the middle of 2 and 8.
    assert at_cost(curve, 4.0) == pytest.approx(0.6)
    assert at_cost(curve, 4.0, "dev") == pytest.approx(0.7)
    assert at_cost(curve, 3.0) == pytest.approx(0.8 - 0.4 * math.log(1.5) / math.log(4))
    assert at_cost(curve, 8.0) == pytest.approx(0.4)
    assert at_cost(curve, 8.1) is None
    assert at_cost(curve, 1.5) == 0.8  # cheaper than asked for
    assert at_cost([], 2.0) is None


def test_nearest_is_told_by_ratios() -> None:
    curve = [point(2.0, 0.9, 0.9), point(8.0, 0.8, 0.8)]
    # Half way by difference is 5, by ratio 4.
    assert nearest(curve, 4.5).speedup == 8.0
    assert nearest(curve, 3.9).speedup == 2.0


def test_seeds_are_averaged_at_points_of_their_own() -> None:
    seeds = [
        result("pabee", point(3.0, 0.8, 0.80), point(9.0, 0.5, 0.1), seed=0),
        result("pabee", point(3.4, 0.8, 0.84), point(9.0, 0.5, 0.1), seed=1),
    ]
    found = reached(seeds, 3.2)
    assert found is not None
    assert (found.quality, found.seeds, found.split) == (pytest.approx(82.0), 2, "test")
    assert found.std == pytest.approx(math.sqrt(8))
    assert found.speedup == pytest.approx(3.2)


def test_runs_without_test_labels_are_shown_on_dev() -> None:
    found = reached([result("pabee", point(3.0, 0.8, None))], 3.0)
    assert found is not None and (found.quality, found.split) == (pytest.approx(80.0), "dev")
    assert (
        "sst2: runs without a labelled test set are shown on dev"
        in TABLES["elue"]([result("pabee", point(3.0, 0.8, None))], OPTIONS).notes
    )


# --- ELUE --------------------------------------------------------------------------------------------------


def test_the_elue_score_is_the_distance_from_the_models_with_fewer_layers() -> None:
    results = baselines()
    curve = baseline_curve(results, "sst2", "minilm")
    # Two FLOPs a multiply-accumulate: 2000 million at full depth.
    assert curve == [(pytest.approx(1000.0), pytest.approx(80.0)), (pytest.approx(2000.0), pytest.approx(90.0))]
    found = reached([result("pabee", point(4 / 3, 0.9, 0.87))], 1.0)
    assert found is not None
    # At 1500 MFLOPs the baseline has 85.
    assert score_above(curve, found) == pytest.approx(2.0)
    assert score_above(curve[:1], found) is None


def test_the_baseline_is_a_mean_over_seeds_and_of_one_backbone() -> None:
    other = baselines(backbone="other", seed=5)
    raised = [replace(each, seed=1, curve=(replace(each.curve[0], test=1.0),)) for each in baselines()]
    curve = baseline_curve([*baselines(), *raised, *other], "sst2", "minilm")
    assert [quality for _, quality in curve] == [pytest.approx(90.0), pytest.approx(95.0)]


def test_elue_sets_each_method_beside_the_papers_system_at_its_cost() -> None:
    # On SST-2 the paper has PABEE at 2.9x.
    pabee = result("pabee", point(1.5, 0.9, 0.88), point(2.5, 0.8, 0.79), point(6.0, 0.7, 0.69))
    table = TABLES["elue"]([*baselines(), pabee], OPTIONS)
    ours, papers = rows(table)["pabee (minilm)"], rows(table)["  paper: PABEE"]
    assert shown(ours["SST-2"]) == "79.0 (2.5x)"
    assert shown(papers["SST-2"]) == "83.1 (2.9x)"
    assert ours["MRPC"] == "not run"
    # 800 MFLOPs: 10 percent points for 1000 MFLOPs, 80 at 1000.
    assert ours["ELUE score"].values["elue_score"] == pytest.approx(79.0 - 78.0)
    assert shown(ours["ELUE score"]) == "+1.00 (1 of 6)"
    assert shown(papers["ELUE score"]) == "-1.31"
    assert shown(rows(table)["first-layers (minilm)"]["ELUE score"]) == "0.00 (1 of 6)"
    assert rows(table)["tinybert (minilm)"]["SST-2"] == "not run"


def test_elue_does_not_choose_what_is_best_on_test() -> None:
    trap = point(2.9, dev=0.60, test=0.99)
    table = TABLES["elue"]([result("pabee", point(3.2, 0.8, 0.7), trap)], OPTIONS)
    assert shown(rows(table)["pabee (minilm)"]["SST-2"]) == "70.0 (3.2x)"


def test_elue_tells_not_applicable_from_not_run() -> None:
    refused = result("deebert", task="stsb", not_applicable="needs classes")
    table = TABLES["elue"]([refused], OPTIONS)
    row = rows(table)["deebert (minilm)"]
    assert (row["STS-B"], row["SST-2"], row["ELUE score"]) == ("-", "not run", "-")


def test_methods_that_the_paper_lacks_are_shown_at_the_cost_of_hashee() -> None:
    # On IMDb HashEE is at 6.2x.
    ours = result("hash-importance", point(4.8, 0.9, 0.8), point(6.0, 0.8, 0.7), task="imdb")
    assert shown(rows(TABLES["elue"]([ours], OPTIONS))["hash-importance (minilm)"]["IMDb"]) == "70.0 (6.0x)"


def test_elue_warns_of_results_that_cannot_be_compared() -> None:
    other = result("dense", point(1.0, 0.9, 0.9), data={"fingerprint": "another"}, passes=3.0)
    notes = TABLES["elue"]([result("pabee", point(3.0, 0.8, 0.8), passes=6.0), other], OPTIONS).notes
    assert "sst2: the runs did not all see the same data" in notes
    assert "sst2: passes over train differ, 3 to 6" in notes


def test_results_by_different_recipes_are_told_apart_by_backbone() -> None:
    slow, fast = {"epochs": 1.0, "bf16": True}, {"epochs": 2.0, "bf16": True, "learning_rate": 1e-4}
    runs = [result("dense", point(1.0, 0.9, 0.9), settings=slow), result("pabee", point(2.0, 0.8, 0.8), settings=fast)]
    told = "sst2: the runs with minilm did not all train by the same recipe (not the same learning_rate)"
    assert told in TABLES["quality-at-cost"](runs, OPTIONS).notes
    other = [runs[0], replace(runs[1], backbone="gte-small")]
    assert not any("recipe" in note for note in TABLES["quality-at-cost"](other, OPTIONS).notes)


def test_without_results_the_papers_values_are_shown() -> None:
    table = TABLES["elue"]([], OPTIONS)
    assert len([row for row in table.rows if str(row[0]).startswith("  paper: ")]) == len(paper.SYSTEMS)


@pytest.mark.parametrize(
    ("method", "backbone", "name"),
    [
        ("first-layers", "minilm", "BERT-3L"),
        ("first-layers", "granite-30m-roberta", "RoBERTa-3L"),
        ("berxit", "elasticbert-base", "BERxiT w/ ElasticBERT"),
        ("hash-frequency", "minilm", "HashEE"),
    ],
)
def test_a_method_meets_the_papers_row_of_its_backbone(method: str, backbone: str, name: str) -> None:
    system = paper.system_of(method, backbone)
    assert system is not None and system.name == name


# --- hash functions, buckets, costs, clocks ----------------------------------------------------------------


def test_hash_functions_are_counted_over_twelve_layers() -> None:
    found = [
        result("hash-frequency", point(3.0, 0.8, 0.80), task="sst2"),
        result("hash-frequency", point(2.0, 0.8, 0.84), task="mrpc"),
        result("hash-frequency", point(2.0, 0.8, 0.1), task="mrpc", backbone="deep", layers=12),
    ]
    table = TABLES["hash-functions"](found, OPTIONS)
    ours = {(row[0], row[1], row[2]): row for row in table.rows}
    # By the paper's count 2.4 and 1.6 over 6 layers, so 4.8 and 3.2 over 12.
    assert [shown(cell) for cell in ours[6, "frequency", "minilm"][3:]] == ["4.0x", "80.0", "not run", "84.0"]
    assert shown(ours[12, "frequency", "deep"][3]) == "1.6x"
    assert shown(ours[6, "frequency", "paper"][3]) == "4.9x"
    assert (6, "mi", "minilm") not in ours and ours[6, "mi", "ours"][3] == "not run"


def test_buckets_are_told_by_the_settings_of_a_run() -> None:
    deep: dict[str, Any] = {"backbone": "deep", "layers": 12}
    found = [
        result("hash-frequency", point(2.0, 0.8, 0.6), settings={"num_buckets": 3}, **deep),
        result("hash-frequency", point(4.0, 0.8, 0.7), settings={"num_buckets": 3, "depth": 6}, **deep),
    ]
    ours = {(row[0], row[1]): row for row in TABLES["buckets"](found, OPTIONS).rows if row[2] == "deep"}
    assert {pair: shown(row[4]) for pair, row in ours.items()} == {(12, 3): "60.0", (6, 3): "70.0"}
    # A backbone of twelve layers is what the paper's speed-ups are relative to.
    assert shown(ours[6, 3][3]) == "3.2x"
    # They are no rows of the main table.
    assert rows(TABLES["elue"](found, OPTIONS))["hash-frequency (deep)"]["SST-2"] == "not run"


def test_methods_at_the_same_cost() -> None:
    found = [
        result("pabee", point(2.0, 0.9, 0.8), point(8.0, 0.5, 0.4), seed=0),
        result("pabee", point(2.0, 0.9, 0.9), point(5.0, 0.5, 0.4), seed=1),
    ]
    table = TABLES["quality-at-cost"](found, OPTIONS)
    row = rows(table)["pabee"]
    assert shown(row["2x"]) == "85.0 ±7.1"
    assert row["6x"] == row["10x"] == "-"  # one seed is never so fast


def test_throughput_is_the_best_batchs_and_relative_to_dense(tmp_path: Path) -> None:
    clocks = Clocks(
        (
            ClockRow("dense", "SNLI", 1, (0.02, 0.02, 0.5)),
            ClockRow("dense", "SNLI", 8, (0.01,)),
            ClockRow("pabee", "SNLI", 8, (0.005, 0.004, 0.006)),
        ),
        {"threads": 2},
    )
    path = tmp_path / "clocks.json"
    clocks.write(path)
    assert read_clocks(path) == clocks
    table = TABLES["max-speed"]([], ReportOptions(clocks=path))
    assert shown(rows(table)["pabee"]["SNLI, ours"]) == "200 (2.0x)"
    assert shown(rows(table)["dense"]["SNLI, paper"]) == "2,093 (1.0x)"
    assert rows(table)["pabee"]["IMDb, ours"] == "not measured"
    missing = TABLES["max-speed"]([], ReportOptions(clocks=tmp_path / "none.json"))
    assert rows(missing)["dense"]["SNLI, ours"] == "not measured"


@pytest.mark.parametrize("change", [{"texts": "tweets"}, {"batch": 0}, {"seconds_per_text": []}])
def test_clocks_that_cannot_be_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    row = {"method": "dense", "texts": "SNLI", "batch": 1, "seconds_per_text": [0.1]} | change
    path = tmp_path / "clocks.json"
    path.write_text(json.dumps({"hardware": {}, "rows": [row]}))
    with pytest.raises(InputError, match="no file of measured times"):
        read_clocks(path)


# --- counted FLOPs -----------------------------------------------------------------------------------------


def some_tokens() -> tuple[TaskTokens, ExitTable, list[list[int]]]:
    ids = [[0, 1, 2, 3, 4], [5, 5, 0], [4, 3, 2, 1, 0, 5, 1]]
    table = ExitTable.from_tensor(torch.tensor([3, 1, 2, 3, 1, 2]), num_layers=3)
    counts = TokenCounts(np.ones(6, dtype=np.int64), 3, "0", "0")
    flat = np.array([token for row in ids for token in row])
    return TaskTokens(counts, counts, flat, np.array([len(row) for row in ids])), table, ids


def test_active_tokens_are_counted_as_elsewhere() -> None:
    tokens, table, ids = some_tokens()
    lengths, active = lengths_and_active(table, ids)
    assert np.array_equal(tokens.lengths, lengths)
    assert np.array_equal(tokens.active(table.exit_layers.numpy(), 3), active)


def test_speedups_are_relative_to_twelve_layers_of_bert_base() -> None:
    tokens, table, _ = some_tokens()
    assert tokens.speedup(ExitTable.never(6, 6)) == pytest.approx(2.0)
    assert tokens.speedup(table) > 4.0


def test_saved_macs_follow_the_papers_formulae() -> None:
    tokens, table, _ = some_tokens()
    for formula, counted, full in savings(tokens, table).values():
        assert formula == pytest.approx(counted)
        assert 0 < counted < full
    n, m = np.array([10, 4]), np.array([3, 4])
    assert sum(int(cost(BERT_BASE, n, m).sum()) for cost in COSTS.values()) == layer_cost(BERT_BASE, 1, n, m).macs
    assert set(COSTS) == {saving.module for saving in paper.SAVINGS}


def test_the_count_is_read_from_its_file_or_made(tmp_path: Path) -> None:
    row = FlopsRow("tab:ELUE", "sst2", "frequency", 6, 6, 4.8, 6.0, {"sst2": 6.0}, "for a reason")
    study = FlopsStudy((row,), {"sst2": "1"}, {"sst2": ["a note"]}, "2")
    path = tmp_path / "study" / "flops.json"
    assert paper_flops(path, lambda: study) == study
    assert read_flops(path) == study
    table = TABLES["flops"]([], ReportOptions(flops=path))
    assert shown(table.rows[0][-1]) == "+25.0% [1]"
    assert table.notes[0] == "[1] for a reason"
    path.write_text("{}")
    with pytest.raises(InputError, match="no count of FLOPs"):
        paper_flops(path, lambda: study)


def test_the_papers_flops_are_reproduced_or_the_difference_is_explained() -> None:
    study = read_flops(ROOT / "results" / "study" / "flops.json")
    assert len(study.rows) == len(paper.TASKS) + len(paper.HASH_FUNCTIONS) + len(paper.LAYERS_AND_BUCKETS)
    for row in study.rows:
        known = EXPLANATIONS.get((row.source, row.task, row.hash), "")
        assert row.explanation == (known if abs(row.deviation) > TOLERANCE else ""), row
        assert abs(row.deviation) <= TOLERANCE or known, row
    assert set(study.data) == set(paper.TASKS)


@pytest.mark.data
@pytest.mark.parametrize("task", ["sst2", "stsb"])
def test_the_count_in_the_file_is_that_of_the_data(task: str, data_dir: Path) -> None:
    study = read_flops(ROOT / "results" / "study" / "flops.json")
    data, tokenizer = load_task(task), AutoTokenizer.from_pretrained(minilm_folder())
    assert data.fingerprint == study.data[task]
    ours = Builders(tokenizer, embeddings=None).speedup("frequency", tokens_of(data, tokenizer), 6, 6)
    assert [row.ours for row in study.rows if row.task == task] == [pytest.approx(ours)]


# --- the table itself --------------------------------------------------------------------------------------


def test_a_table_is_text_json_and_markdown() -> None:
    table = Table("Title", ("name", "value"), (("a|b", Cell("1.5 (2.0x)", {"quality": 1.5})), ("c", None)), ("note",))
    values = json.loads(json.dumps(table.to_dict()))
    assert values["rows"] == [{"name": "a|b", "value": {"quality": 1.5}}, {"name": "c", "value": None}]
    assert table.to_markdown().splitlines()[2:] == [
        "| name | value |",
        "| --- | --- |",
        "| a\\|b | 1.5 (2.0x) |",
        "| c |  |",
        "",
        "- note",
    ]


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"saved-macs", "flops", "difficulty", "hypothesis"}))
@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_in_a_terminal_and_cut_nothing(name: str, width: int, tmp_path: Path) -> None:
    found = [*baselines(), *baselines(seed=1), result("hash-frequency-solved", point(4.0, 0.9, 0.123), seed=0)]
    table = TABLES[name](found, ReportOptions(clocks=tmp_path / "none.json"))
    console = Console(width=width, record=True, file=(tmp_path / "out").open("w"))
    console.print(table)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    if name in ("elue", "quality-at-cost"):
        assert "12.3" in text and "hash-frequency-solved" in text


def test_runs_that_were_given_more_are_no_seeds_of_those_that_were_not() -> None:
    plain = result("hash-importance", point(3.0, 0.8, 0.8))
    taught = result("hash-importance", point(3.0, 0.9, 0.9), settings={"unlabelled": "more.jsonl", "epochs": 1.0})
    found = TABLES["quality-at-cost"]([plain, taught], ReportOptions()).to_dict()
    names = [row["method"] for row in found["rows"]]
    assert names == ["hash-importance", "hash-importance-unlabelled"]


def test_the_paper_counts_other_costs() -> None:
    curve = (point(2.5, 0.8, 0.8), point(5.0, 0.6, 0.6))
    by_paper = TABLES["quality-at-paper-cost"]([result("pabee", *curve)], ReportOptions()).to_dict()["rows"][0]
    executed = TABLES["quality-at-cost"]([result("pabee", *curve)], ReportOptions()).to_dict()["rows"][0]
    # A quarter more operations by the paper's count: 2.5x executed is 2x, and 5x is 4x.
    assert by_paper["2x"]["quality"] == pytest.approx(80.0) and by_paper["4x"]["quality"] == pytest.approx(60.0)
    assert executed["4x"]["quality"] > 60.0
    assert by_paper["6x"] == "-"
