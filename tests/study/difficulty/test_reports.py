"""Tables, figures, the probe and the commands of the study of difficulty."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fitting_data import RECIPE, make_data
from small_sets import make_set, write_annotated

from commands import hashee_command
from hashee.data import Kind
from hashee.errors import InputError
from hashee.files import write_json
from hashee.study.difficulty.datasets import save_set
from hashee.study.difficulty.hypothesis_results import CONSISTENT, Comparison, HypothesisResult
from hashee.study.difficulty.probe import Probe, ProbeSettings, probe
from hashee.study.difficulty.probe_page import verdict, write_page
from hashee.study.difficulty.results import DifficultyResult, Epoch
from hashee.study.figures import FIGURES, save
from hashee.study.options import ReportOptions
from hashee.study.tables import TABLES, Cell


def result(predictor: str, level: str, seed: int = 0, **other: object) -> DifficultyResult:
    values = {
        "accuracy": 0.7,
        "precision": 0.5,
        "recall": 0.4,
        "f1": 0.44 + 0.01 * seed,
        "calibration_error": 0.1,
    } | other
    backbone = "" if predictor == "Majority" else "minilm"
    return DifficultyResult(predictor, level, data=f"tiny-{level}", seed=seed, backbone=backbone, **values)  # type: ignore[arg-type]


@pytest.fixture
def options(tmp_path: Path) -> ReportOptions:
    curve = tuple(Epoch(epoch, 0.5 + 0.1 * epoch, 0.55, 0.5) for epoch in range(1, 5))
    made = [
        *(result("BiLSTM", "sentence", seed) for seed in range(3)),
        result("Majority", "sentence"),
        result("Transformer", "human", curve=curve),
        result("Majority", "token", precision=None, f1=None, recall=0.0),
    ]
    for each in made:
        each.write(tmp_path)
    return ReportOptions(difficulty=tmp_path)


def test_the_table_has_our_figures_beside_the_papers(options: ReportOptions) -> None:
    table = TABLES["difficulty"]([], options)
    found = {(row[1], row[2]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    ours = found["tiny-sentence", "BiLSTM"]["F1"]
    assert isinstance(ours, Cell) and ours.text == "45.0 ±1.0" and ours.values["seeds"] == 3
    sentence = [row for row in table.rows if row[0] == "sentence" and row[1] == "paper"]
    assert [row[2] for row in sentence] == ["Majority", "Linear-M", "Linear-B", "BiLSTM", "BERT"]
    assert [getattr(row[7], "text", "") for row in sentence] == ["45.7", "47.6", "48.8", "49.4", "54.9"]
    assert found["tiny-token", "Majority"]["F1"] == "-"
    assert any("tiny-sentence: BiLSTM (minilm) has the highest F1" in note for note in table.notes)
    json.dumps(table.to_dict(), allow_nan=False)


def test_the_figure_has_a_panel_for_each_set(options: ReportOptions, tmp_path: Path) -> None:
    figure = FIGURES["difficulty"]([], options)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Human-defined difficulty", "Sentence level: tiny-sentence", "Token level: tiny-token"]
    lines = figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines[:2]] == [pytest.approx([60, 70, 80, 90]), pytest.approx([55] * 4)]
    assert save(figure, tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="nothing to draw"):
        FIGURES["difficulty"]([], ReportOptions(difficulty=tmp_path / "nowhere"))


def test_the_hypothesis_has_a_table(tmp_path: Path) -> None:
    options = ReportOptions(difficulty=tmp_path)
    with pytest.raises(InputError, match="run them with `hashee study difficulty run --hypothesis`"):
        TABLES["hypothesis"]([], options)
    compared = Comparison(CONSISTENT, "same", "other", 85.0, 80.0, 5.0, 4.0, 6.0, 1.6, 1.5)
    found = HypothesisResult("sst2", "minilm", 0, (compared,))
    (tmp_path / "hypothesis").mkdir()
    write_json(
        tmp_path / found.path, {"task": "sst2", "backbone": "minilm", "seed": 0, "comparisons": [vars(compared)]}
    )
    (row,) = TABLES["hypothesis"]([], options).rows
    assert [getattr(cell, "text", cell) for cell in row[2:5]] == [
        "85.0 (1.6x)",
        "80.0 (1.5x)",
        "+5.0 points (+4.0 to +6.0)",
    ]


# --- the probe -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probed(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Probe, Path]:
    folder = tmp_path_factory.mktemp("probe")
    data = replace(make_data(recipe=replace(RECIPE, epochs=2.0), train=200), test=None)
    settings = ProbeSettings(data, folder, str(backbone), speedup=1.5, predictors=("majority", "linear-m"))
    return probe(settings), folder


def test_a_probe_measures_texts_that_nothing_was_trained_on(probed: tuple[Probe, Path]) -> None:
    found, _ = probed
    assert found.texts == 60 and len(found.right) == 4
    assert any("60 rows were held out of train" in note for note in found.notes)
    assert [each.predictor for each in found.predictors] == ["Majority", "Linear-M"]
    assert 1 <= found.dense.speedup < 4 / 2.5, "of four layers, the last is run for the first row only"
    assert found.hash.speedup > 1.2
    assert found.oracle.accuracy >= max(point.accuracy for point in found.learned)
    assert len(found.learned) == len(found.shuffled) > 5


def test_the_page_is_one_with_a_figure(probed: tuple[Probe, Path]) -> None:
    found, folder = probed
    text = write_page(found, folder).read_text()
    assert text.startswith("# Could learned exits work on tiny-classification?") and "](probe.png)" in text
    assert (folder / "probe.png").stat().st_size > 10_000
    assert json.loads((folder / "probe.json").read_text())["texts"] == 60


def test_the_verdict_follows_the_numbers(probed: tuple[Probe, Path]) -> None:
    found, _ = probed

    def said(learned: tuple[float, float], hashed: tuple[float, float]) -> list[str]:
        changed = {
            "against_shuffled": replace(found.against_shuffled, low=learned[0], high=learned[1]),
            "against_hash": replace(found.against_hash, low=hashed[0], high=hashed[1]),
        }
        return verdict(replace(found, **changed))

    assert said((1, 2), (1, 2))[0].startswith("**Yes") and "A hash is better" in said((1, 2), (1, 2))[1]
    assert "no sign" in said((-1, 2), (-1, 2))[0] and "as good" in said((-1, 2), (-1, 2))[1]
    assert said((-2, -1), (-2, -1))[0].startswith("**No:") and "learned exit is better" in said((-2, -1), (-2, -1))[1]


def test_a_task_that_is_too_small_to_split_is_refused(backbone: Path, tmp_path: Path) -> None:
    small = replace(make_data(train=40), test=None)
    with pytest.raises(InputError, match="has 40 rows to train on, too few to split"):
        probe(ProbeSettings(small, tmp_path, str(backbone)))
    with pytest.raises(InputError, match="a probe needs one class for each text"):
        probe(ProbeSettings(make_data(Kind.TAGS), tmp_path, str(backbone)))


# --- the commands --------------------------------------------------------------------------------------------


def test_sets_are_built_run_and_shown_from_the_command_line(backbone: Path, tmp_path: Path) -> None:
    rows = write_annotated(tmp_path / "rows.jsonl", 60, 120)
    folder, output = tmp_path / "set", tmp_path / "results"
    built = json.loads(
        hashee_command("study", "difficulty", "build", "human", "--task", rows, "--output", folder, "--json")
    )
    assert built["level"] == "human" and built["train"]["instances"] + built["test"]["instances"] == 120
    words = ["--set", folder, "--predictor", "majority", "--predictor", "linear-m", "--backbone", backbone, "--json"]
    printed = hashee_command("study", "difficulty", "run", *words, "--output", output / "difficulty")
    assert [json.loads(line)["predictor"] for line in printed.splitlines()] == ["Majority", "Linear-M"]
    table = json.loads(hashee_command("study", "table", "difficulty", "--results", output, "--json"))
    assert {"set", "Linear-M"} <= {row["predictor"] for row in table["rows"]} | {row["set"] for row in table["rows"]}


def test_errors_are_one_line(backbone: Path, tmp_path: Path) -> None:
    folder = save_set(make_set(), tmp_path / "tiny")
    for words, message in (
        (("build", "word", "--task", "x", "--output", tmp_path / "x"), "unknown level 'word' of difficulty"),
        (("build", "human", "--task", tmp_path / "none.csv", "--output", tmp_path / "x"), "none.csv"),
        (("run", "--set", folder, "--predictor", "oracle"), "unknown predictor 'oracle'"),
        (("run", "--set", tmp_path / "none"), "is no folder and none of"),
    ):
        (line,) = hashee_command("study", "difficulty", *words, code=2).strip().splitlines()
        assert line.startswith("error: ") and message in line
