"""Models that write text are fitted like others: dense, table, exits; judged by what they write, counted by part."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from summary_data import QUICK, RECIPE, make_summaries
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
)

import hashee
from hashee.data import Examples, score
from hashee.data.summaries import SummaryTokenizer, TokenizedSummaries
from hashee.data.task_types import type_of
from hashee.errors import HasheeError, InputError, UnsupportedModel
from hashee.hf.generation_flops import count_generation
from hashee.tables.table import ExitTable
from hashee.training import FitResult, fit
from hashee.training.objective import TargetLoss
from hashee.training.outputs import Need, batch_of, outputs_of
from small_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def fitted(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    """The whole way from an encoder: new decoder, dense model, both tables, the better one."""
    output = tmp_path_factory.mktemp("fit") / "out"
    return fit(task=make_summaries(), backbone=str(backbone), output=output, eval_examples=16, **QUICK)


def test_it_learns_to_write(fitted: FitResult) -> None:
    run = fitted.run
    for split in ("dev", "test"):
        assert run["metrics"][split].keys() == {"rouge1", "rouge2", "rougeL", "score"}
        assert run["metrics"][split]["rouge1"] >= 0.9
    assert run["dense"]["metrics"]["test"]["rouge1"] >= 0.9
    assert {each["hash"] for each in run["candidates"]} == {"frequency", "importance"}


def test_the_folder_writes_for_everybody(fitted: FitResult) -> None:
    data = make_summaries()
    assert data.test is not None
    model = AutoModelForSeq2SeqLM.from_pretrained(fitted.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(fitted.folder)
    assert model.exit_table.exit_layers.min() < model.exit_table.num_layers
    inputs = tokenizer(list(data.test.texts), padding=True, return_tensors="pt", return_token_type_ids=False)
    # How models were judged is in the folder: so many tokens and beams.
    ids = model.generate(**inputs)
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    assert score(data.task, texts, data.test.targets or ()) == pytest.approx(fitted.run["metrics"]["test"])
    assert "AutoModelForSeq2SeqLM" in (fitted.folder / "README.md").read_text()


def test_costs_are_those_of_what_was_written(fitted: FitResult) -> None:
    macs = fitted.run["macs"]
    total = macs["total"]
    for name in ("dense_per_text", "paper_per_text", "executed_per_text"):
        assert macs["encoder"][name] + macs["decoder"][name] == pytest.approx(total[name])
        assert macs[name] == total[name]
    assert macs["encoder"]["speedup"] > 1
    assert macs["decoder"]["paper_speedup"] == 1
    assert 1 < total["speedup"] < macs["encoder"]["speedup"]
    assert macs["encoder"]["seconds"] > 0 and macs["decoder"]["seconds"] > 0
    data, model = make_summaries(), fitted.model
    assert data.test is not None
    tokenizer = AutoTokenizer.from_pretrained(fitted.folder)
    sources = [tokenizer(text)["input_ids"] for text in data.test.texts]
    written = [model.generate(torch.tensor([ids]))[0].tolist() for ids in sources]
    count = count_generation(model, sources, written, num_beams=2)
    assert count.macs()["total"] / len(sources) == pytest.approx(total["executed_per_text"])


def test_the_stated_number_of_dev_examples_is_judged(fitted: FitResult) -> None:
    assert fitted.run["data"]["sizes"]["dev"] == 24
    assert fitted.run["settings"]["eval_examples"] == 16
    # Sixteenths: a summary is either right or shares one word of three.
    assert (fitted.run["metrics"]["dev"]["rouge2"] * 16) % 1 == pytest.approx(0, abs=1e-9)


def test_a_seq2seq_folder_is_used_as_it_is(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=3, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=3,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    tokenizer.save_pretrained(tmp_path / "bart")
    found = fit(
        task=make_summaries(), backbone=str(tmp_path / "bart"), output=tmp_path / "out", hash="frequency",
        warm_start=False, epochs=0.5, **(QUICK | {"decoder_layers": 7}),
    )  # fmt: skip
    assert found.model.config.decoder_layers == 2
    assert type(found.model).__name__.endswith("BartForConditionalGeneration")
    assert found.run["backbone"]["layers"] == 3


def test_distillation_of_the_dense_model(fitted: FitResult, backbone: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dense": fitted.folder / "dense", "hash": "frequency", "epochs": 1.0}
    for changes in ({"distill": 1.0}, {"distill": 0.5, "distill_hidden": 1.0}):
        output = tmp_path / str(len(changes))
        found = fit(task=make_summaries(), backbone=str(backbone), output=output, **(QUICK | settings | changes))
        assert found.run["metrics"]["test"]["rouge1"] >= 0.8


# --- learning ----------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_transformers(fitted: FitResult) -> None:
    data, tokenizer = make_summaries(), AutoTokenizer.from_pretrained(fitted.folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(fitted.folder / "dense").eval()
    tokenize = SummaryTokenizer(data.task, tokenizer, 64, False, model.config.decoder_start_token_id)
    tokenized = tokenize(Examples(data.train.texts[:5], ["good", *(data.train.targets or ())[1:5]]))
    assert isinstance(tokenized, TokenizedSummaries)
    batch = batch_of(tokenized, [3, 0, 4])
    loss = TargetLoss(type_of(data.task).smoothed(0.0))(outputs_of(model, batch, Need.LABELS), batch)
    labels = [tokenizer(text_target=(data.train.targets or ())[index])["input_ids"] for index in (3, 0, 4)]
    labels[1] = tokenizer(text_target="good")["input_ids"]
    longest = max(map(len, labels))
    padded = torch.tensor([row + [-100] * (longest - len(row)) for row in labels])
    expected = model(**tokenized.inputs([3, 0, 4]), labels=padded).loss
    assert batch.targets is not None
    assert int(batch.items.sum()) == int((padded != -100).sum()) == len(batch.targets)
    torch.testing.assert_close(loss / batch.items.sum(), expected)


def test_a_fit_that_is_stopped_goes_on(backbone: Path, tmp_path: Path) -> None:
    fields = {"task": make_summaries(48), "backbone": str(backbone), "hash": "frequency", "warm_start": False}
    fields |= QUICK | {"epochs": 2.0, "keep_checkpoints": True}
    whole = fit(output=tmp_path / "whole", **fields)
    broken = tmp_path / "broken"
    fit(output=broken, **fields)
    # As if killed after the first epoch.
    for path in (broken / "run.json", broken / "config.json"):
        path.unlink()
    stage = broken / "work" / "frequency"
    (stage / "stage.json").unlink()
    for folder in sorted((stage / "checkpoints").glob("checkpoint-*"))[1:]:
        shutil.rmtree(folder)
    resumed = fit(output=broken, **fields, resume=True)
    assert resumed.run["metrics"] == whole.run["metrics"]
    assert resumed.run["history"] == whole.run["history"]


def test_seq2seq_trainer_keeps_working(backbone: Path, tmp_path: Path) -> None:
    data, tokenizer = make_summaries(16), make_tokenizer()
    torch.manual_seed(0)
    table = ExitTable.by_frequency(tokenizer, list(data.train.texts), num_layers=3, progress=False)
    model = hashee.convert(hashee.build_seq2seq(backbone, 1), table, tokenizer)
    rows = [
        tokenizer(text, return_token_type_ids=False) | {"labels": tokenizer(text_target=target)["input_ids"]}
        for text, target in zip(data.train.texts, data.train.targets or (), strict=True)
    ]
    trainer = Seq2SeqTrainer(
        model,
        Seq2SeqTrainingArguments(
            str(tmp_path), num_train_epochs=2, predict_with_generate=True, report_to=[], use_cpu=True,
            generation_max_length=8, disable_tqdm=True, save_strategy="no",
        ),
        train_dataset=rows,
        eval_dataset=rows[:4],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model),
    )  # fmt: skip
    before = {name: value.clone() for name, value in model.named_parameters()}
    trainer.train()
    moved = {name: not torch.equal(before[name], value) for name, value in model.named_parameters()}
    assert all(moved[name] for name in moved if name.endswith(("fc1.weight", "intermediate.dense.weight")))
    written = trainer.predict(rows[:4]).predictions
    assert written.shape[0] == 4 and np.issubdtype(written.dtype, np.integer)


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hash": "mi"}, "the hash mi needs a label for each text, not words or summaries"),
        ({"speedup": 1.2, "speedup_by": "time"}, "are not timed while tables are made; use --speedup-by macs"),
        ({"decoder_layers": 0}, "decoder_layers is 0; it must be from 1"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"label_smoothing": 1.0}, "label_smoothing is 1.0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    backbone: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(HasheeError, match=message):
        fit(task=make_summaries(), backbone=str(backbone), output=tmp_path / "out", **(QUICK | changes))


def test_texts_without_summaries_are_refused(backbone: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.txt"
    more.write_text("a good film\n")
    with pytest.raises(InputError, match="texts without summaries teach nothing by themselves"):
        fit(
            task=make_summaries(recipe=replace(RECIPE, epochs=0.2)), backbone=str(backbone), output=tmp_path / "out",
            unlabelled=more, hash="frequency", **QUICK,
        )  # fmt: skip


def test_models_that_cannot_be_fitted_are_refused(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()

    def folder(name: str, config: Any) -> str:
        config.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    small = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2}
    narrow = BartConfig(vocab_size=20, decoder_start_token_id=3, **small)
    cases = [
        (folder("t5", T5Config(vocab_size=len(tokenizer))), UnsupportedModel, "t5 models can be converted, but what"),
        (folder("narrow", narrow), InputError, "the tokenizer in .* has 81 tokens but the model embeds 20"),
    ]
    from transformers import LlamaConfig, MarianConfig

    two = MarianConfig(vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer) + 1, pad_token_id=0, **small)
    cases += [
        (folder("marian", two), UnsupportedModel, "reads 81 tokens but its decoder writes 82"),
        (folder("llama", LlamaConfig(vocab_size=len(tokenizer))), UnsupportedModel, "llama models have no encoder"),
    ]
    for source, error, message in cases:
        with pytest.raises(error, match=message):
            fit(task=make_summaries(), backbone=source, output=tmp_path / "out", **QUICK)


def test_evaluate_says_where_summaries_are_judged(fitted: FitResult) -> None:
    from hashee.evaluation import evaluate

    with pytest.raises(InputError, match=r"which hashee evaluate does not judge; run\.json of a fit has its metrics"):
        evaluate(fitted.folder, make_summaries())


def test_run_json_reads_again(fitted: FitResult) -> None:
    from hashee.data.run_record import read_run

    run = read_run(fitted.folder)
    assert run is not None and run.macs.encoder is not None
    assert run.to_dict() == json.loads((fitted.folder / "run.json").read_text())
