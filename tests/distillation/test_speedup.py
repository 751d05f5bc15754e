"""From a model and texts to the same model several times cheaper: close to the dense one, of its kind, resumable."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
)

import hashee
from architectures import make_model, make_writer
from hashee.cli import main
from hashee.distillation.entry import REPORT, run_speedup
from hashee.training.trainer import StepTrainer
from tiny_text_models import make_folder, make_pairs, make_texts, write_lines

TEXTS = make_texts(160)
QUICK: dict[str, Any] = {"speedup": 1.6, "learning_rate": 3e-3, "batch_size": 16, "quiet": True}


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


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_a_plain_encoder_comes_closer_to_the_dense_one(encoder: Path, tmp_path: Path, pooling: str) -> None:
    result = run_speedup(encoder, TEXTS, output=tmp_path / "fast", passes=4, pooling=pooling, **QUICK)
    report = result.report
    assert report.agreement["cosine"] > report.untrained["cosine"] + 0.05
    assert report.counted == pytest.approx(1.6, rel=0.1) and report.measured > 0
    assert report.texts == {"train": 110, "held_out": 50, "truncated": 0} and report.output in ("embedding", "states")
    assert len(report.updated) == 3 and report.updated[0] >= report.updated[-1] and sum(report.exits) > 0
    assert 0 < len(report.moved) <= 5 and report.moved[0]["closeness"] <= report.moved[-1]["closeness"]
    assert json.loads((tmp_path / "fast" / REPORT).read_text()) == report.to_dict()
    assert type(result.model).__name__ == "HasheeBertModel"
    again = AutoModel.from_pretrained(tmp_path / "fast")
    tokens = AutoTokenizer.from_pretrained(tmp_path / "fast")(TEXTS[:3], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(again(**tokens).last_hidden_state, result.model(**tokens).last_hidden_state)
    left = {path.name for path in (tmp_path / "fast").iterdir()}
    assert not left & {"work", "checkpoints"}


def test_an_embedder_object_comes_out_as_one_and_stays_as_it_was(encoder: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    model = st.SentenceTransformer(str(encoder), device="cpu")
    before = model.encode(TEXTS)
    fast = hashee.speedup(model, TEXTS, **QUICK)
    assert type(fast) is type(model)
    assert np.array_equal(model.encode(TEXTS), before), "the dense model must not be trained"
    found = fast.encode(TEXTS)
    assert found.shape == before.shape and np.isfinite(found).all() and np.abs(found - before).max() > 1e-3


def test_a_reranker_keeps_scores_and_order(reranker: Path, tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    path = write_lines(
        tmp_path / "pairs.jsonl", [{"query": query, "document": text} for query, text in make_pairs(40, 5)]
    )
    # A head that reads the first position alone saves more, so this much is the least.
    options = QUICK | {"speedup": 3.0, "passes": 6}
    result = run_speedup(reranker, path, output=tmp_path / "fast", **options)
    trained, untrained = result.report.agreement, result.report.untrained
    assert trained["spearman"] > untrained["spearman"] and trained["difference"] < untrained["difference"]
    assert 0.5 < trained["same_order"] <= 1 and result.report.output == "score"
    client = st.CrossEncoder(str(tmp_path / "fast"), device="cpu")
    assert np.isfinite(client.predict(make_pairs(2, 2))).all()


def test_queries_are_held_out_as_a_whole(reranker: Path) -> None:
    from hashee.distillation.corpus import read_corpus
    from hashee.distillation.settings import SpeedupSettings
    from hashee.hf.text_models import open_text_model

    corpus = read_corpus(open_text_model(reranker), make_pairs(30, 7), SpeedupSettings())
    held, rest = ({pair[0] for pair in half.texts} for half in (corpus.held_out, corpus.train))
    assert held and not held & rest
    assert corpus.train.groups is not None and len(np.unique(corpus.train.groups)) == len(rest)


def test_no_passes_write_the_conversion_as_it_is(encoder: Path, tmp_path: Path) -> None:
    result = run_speedup(encoder, TEXTS, output=tmp_path, passes=0, **QUICK)
    assert result.report.agreement == pytest.approx(result.report.untrained) and result.report.training == {}
    dense = AutoModel.from_pretrained(encoder).state_dict()
    for name, weight in result.model.state_dict().items():
        assert name == "exit_layers" or torch.equal(weight, dense[name])


def test_an_interrupted_run_goes_on_and_ends_alike(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One more than a whole pass, so that it is interrupted between two checkpoints.
    options = {**QUICK, "passes": 10.0, "batch_size": 16}
    whole = run_speedup(encoder, TEXTS, output=tmp_path / "whole", **options)
    step, seen = StepTrainer.training_step, []

    def interrupted(self: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(1)
        if len(seen) == 60:
            raise KeyboardInterrupt
        return step(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(StepTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_speedup(encoder, TEXTS, output=tmp_path / "cut", **options)
    assert list((tmp_path / "cut" / "checkpoints").glob("checkpoint-*"))
    with pytest.raises(hashee.InputError, match="holds a run already"):
        run_speedup(encoder, TEXTS, output=tmp_path / "cut", **options)
    with pytest.raises(hashee.InputError, match=r"begun otherwise: speedup was 1\.6 and is now 1\.5"):
        run_speedup(encoder, TEXTS, output=tmp_path / "cut", **(options | {"speedup": 1.5}), resume=True)
    with pytest.raises(hashee.InputError, match="the texts have changed"):
        run_speedup(encoder, TEXTS[:-1], output=tmp_path / "cut", **options, resume=True)
    resumed = run_speedup(encoder, TEXTS, output=tmp_path / "cut", **options, resume=True)
    assert resumed.report.agreement == pytest.approx(whole.report.agreement)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name
    finished = run_speedup(encoder, TEXTS, output=tmp_path / "cut", **options, resume=True)
    assert finished.report == resumed.report
    with pytest.raises(hashee.InputError, match="begun otherwise: passes was"):
        run_speedup(encoder, TEXTS, output=tmp_path / "cut", **(options | {"passes": 2.0}), resume=True)
    other = make_folder(tmp_path / "other", layers=2)
    with pytest.raises(hashee.InputError, match="the model has changed"):
        run_speedup(other, TEXTS, output=tmp_path / "cut", **options, resume=True)
    replaced = run_speedup(encoder, TEXTS, output=tmp_path / "cut", passes=0, **QUICK, overwrite=True)
    assert replaced.report.training == {}


def test_the_command_prints_a_page_or_json(run: Any, encoder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n\n".join(TEXTS), encoding="utf-8")
    options = ("--texts", texts, "--speedup", 1.6, "--passes", 1, "--learning-rate", 0.003)
    code, out, err = run("speedup", encoder, *options, "--output", tmp_path / "one", "--json")
    assert code == 0, err
    assert json.loads(out)["asked"] == 1.6
    code, out, err = run("speedup", encoder, *options, "--output", tmp_path / "two", "--limit", 60)
    assert code == 0, err
    assert "fewer operations counted" in out and "texts that moved most" in out and "speedup.json" in out


def test_bad_input_is_one_line(run: Any, encoder: Path, reranker: Path, tmp_path: Path) -> None:
    def refused(*arguments: object) -> str:
        code, _, err = run("speedup", *arguments, "--output", tmp_path / "out")
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert not (tmp_path / "out" / "config.json").exists()
        return str(err)

    def file(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    assert "no text" in refused(encoder, "--texts", file("blank.txt", "\n  \n\t\n"))
    assert "one text" in refused(encoder, "--texts", file("one.txt", "the film\n" * 30))
    assert "no texts were given" in refused(reranker)
    assert "is missing" in run("speedup", encoder)[2]
    many = file("many.txt", "\n".join(TEXTS))
    assert "cannot be had" in refused(encoder, "--texts", many, "--speedup", 1000)
    assert "must be at least 1" in refused(encoder, "--texts", many, "--speedup", 0.5)
    assert "does not exist" in refused(encoder, "--texts", tmp_path / "nowhere.txt")


def test_what_is_no_encoder_is_one_line_and_leaves_nothing(
    run: Any, encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "many.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")

    def refused(model: Any, folder: str) -> str:
        model.save_pretrained(tmp_path / folder)
        AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path / folder)
        capsys.readouterr()
        return refused_folder(tmp_path / folder)

    def refused_folder(folder: Path) -> str:
        code, _, err = run("speedup", folder, "--texts", texts, "--output", tmp_path / "out")
        assert code == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert not (tmp_path / "out").exists()
        return str(err)

    small = {"vocab_size": 81, "hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 40}
    assert "BartForConditionalGeneration" in refused(make_writer("bart"), "bart")
    assert "LlamaForCausalLM" in refused(make_writer("llama"), "llama")
    assert "from left to right" in refused(make_writer("llama").model, "llama encoder")
    assert "from left to right" in refused(BertModel(BertConfig(**small, is_decoder=True)), "decoder")
    assert "head of the BertForTokenClassification" in refused(
        AutoModelForTokenClassification.from_config(BertConfig(**small)), "tagger"
    )
    assert "convolution" in refused(make_model("deberta-v2", conv_kernel_size=3, conv_act="gelu"), "convolution")
    AutoConfig.for_model("vit").save_pretrained(tmp_path / "images")
    assert "no adapter covers model type 'vit'" in refused_folder(tmp_path / "images")
    assert "is a file" in refused_folder(texts)
    with pytest.raises(hashee.UnsupportedModel, match=r"pass its encoder, model\.bert"):
        hashee.speedup(
            make_model("bert", AutoModelForMaskedLM), TEXTS, tokenizer=AutoTokenizer.from_pretrained(encoder)
        )


def test_long_texts_are_cut_and_counted_once(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [*TEXTS[:60], *(f"{text} " * 20 for text in TEXTS[60:65])]
    result = run_speedup(encoder, texts, passes=0, **QUICK)
    assert result.report.texts["truncated"] == 5
    assert capsys.readouterr().err.count("5 of 65 texts are longer than 40 tokens") == 1


@pytest.mark.parametrize(("passes", "where"), [(0, "distillation.entry"), (1, "training.stage")])
def test_a_full_disk_is_told_before_anything_is_done(
    encoder: Path, tmp_path: Path, passes: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hashee.{where}.free_megabytes", lambda folder: 0.01)
    with pytest.raises(hashee.HasheeError, match=r"MB are free.*; make room"):
        run_speedup(encoder, TEXTS, output=tmp_path / "out", passes=passes, **QUICK)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("size", "passes"), [(60, 0), (600, 1), (20_000, 0), (20_000, 1)])
def test_a_disk_that_fills_up_is_one_line_and_loses_nothing(
    run: Any, encoder: Path, tmp_path: Path, size: int, passes: int
) -> None:
    # No file may become larger: what was told, the table, the weights or a checkpoint cannot be written.
    resource = pytest.importorskip("resource")
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    out = tmp_path / "out"
    command = ("speedup", encoder, "--texts", texts, "--speedup", 1.6, "--passes", passes, "--output", out, "--quiet")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        code, _, err = run(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2 and err.startswith("error: no space to write") and err.count("\n") == 1, err
    assert not (out / "config.json").exists() and not (out / REPORT).exists()
    assert "--resume" in err
    code, _, err = run(*command, "--resume")
    assert code == 0, err
    assert AutoModel.from_pretrained(out).exit_table.num_layers == 3 and (out / REPORT).exists()


def test_what_has_exits_is_refused(encoder: Path, tmp_path: Path) -> None:
    run_speedup(encoder, TEXTS, output=tmp_path / "fast", passes=0, **QUICK)
    with pytest.raises(hashee.InputError, match="exit in this model already"):
        run_speedup(tmp_path / "fast", TEXTS, output=tmp_path / "again", **QUICK)
    with pytest.raises(hashee.InputError, match="no setting 'speed'"):
        run_speedup(encoder, TEXTS, speed=2)
