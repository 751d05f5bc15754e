"""docs/methods.md describes the methods, tables, figures and result files that there are, and its example runs."""

import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
from fitting_data import RECIPE, make_data

from hashee.data import TASKS, Kind
from hashee.errors import InputError
from hashee.study.figures import FIGURES
from hashee.study.grid import Block, read_grid
from hashee.study.methods import METHODS
from hashee.study.results import OperatingPoint, RunResult
from hashee.study.run import Experiment, run_experiment
from hashee.study.tables import TABLES
from hashee.training.method import Method

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
EXPERIMENTS = sorted((ROOT / "experiments").glob("*.toml"))
LEFT_OUT = {"hash-exits", "dat", "hash-decoder", "lead", "shallow-seq2seq"}
"""Of the main comparison: two other methods stand for the first, and the others are for models that write text."""


def paragraphs() -> dict[str, str]:
    """Return what the page says of each method, by its name."""
    _, *parts = re.split(r"^### `([\w-]+)`$", PAGE.partition("\n## The methods\n")[2], flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def rows(text: str) -> set[str]:
    """Return the names in the first column of tables."""
    return {name for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`(\w+)", line)}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_method_has_its_paragraph() -> None:
    assert set(paragraphs()) == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_paragraphs_name_the_source_the_knob_and_a_test(name: str) -> None:
    text = paragraphs()[name]
    assert re.search(r"\b(19|20)\d\d\b|HashEE|No paper's", text) or name == "dense"
    assert f"Knob: `{METHODS[name].knob}`" in text
    file, test = re.findall(r"Defining test: `([\w/]+\.py)::(test_\w+)`", text)[0]
    assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {test}"


def test_every_table_and_figure_is_described() -> None:
    shown = section("Tables and figures")
    assert set(re.findall(r"^\| `([\w-]+)` \|", shown, re.MULTILINE)) == {*TABLES, *FIGURES}


def test_every_field_of_a_result_is_described() -> None:
    run, _, point = section("Result files").partition("Each point")
    assert rows(run) >= {each.name for each in fields(RunResult)}
    assert rows(point) == {each.name for each in fields(OperatingPoint)}


def test_every_member_of_a_method_is_described() -> None:
    members = {name for name in vars(Method) if not name.startswith("_")}
    assert members <= rows(section("Adding a method"))


def test_the_example_is_a_whole_method(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.training.method.METHODS", dict(METHODS))
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(example, "docs/methods.md", "exec"), {"__name__": "methods"})
    data = make_data(recipe=replace(RECIPE, epochs=1.0))
    found = run_experiment(Experiment("every-second-layer", data, str(backbone)), tmp_path)
    (point,) = found.curve
    assert (found.passes, point.knob, point.paper_speedup) == (2.0, 2.0, 2.0)
    assert (tmp_path / found.path).exists()


def test_the_commands_shown_are_the_commands_there_are() -> None:
    from hashee.cli import app

    pages = PAGE + (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```bash\n(.*?)```", pages, flags=re.DOTALL))
    lines = re.findall(r"^hashee study (\S+) ?(.*?)(?:\s+#.*)?$", shown, flags=re.MULTILINE)
    assert {command for command, _ in lines} >= {"list", "run", "run-all", "table", "figure"}
    for command, words in lines:
        parameters = app.commands["study"].commands[command].load().params
        known = {option for parameter in parameters for option in parameter.opts}
        assert {word for word in words.split() if word.startswith("--")} <= known, command


# --- files of runs ------------------------------------------------------------------------------------------


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HASHEE_MODELS", "HASHEE_UNLABELLED"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_experiments_are_of_known_methods_and_name_no_machine(path: Path) -> None:
    experiments = read_grid(path).experiments()
    assert {each.method for each in experiments} <= set(METHODS)
    named = [name for block in tomllib.loads(path.read_text())["runs"] for name in block["backbones"]]
    assert {name.partition("/")[0] for name in named} <= {"minilm", "$HASHEE_MODELS"}


@pytest.mark.usefixtures("models")
def test_the_main_comparison_has_every_method() -> None:
    experiments = read_grid(ROOT / "experiments" / "elue.toml").experiments()
    for task in ("sst2", "mrpc", "stsb"):
        assert {each.method for each in experiments if each.task == task} == set(METHODS) - LEFT_OUT
    assert {each.task for each in experiments} == {"sst2", "imdb", "snli", "scitail", "mrpc", "stsb"}


@pytest.mark.usefixtures("models")
def test_the_comparison_of_summarizers_has_every_method_for_them() -> None:
    experiments = read_grid(ROOT / "experiments" / "summarization.toml").experiments()
    own = {"dense", "hash-frequency", "hash-importance"} | (LEFT_OUT - {"hash-exits"})
    for task in ("aeslc", "amazonfoodsummary", "scitldra"):
        assert {each.method for each in experiments if each.task == task} == own
    for each in experiments:
        assert TASKS[str(each.task)].kind is Kind.SUMMARIES


@pytest.mark.usefixtures("models")
def test_runs_of_several_files_with_one_name_are_the_same_run() -> None:
    known: dict[object, object] = {}
    for path in EXPERIMENTS:
        for each in read_grid(path).experiments():
            backbone = Path(each.backbone).name
            told = RunResult(each.method, str(each.task), backbone, each.seed, settings=each.recorded_settings).path
            assert known.setdefault(told, (each.limits, each.settings)) == (each.limits, each.settings), told


@pytest.mark.usefixtures("models")
def test_buckets_are_the_papers_pairs() -> None:
    deep = [each for each in read_grid(ROOT / "experiments" / "buckets.toml").experiments() if "gte" in each.backbone]
    depths = [each.settings.get("depth", 12) for each in deep]
    pairs = {(depth, each.settings.get("num_buckets", depth)) for depth, each in zip(depths, deep, strict=True)}
    assert pairs == {(12, 12), (12, 6), (12, 4), (12, 3), (12, 2), (6, 6), (6, 3), (6, 2)}


def test_paths_in_runs_have_home_and_variables_put_in(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    backbones = ["minilm", "$HASHEE_MODELS/a", "${HASHEE_MODELS}/b", "~/c", "org/model"]
    block = Block(["sst2"], ["dense"], backbones, settings={"unlabelled": "$HASHEE_MODELS/more.jsonl", "epochs": 2.0})
    assert block.backbones == ["minilm", f"{models}/a", f"{models}/b", "/home/somebody/c", "org/model"]
    assert block.settings == {"unlabelled": f"{models}/more.jsonl", "epochs": 2.0}


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HASHEE_MODELS", raising=False)
    with pytest.raises(InputError, match="environment variable HASHEE_MODELS, which is not set"):
        Block(["sst2"], ["dense"], ["$HASHEE_MODELS/gte-small"])
    with pytest.raises(InputError, match="HASHEE_MODELS"):
        Block(["sst2"], ["dense"], settings={"unlabelled": "${HASHEE_MODELS}/more.jsonl"})


def test_results_do_not_depend_on_where_files_lie(tmp_path: Path) -> None:
    data = make_data()
    experiments = []
    for folder, text in (("here", "a"), ("there", "a"), ("elsewhere", "b")):
        path = tmp_path / folder / "more.txt"
        path.parent.mkdir()
        path.write_text(text)
        experiments.append(Experiment("dense", data, settings={"unlabelled": str(path)}))
    here, there, elsewhere = (each.fingerprint(data) for each in experiments)
    assert here == there != elsewhere, "the texts count, not their folder"
    assert experiments[0].recorded_settings == {"unlabelled": "more.txt"}
    result = RunResult("dense", "tiny", "minilm", 0, settings=experiments[0].recorded_settings)
    assert result.path.name == "minilm-dense-unlabelled-seed0.json"
