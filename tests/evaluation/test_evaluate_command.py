"""`hashee evaluate` and `hashee tradeoff` on the command line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from evaluating_data import make_task, save_dense, save_hashed
from typer.testing import CliRunner, Result

from hashee.cli.evaluate import SeveralValues, evaluate, tradeoff
from hashee.cli.fit import fit
from hashee.errors import InputError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(evaluate)
app.command(cls=SeveralValues)(tradeoff)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with train, dev and test as CSV files."""
    data, folder = make_task(), tmp_path / "data"
    folder.mkdir()
    for name, examples in (("train", data.train), ("dev", data.dev), ("test", data.test)):
        assert examples is not None and examples.targets is not None
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows: Any = zip(examples.texts, examples.targets, strict=True)
            csv.writer(file).writerows([("text", "label"), *((text, data.task.labels[label]) for text, label in rows)])
    return folder


def test_json_is_alone_on_standard_output(files: Path, tmp_path: Path) -> None:
    folder = save_hashed(tmp_path / "model")
    result = run("evaluate", folder, "--task", files, "--json", "--rounds", 1, "--output", tmp_path / "report")
    values = json.loads(result.stdout)
    assert values["texts"] == 23 and values["split"] == "test"
    assert json.loads((tmp_path / "report" / "evaluation.json").read_text()) == values
    assert (tmp_path / "report" / "report.html").read_text().startswith("<!doctype html>")


def test_the_page_is_printed(files: Path, tmp_path: Path) -> None:
    folder = save_hashed(tmp_path / "model")
    save_dense(folder / "dense")
    options = ("--task", files, "--split", "dev", "--rounds", 0, "--worst", 2)
    result = run("evaluate", folder, *options)
    assert "accuracy" in result.stdout and "agreement with the dense model" in result.stdout
    assert "agreement" not in run("evaluate", folder, *options, "--no-dense").stdout


def test_the_task_of_a_fit_need_not_be_named(files: Path, tmp_path: Path) -> None:
    folder = save_hashed(tmp_path / "model")
    with pytest.raises(InputError, match=r"has no run\.json .*name a task with --task"):
        run("evaluate", folder)
    settings = {"task": str(files), "label_column": "label"}
    (folder / "run.json").write_text(json.dumps({"settings": settings, "data": {"fingerprint": "x"}}))
    named = json.loads(run("evaluate", folder, "--task", files, "--json", "--rounds", 0).stdout)
    found = json.loads(run("evaluate", folder, "--json", "--rounds", 0).stdout)
    assert found["quality"] == named["quality"]
    (folder / "run.json").write_text(json.dumps({"settings": {"task": {"name": "mine", "fingerprint": "x"}}}))
    with pytest.raises(InputError, match="was given its data in Python"):
        run("evaluate", folder)


def test_a_fit_to_one_file_is_evaluated_on_what_it_set_aside(files: Path, tmp_path: Path) -> None:
    fit_app = typer.Typer(pretty_exceptions_enable=False)
    fit_app.command()(fit)
    fit_app.command("none")(fit)  # a single command would not be named
    options = ("--task", files / "train.csv", "--backbone", small_backbone(tmp_path), "--no-warm-start")
    several = ("--hash", "random", "--epochs", 1, "--threads", 1, "--quiet", "--output", tmp_path / "out")
    (files / "dev.csv").unlink()
    (files / "test.csv").unlink()
    fitted = CliRunner().invoke(fit_app, ["fit", *map(str, (*options, *several))], catch_exceptions=False)
    assert fitted.exit_code == 0, fitted.output
    run_json = json.loads((tmp_path / "out" / "run.json").read_text())
    found = json.loads(run("evaluate", tmp_path / "out", "--json", "--rounds", 0).stdout)
    assert found["split"] == "dev"
    assert found["texts"] == run_json["data"]["sizes"]["dev"] > 0
    assert found["quality"] == run_json["metrics"]["dev"], "the very rows that were set aside"
    assert found["provenance"]["fitted_on"] == found["provenance"]["data_fingerprint"]
    why = "data has no test split, so this is dev"
    assert found["provenance"]["data_notes"][0].startswith(why)
    page = run("evaluate", tmp_path / "out", "--rounds", 0, "--output", tmp_path / "report").stdout
    assert f"note: {why}" in page.replace("\n", " ")
    assert f"note: {why}" in (tmp_path / "report" / "report.html").read_text()
    with pytest.raises(InputError, match="has no examples in test"):
        run("evaluate", tmp_path / "out", "--split", "test")


def small_backbone(tmp_path: Path) -> Path:
    from architectures import make_model
    from small_tokenizer import make_tokenizer

    tokenizer = make_tokenizer()
    make_model("bert", vocab_size=len(tokenizer), num_hidden_layers=3).save_pretrained(tmp_path / "backbone")
    tokenizer.save_pretrained(tmp_path / "backbone")
    return tmp_path / "backbone"


def test_a_tradeoff_from_files(files: Path, tmp_path: Path) -> None:
    options = ("--task", files, "--backbone", small_backbone(tmp_path), "--epochs", 1, "--threads", 1, "--quiet")
    several = ("--speedups", 2, 2.4, "--hash", "random", "--depths", 1, "--output", tmp_path / "out")
    result = run("tradeoff", *options, *several)
    for name in ("dense", "random-2x", "random-2.4x", "static-1", "tradeoff.png"):
        assert name in result.stdout
    repeated = ("--speedups", 2, "--speedups", 2.4, "--hash", "random", "--no-static", "--json")
    again = json.loads(run("tradeoff", *options, *repeated, "--output", tmp_path / "out").stdout)
    assert [point["name"] for point in again] == ["dense", "random-2x", "random-2.4x"]
    points = tmp_path / "out" / "tradeoff.json"
    folder = json.loads(points.read_text())[1]["folder"]
    run("evaluate", folder, "--rounds", 0, "--tradeoff", points, "--output", tmp_path / "report", "--json")
    assert "data:image/png;base64," in (tmp_path / "report" / "report.html").read_text()
    found = json.loads((tmp_path / "report" / "evaluation.json").read_text())
    run_json = json.loads((Path(folder) / "run.json").read_text())
    assert found["quality"] == run_json["metrics"]["test"], "what the fit measured is what is in the folder"
    assert found["dense"]["quality"] == run_json["dense"]["metrics"]["test"]
    assert found["cost"]["speedup"] == run_json["macs"]["speedup"]
    assert found["provenance"]["fitted_on"] == found["provenance"]["data_fingerprint"]
