"""A pretrained seq2seq model is made cheaper without labels: it writes texts, and a model with exits learns those."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from summary_data import make_summaries
from transformers import MarianConfig, MarianMTModel

import hashee
from hashee.data import load_task, score
from hashee.data.metrics import judged_by
from hashee.data.writing import Writing
from hashee.errors import InputError
from hashee.hf.opening import open_writer
from hashee.hf.writing import write
from hashee.training import FitResult, fit
from small_tokenizer import make_tokenizer

SETTINGS: dict[str, Any] = {"kind": "summarization", "metric": "chrf", "max_new_tokens": 8, "num_beams": 1}


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian that says one of two things, by a word of the text."""
    folder, tokenizer = tmp_path_factory.mktemp("marian"), make_tokenizer()
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer), d_model=24, encoder_layers=3, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=64, pad_token_id=0, eos_token_id=3, decoder_start_token_id=0, forced_eos_token_id=3,
        dropout=0.0, init_std=0.1,
    )  # fmt: skip
    model = learnt(MarianMTModel(config), tokenizer)
    # As opus-mt does: padding, with which decoding starts, is not written.
    model.generation_config.bad_words_ids = [[0]]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def learnt(model: Any, tokenizer: Any) -> Any:
    """Return a model that was trained by hand, as if it came from elsewhere."""
    data = make_summaries(512).train
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(0, 6 * 512, 16):
        texts, targets = (list(column[step % 512 : step % 512 + 16]) for column in (data.texts, data.targets or ()))
        # Marian's texts end, and do not begin, with a special token.
        labels = torch.tensor([row[1:] for row in tokenizer(targets)["input_ids"]])
        inputs = tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.fixture(scope="module")
def translated(translator: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts without labels, and what the dense model says to them."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "english.txt").write_text("\n".join(map(str, make_summaries(120).train.texts)) + "\n")
    command = ["generate", str(translator), str(folder / "english.txt"), str(folder / "taught.jsonl"), "--with-input"]
    command = [sys.executable, "-m", "hashee", *command, "--max-new-tokens", "8", "--num-beams", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "taught.jsonl"


@pytest.fixture(scope="module")
def student(translator: Path, translated: Path, tmp_path_factory: pytest.TempPathFactory) -> FitResult:
    # Words exit before the first layer, which the dense model was never trained for.
    return fit(
        task=translated, backbone=str(translator), dense=translator, hash="frequency", num_buckets=1, min_exit=0,
        distill=0.5, epochs=6.0,
        learning_rate=3e-3, batch_size=8, quiet=True, output=tmp_path_factory.mktemp("out"), **SETTINGS,
    )  # fmt: skip


def test_the_dense_model_agrees_with_what_it_wrote(student: FitResult) -> None:
    assert student.run["task"]["metric"] == "chrf"
    assert student.run["dense"]["metrics"]["dev"] == {"chrf": 1.0, "score": 1.0}


def test_a_model_with_exits_agrees_more_once_it_has_learnt(
    student: FitResult, translator: Path, translated: Path
) -> None:
    data = judged_by(load_task(translated, kind="summarization"), "chrf")
    tokenizer = make_tokenizer()
    assert student.model.exit_table.exit_layers.min() == 0
    untrained = hashee.convert(open_writer(str(translator)), student.model.exit_table, tokenizer)
    writing, agreement = Writing(max_new_tokens=8, num_beams=1), []
    for model in (untrained, student.model):
        texts = [each.text for each in write(model, tokenizer, map(str, data.dev.texts), writing)]
        agreement.append(score(data.task, texts, data.dev.targets or ())["chrf"])
    assert agreement[1] == pytest.approx(student.run["metrics"]["dev"]["chrf"])
    assert agreement[0] < agreement[1]


def test_sinusoids_that_are_not_saved_do_not_learn(student: FitResult, translator: Path) -> None:
    before, after = (model.state_dict() for model in (open_writer(str(translator)), student.model))
    for side in ("encoder", "decoder"):
        name = f"model.{side}.embed_positions.weight"
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["model.encoder.layers.0.fc1.weight"], after["model.encoder.layers.0.fc1.weight"])


def test_metrics_of_other_kinds_are_refused(translated: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"taught is summarization, whose metrics are rouge1, .*chrf, not 'accuracy'"):
        fit(task=translated, output=tmp_path / "out", **(SETTINGS | {"metric": "accuracy"}))
