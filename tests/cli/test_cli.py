"""The command line: what it prints, and one line with exit code 2 for what a user can mend."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hashee
from architectures import make_model
from hashee.cli import main
from hashee.embedded import minilm_folder

TEXTS = ["the film is a quiet masterpiece", "the plot is dull and the film is long", "a good film", "never again"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `hashee ...` in this process and return exit code, standard output and standard error."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hashee", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        code = stopped.value.code
        return (0 if code is None else int(code)), captured.out, captured.err

    return run_command


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS))
    return path


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    path = tmp_path / "labelled.jsonl.gz"
    rows = [json.dumps({"text": text, "label": number % 2}) for number, text in enumerate(TEXTS)]
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    return path


@pytest.fixture
def table(run: Any, corpus: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "table"
    code, _, err = run("table", "build", corpus, "--tokenizer", minilm_folder(), "--num-layers", 6, "--output", folder)
    assert code == 0, err
    return folder


def test_build_and_show(run: Any, table: Path) -> None:
    loaded = hashee.ExitTable.load(table)
    assert (loaded.method, loaded.num_layers) == ("frequency", 6)
    code, out, _ = run("table", "show", table, "--tokenizer", minilm_folder())
    assert code == 0 and "the" in out and "frequency" in out
    code, out, _ = run("table", "show", table, "--json")
    assert json.loads(out)["fingerprint"] == loaded.fingerprint


@pytest.mark.parametrize(
    ("method", "extra"), [("mi", []), ("random", ["--seed", "3"]), ("clustered", ["--model", str(minilm_folder())])]
)
def test_other_methods(run: Any, labelled: Path, tmp_path: Path, method: str, extra: list[str]) -> None:
    files = [labelled] if method == "mi" else []
    options = ["--tokenizer", minilm_folder(), "--num-layers", 6, "--num-buckets", 3, "--method", method]
    code, _, err = run("table", "build", *files, *options, *extra, "--output", tmp_path / "out")
    assert code == 0, err
    assert set(hashee.ExitTable.load(tmp_path / "out").exit_layers.tolist()) >= {1, 3, 5}


def test_flops_as_json_equals_the_library(run: Any, table: Path, corpus: Path) -> None:
    code, out, err = run("flops", minilm_folder(), corpus, "--table", table, "--json")
    assert code == 0, err
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    from transformers import AutoConfig

    expected = hashee.count_flops(
        AutoConfig.from_pretrained(minilm_folder()), TEXTS, hashee.ExitTable.load(table), tokenizer
    )
    values = json.loads(out)
    for name in ("paper_macs", "executed_macs", "full_depth_macs", "speedup", "paper_speedup", "speedup_vs_bert_base"):
        assert values[name] == pytest.approx(getattr(expected, name))


def test_flops_for_people(run: Any, table: Path, corpus: Path) -> None:
    code, out, _ = run("flops", minilm_folder(), corpus, "--table", table)
    assert code == 0 and "12-layer BERT-base" in out


def test_explain(run: Any, table: Path) -> None:
    code, out, _ = run("explain", minilm_folder(), TEXTS[0], "--table", table)
    assert code == 0 and "masterpiece" in out and "MMACs" in out
    code, out, _ = run("explain", minilm_folder(), TEXTS[0], "--table", table, "--json")
    (explanation,) = json.loads(out)
    assert explanation["tokens"][0] == "[CLS]" and explanation["exit_layers"][0] == 6


def test_a_converted_folder_needs_no_table_and_no_weights_in_memory(
    run: Any, tokenizer: Any, corpus: Path, tmp_path: Path
) -> None:
    dense = make_model("bert", vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, num_layers=2)
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code, out, err = run("explain", tmp_path / "model", "the film", "--json")
    assert code == 0, err
    assert json.loads(out)[0]["num_layers"] == 2
    code, out, err = run("flops", tmp_path / "model", corpus, "--json")
    assert code == 0, err
    assert json.loads(out)["speedup"] >= json.loads(out)["paper_speedup"] > 1
    code, out, err = run("table", "show", tmp_path / "model", "--json")
    assert code == 0, err
    assert json.loads(out)["fingerprint"] == table.fingerprint


def test_export_and_load_on_every_backend(run: Any, tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, num_layers=4)
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code, _, err = run("export", "onnx", tmp_path / "model", tmp_path / "exported")
    assert code == 0, err
    expected = list(hashee.load(tmp_path / "model").predict(TEXTS, progress=False))
    for backend in ("onnx", "openvino"):
        answers = list(hashee.load(tmp_path / "exported", backend).predict(TEXTS, progress=False))
        for mine, other in zip(answers, expected, strict=True):
            assert abs(mine - other).max() <= 1e-4
    with pytest.raises(hashee.HasheeError, match="unknown backend"):
        hashee.load(tmp_path / "model", "tpu")
    with pytest.raises(hashee.CheckpointError, match="not a converted model"):
        hashee.load(minilm_folder())


def broken_table(folder: Path) -> Path:
    path = folder / "exit_table.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    return folder


BUILD = ["table", "build", "--num-layers", "6", "--output", "unused"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table", "show", "nowhere"], "nowhere"),
        (["flops", "nowhere", "{corpus}"], "nowhere"),
        (["flops", "./no/where", "{corpus}"], "no such file or folder"),
        (["flops", "{minilm}", "nowhere.txt"], "nowhere.txt does not exist"),
        (["flops", "{minilm}", "{corpus}", "--table", "{broken}"], "exit_table.safetensors"),
        (["explain", "{minilm}", "a text"], "has no exits"),
        (["explain", "{minilm}", "word " * 600, "--table", "{table}"], "602 tokens but the model takes 512"),
        ([*BUILD, "--tokenizer", "{minilm}"], "name at least one file"),
        ([*BUILD, "--tokenizer", "{minilm}", "--method", "clustered"], "--model"),
        ([*BUILD, "--tokenizer", "nowhere", "{corpus}"], "cannot load a tokenizer from nowhere"),
        ([*BUILD, "--tokenizer", "{minilm}", "{corpus}", "--num-buckets", "0"], "num_buckets"),
        ([*BUILD, "--tokenizer", "{minilm}", "{corpus}", "--method", "mi"], "columns"),
        (
            [
                "table",
                "build",
                "--num-layers",
                "1000000000",
                "--output",
                "unused",
                "--tokenizer",
                "{minilm}",
                "{corpus}",
            ],
            "num_layers=1000000000 must be a whole number from 1 to 10000",
        ),
        (
            [*BUILD, "--tokenizer", "{minilm}", "{corpus}", "--num-buckets", "1000000000000"],
            "num_buckets=1000000000000",
        ),
        (["explain", "{minilm}", "caf\udce9", "--table", "{table}"], "half of a surrogate pair"),
        (["flops", "{minilm}", "{half}", "--table", "{table}"], "line 1: the text holds half of a surrogate pair"),
        (["flops", "{minilm}", "{long}", "--table", "{table}"], "no column that looks like text"),
    ],
)
def test_what_a_user_can_mend_is_one_line_and_exit_code_2(
    run: Any,
    table: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"corpus": corpus, "minilm": minilm_folder(), "table": table}
    if "{half}" in arguments:
        places["half"] = tmp_path / "half.jsonl"
        places["half"].write_text('{"text": "\\ud800"}\n')
    if "{long}" in arguments:
        places["long"] = tmp_path / "long.jsonl"
        places["long"].write_text(json.dumps({"x" * 10_000_000: 1}))
    if "{broken}" in arguments:
        places["broken"] = broken_table(table)
    code, out, err = run(*(argument.format(**places) for argument in arguments))
    assert code == 2
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("error: ") and says in lines[0], err
    assert "Traceback" not in out + err and len(lines[0]) < 600
    assert not (tmp_path / "unused").exists(), "nothing partial is left behind"


def test_unknown_options_are_exit_code_2(run: Any) -> None:
    code, _, err = run("flops", "--no-such-option")
    assert code == 2 and "No such option" in err


def test_installed_command_and_module_agree() -> None:
    for command in ([str(Path(sys.executable).parent / "hashee")], [sys.executable, "-m", "hashee"]):
        done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True)
        assert "table" in done.stdout and "explain" in done.stdout
