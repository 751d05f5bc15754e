"""Texts that models write: in order, whatever the batches; empty and long documents; lines that survive a kill."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BartForConditionalGeneration, BertConfig, LlamaConfig

import hashee
from architectures import SEQ2SEQ, converted, make_exits, make_ids, make_mask, make_model, padded, randomise
from hashee.data.batching import Batching
from hashee.data.writing import Writing
from hashee.errors import InputError, UnsupportedModel
from hashee.hf.opening import open_writer
from hashee.hf.writing import text_of, write, write_batch
from hashee.hf.written_files import LineFile
from hashee.tables.table import ExitTable
from small_tokenizer import WORDS, make_tokenizer

LONGEST = 16


def make_writer(exits: bool) -> Any:
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = LONGEST
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=3, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=3,
    )  # fmt: skip
    model = randomise(BartForConditionalGeneration(config)).eval()
    if not exits:
        return model, tokenizer
    table = ExitTable.at_random(tokenizer, 3, seed=1)
    return hashee.convert(model, table, tokenizer).eval(), tokenizer


def documents(count: int) -> list[str]:
    return [" ".join(WORDS[(number + step) % 20] for step in range(1 + number % 12)) for number in range(count)]


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_texts_are_those_of_generate_in_order(exits: bool, num_beams: int) -> None:
    model, tokenizer = make_writer(exits)
    texts = documents(23)
    expected = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        ids = model.generate(**inputs, max_new_tokens=6, num_beams=num_beams, do_sample=False)[0]
        expected.append(text_of(ids.tolist(), tokenizer))
    for batching in (None, Batching(tokens=20, window=5), Batching(tokens=1, active=0, window=50)):
        found = list(write(model, tokenizer, texts, Writing(6, num_beams), batching))
        assert [each.text for each in found] == expected
    assert len(set(expected)) >= 2


@pytest.mark.parametrize("family", SEQ2SEQ)
def test_batches_are_written_as_the_model_reads_them(family: str) -> None:
    model = make_model(family, AutoModelForSeq2SeqLM)
    mask = make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    for writer in (model, converted(model, make_exits("random exits"))):
        found = write_batch(writer, inputs, Writing(max_new_tokens=6, num_beams=2))
        theirs = writer.generate(**inputs, max_new_tokens=6, num_beams=2, do_sample=False)
        assert found.ids == [row[: len(ids)] for ids, row in zip(found.ids, theirs.tolist(), strict=True)]
        assert found.encoder_seconds > 0 and found.decoder_seconds > 0


def test_empty_documents_are_answered_with_empty_texts() -> None:
    model, tokenizer = make_writer(True)
    found = [each.text for each in write(model, tokenizer, ["", "a good film", "  ", "a cat"], Writing(4, 1))]
    alone = [each.text for each in write(model, tokenizer, ["a good film", "a cat"], Writing(4, 1))]
    assert found == ["", alone[0], "", alone[1]]
    assert [each.text for each in write(model, tokenizer, ["", ""], Writing(4, 1))] == ["", ""]
    assert list(write(model, tokenizer, [], Writing(4, 1))) == []


def test_documents_that_are_cut_are_flagged() -> None:
    model, tokenizer = make_writer(True)
    just = " ".join(["cat"] * (LONGEST - 2))  # with the two special tokens it fits
    found = list(write(model, tokenizer, [just, f"{just} dog", "a cat", f"{just} mat"], Writing(4, 1)))
    assert [each.truncated for each in found] == [False, True, False, True]
    assert found[0].text == found[1].text == found[3].text


@pytest.mark.parametrize("bad", [{"max_new_tokens": 0}, {"num_beams": 0}, {"no_repeat_ngram_size": -1}])
def test_writing_is_checked(bad: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be a whole number of at least"):
        Writing(**bad)


@pytest.mark.parametrize(
    ("config", "architecture", "message"),
    [
        (LlamaConfig(), "LlamaForCausalLM", "only continues texts; name a seq2seq model"),
        (BertConfig(), "BertModel", "reads texts and writes none; name a seq2seq model"),
        (BartConfig(), "BartForSequenceClassification", "has no head to write with"),
    ],
)
def test_models_that_do_not_write_are_refused(tmp_path: Path, config: Any, architecture: str, message: str) -> None:
    config.architectures = [architecture]
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=message):
        open_writer(str(tmp_path))


# --- files -------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a kill would be."""


def lines(rows: Iterator[int], until: int | None = None) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row == until:
            raise Killed
        yield {"row": row, "text": "é" * (row % 5)}


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
@pytest.mark.parametrize("torn", [b"", b'{"row": 7', b'{"row": 7, "te\xc3', b"{}x\n"])
def test_a_file_that_was_interrupted_goes_on(tmp_path: Path, name: str, torn: bytes) -> None:
    file = LineFile(tmp_path / name, {"model": "m"}, every=2)
    assert file.begin(resume=False) == 0
    with pytest.raises(Killed):
        file.write(range(20), 0, lambda rows: lines(rows, until=7))
    with file.draft.open("ab") as draft:
        draft.write(torn)
    assert not file.path.exists()
    with pytest.raises(InputError, match=r"holds what an interrupted run has written; go on with --resume, or delete"):
        file.begin(resume=False)
    done = file.begin(resume=True)
    assert done == 7
    file.write(range(20), done, lines)
    content = gzip.decompress(file.path.read_bytes()) if name.endswith(".gz") else file.path.read_bytes()
    assert [json.loads(line)["row"] for line in content.splitlines()] == list(range(20))
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    assert file.begin(resume=True) is None


def test_a_kill_at_the_end_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = LineFile(tmp_path / "out.jsonl", {"model": "m"})
    file.path.write_text("an older file\n")
    file.begin(resume=False)

    def kill(self: LineFile) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(LineFile, "_put_in_place", kill)
        with pytest.raises(Killed):
            file.write(range(5), 0, lines)
    assert file.path.read_text() == "an older file\n"
    assert file.begin(resume=True) is None
    assert [json.loads(line)["row"] for line in file.path.read_text().splitlines()] == list(range(5))
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_file_is_not_gone_on_with_by_another_model(tmp_path: Path) -> None:
    begun = LineFile(tmp_path / "out.jsonl", {"model": "m", "num_beams": 1})
    begun.begin(resume=False)
    with pytest.raises(Killed):
        begun.write(range(9), 0, lambda rows: lines(rows, until=4))
    other = LineFile(tmp_path / "out.jsonl", {"model": "m", "num_beams": 4})
    with pytest.raises(InputError, match=r"was begun with another num_beams \(1, now 4\)"):
        other.begin(resume=True)
    begun.note.unlink()
    with pytest.raises(InputError, match="nobody knows what wrote"):
        begun.begin(resume=True)
