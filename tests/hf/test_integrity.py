"""A saved model opens as it was saved or not at all: damaged, mixed, half-written and edited folders."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import normalizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BartConfig

import hashee
from architectures import LAYERS, converted, make_exits, make_model
from hashee.export import export_onnx
from hashee.hf.opening import read_table
from saved_folders import drop_checksums, edit_config
from small_tokenizer import make_byte_level_tokenizer, make_tokenizer

TEXTS = ["the film is good", "A dull plot", "never great"]


def save(folder: Path, seed: int = 0, tokenizer: Any = None, family: str = "bert", **options: Any) -> Path:
    tokenizer = tokenizer or make_tokenizer()
    dense = make_model(family, AutoModelForSequenceClassification, seed=seed, vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, TEXTS, num_layers=LAYERS, progress=False)
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return folder


def answers(folder: Path, backend: str = "torch") -> np.ndarray[Any, Any]:
    return np.stack(list(hashee.load(folder, backend).predict(TEXTS, progress=False)))


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}, {"variant": "small"}])
def test_one_flipped_bit_of_the_weights_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path / "model", **options)
    variant = {name: value for name, value in options.items() if name == "variant"}
    model = AutoModelForSequenceClassification.from_pretrained(folder, **variant)
    # What the files were when they were read says nothing of what the model becomes.
    assert "checksums" not in model.config.hashee
    flip(max(folder.glob("*.safetensors")))
    for read in (
        lambda: AutoModelForSequenceClassification.from_pretrained(folder, **variant),
        lambda: read_table(folder),
    ):
        with pytest.raises(hashee.CheckpointError, match="is damaged or does not belong to config"):
            read()


def test_a_model_that_was_saved_before_there_were_checksums_opens(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    right = answers(folder)
    drop_checksums(folder)
    assert (answers(folder) == right).all()
    assert read_table(folder) == hashee.load(folder).exit_table


@pytest.mark.parametrize(
    "change",
    [
        {"layer_norm_eps": 1e-3},
        {"hidden_act": "relu"},
        {"num_attention_heads": 2},
        {"id2label": {"0": "no", "1": "yes"}},
    ],
)
def test_an_edited_config_says_how_to_keep_the_change(change: dict[str, Any], tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    edit_config(folder, **change)
    for read in (hashee.load, read_table, AutoModelForSequenceClassification.from_pretrained):
        with pytest.raises(hashee.CheckpointError, match='delete "config" from "checksums" in its "hashee"'):
            read(folder)
    settings = json.loads((folder / "config.json").read_text())["hashee"]
    del settings["checksums"]["config"]
    edit_config(folder, hashee=settings)
    loaded = hashee.load(folder)
    assert all(getattr(loaded.config, name) is not None for name in change)


def test_what_does_not_decide_answers_may_change(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    edit_config(folder, transformers_version="9.9", _name_or_path="elsewhere")
    assert hashee.load(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_files_of_two_models_do_not_mix(name: str, tmp_path: Path) -> None:
    first, second = save(tmp_path / "first", seed=0), save(tmp_path / "second", seed=1)
    shutil.copyfile(second / name, first / name)
    with pytest.raises(hashee.CheckpointError):
        hashee.load(first)


def test_a_subfolder_and_a_hub_id_are_checked(tmp_path: Path) -> None:
    save(tmp_path / "whole" / "part")
    read = AutoModelForSequenceClassification.from_pretrained
    assert read(tmp_path / "whole", subfolder="part").tokenizer is not None
    flip(tmp_path / "whole" / "part" / "model.safetensors")
    with pytest.raises(hashee.CheckpointError, match="checksum differs"):
        read(tmp_path / "whole", subfolder="part")
    # A Hub id is found in the cache, which is laid out by commit.
    cached = tmp_path / "cache" / "models--someone--something"
    commit = "0" * 40
    save(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    assert read("someone/something", cache_dir=tmp_path / "cache")
    flip(cached / "snapshots" / commit / "model.safetensors")
    with pytest.raises(hashee.CheckpointError, match="checksum differs"):
        read("someone/something", cache_dir=tmp_path / "cache")


KILLED = """
import os, sys
import transformers.modeling_utils as modeling
from transformers import AutoModelForSequenceClassification
import hashee
model = hashee.load(sys.argv[1])
model.config.id2label = {0: "yes", 1: "no"}
modeling.safe_save_file = lambda *args, **kwargs: os.kill(os.getpid(), 9)
model.save_pretrained(sys.argv[2])
"""


def test_a_save_that_was_killed_leaves_no_mixture_of_two_models(tmp_path: Path) -> None:
    old, new = save(tmp_path / "old", seed=0), save(tmp_path / "new", seed=1)
    done = subprocess.run([sys.executable, "-c", KILLED, new, old], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()[-500:]
    for read in (hashee.load, read_table, AutoModelForSequenceClassification.from_pretrained):
        with pytest.raises(hashee.CheckpointError, match="was interrupted; save the model again"):
            read(old)
    hashee.load(new).save_pretrained(old)
    assert (answers(old) == answers(new)).all()


def test_shards_are_not_hidden_by_an_earlier_single_file(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", seed=0)
    earlier = (folder / "model.safetensors").read_bytes()
    save(folder, seed=1, max_shard_size="20KB")
    assert not (folder / "model.safetensors").exists()
    assert (answers(folder) == answers(save(tmp_path / "new", seed=1))).all()
    (folder / "model.safetensors").write_bytes(earlier)
    with pytest.raises(hashee.CheckpointError, match="remove it"):
        hashee.load(folder)
    save(folder, seed=2)
    assert not list(folder.glob("*.index.json"))
    assert not list(folder.glob("model-*"))
    assert hashee.load(folder)


def test_saving_again_records_again(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    model = hashee.load(folder)
    with torch.no_grad():
        model.classifier.weight.mul_(-1)
    model.save_pretrained(folder)
    assert not (answers(folder) == answers(save(tmp_path / "first"))).all()
    # A config by itself vouches for no weights.
    model.config.save_pretrained(tmp_path / "alone")
    assert "checksums" not in json.loads((tmp_path / "alone" / "config.json").read_text())["hashee"]


def test_what_a_model_generates_by_is_vouched_for(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    model = converted(make_model("bart", AutoModelForSeq2SeqLM), make_exits("random exits"))
    assert isinstance(model.config, BartConfig)
    model.save_pretrained(tmp_path)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_beams": 4}))
    with pytest.raises(hashee.CheckpointError, match=r"generation_config\.json"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)


def test_an_upload_gets_a_finished_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hashee.load(save(tmp_path / "model"))
    pushed: list[Any] = []
    monkeypatch.setattr(
        type(model), "push_to_hub", lambda self, *args, **kwargs: pushed.append((args, kwargs)), raising=False
    )
    model.save_pretrained(tmp_path / "mine", push_to_hub=True, private=True, commit_message="new")
    assert pushed == [(("mine",), {"private": True, "commit_message": "new"})]
    assert hashee.load(tmp_path / "mine")


# --- tokenizers ----------------------------------------------------------------------------------------------


def swap_ids(folder: Path) -> None:
    """Let "good" and "bad" change places in the vocabulary."""
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    vocabulary = document["model"]["vocab"]
    vocabulary["good"], vocabulary["bad"] = vocabulary["bad"], vocabulary["good"]
    path.write_text(json.dumps(document))


def without_checksum_of_files(folder: Path) -> None:
    path = folder / "hashee_onnx.json"
    description = json.loads(path.read_text())
    description.get("checksums", {}).pop("files", None)
    path.write_text(json.dumps(description))


def test_swapped_ids_in_an_exported_tokenizer_are_refused(tmp_path: Path) -> None:
    folder = export_onnx(hashee.load(save(tmp_path / "model")), tmp_path / "exported")
    original = AutoTokenizer.from_pretrained(folder)
    assert hashee.load(folder, "onnx").tokenizer.get_vocab() == original.get_vocab()
    swap_ids(folder)
    with pytest.raises(hashee.CheckpointError, match=r"tokenizer\.json is damaged or does not belong"):
        hashee.load(folder, "onnx")
    without_checksum_of_files(folder)
    opened = hashee.load(folder, "onnx")
    for swapped in (None, AutoTokenizer.from_pretrained(folder)):
        with pytest.raises(hashee.TableMismatch, match="another tokenizer"):
            list(opened.predict(TEXTS, tokenizer=swapped, progress=False))
    assert len(list(opened.predict(TEXTS, tokenizer=original, progress=False))) == len(TEXTS)


def test_an_export_without_checksums_opens(tmp_path: Path) -> None:
    folder = export_onnx(hashee.load(save(tmp_path / "model")), tmp_path / "exported")
    right = answers(folder, "onnx")
    path = folder / "hashee_onnx.json"
    description = json.loads(path.read_text())
    for name in ("checksums", "tokenization", "tokenizer_fingerprint"):
        del description[name]
    path.write_text(json.dumps(description))
    assert (answers(folder, "onnx") == right).all()


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_one_flipped_bit_of_a_graph_is_refused(backend: str, tmp_path: Path) -> None:
    folder = export_onnx(hashee.load(save(tmp_path / "model")), tmp_path / "exported")
    path = folder / "model.onnx"
    flip(path, path.stat().st_size // 2)
    with pytest.raises(hashee.CheckpointError, match=r"model\.onnx is damaged"):
        hashee.load(folder, backend)
    path.write_bytes(b"not a graph")
    without_checksum_of_files(folder)
    with pytest.raises(hashee.CheckpointError, match="cannot be run"):
        hashee.load(folder, backend)


def test_a_tokenizer_with_the_same_tokens_that_cuts_otherwise_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.save_pretrained(folder)
    with pytest.raises(hashee.TableMismatch, match='delete "tokenization" from "hashee"'):
        hashee.load(folder)
    merges = make_byte_level_tokenizer()
    folder = save(tmp_path / "roberta", tokenizer=merges, family="roberta")
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"]["merges"].pop()
    path.write_text(json.dumps(document))
    with pytest.raises(hashee.TableMismatch, match="cuts texts differently"):
        hashee.load(folder)


def test_lengths_and_added_tokens_of_a_tokenizer_may_change(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 32
    tokenizer(TEXTS, truncation=True, padding=True, max_length=5)
    tokenizer.save_pretrained(folder)
    model = hashee.load(folder)
    tokenizer.add_tokens(["zyzzyva"])
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert len(hashee.load(folder).tokenizer) == len(tokenizer)


def test_weights_changed_on_purpose_open_without_their_entry(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.bias"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hashee.CheckpointError, match='delete its entry in "files"'):
        hashee.load(folder)
    settings = json.loads((folder / "config.json").read_text())["hashee"]
    del settings["checksums"]["files"]["model.safetensors"]
    edit_config(folder, hashee=settings)
    np.testing.assert_allclose(answers(folder), answers(save(tmp_path / "first")) + 1, atol=1e-5)
