"""Models with exits in their decoder live in the Hugging Face ecosystem: saved, opened, resized, trained, refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import hashee
from architectures import LAYERS, VOCABULARY, converted, make_exits, make_ids, make_model, make_writer
from hashee.engine.reference import decoder_exits_by_hooks
from hashee.families.adapters import DECODERS
from hashee.hf.opening import read_table
from small_tokenizer import make_tokenizer

FAMILIES = sorted(DECODERS)


def table_of(exits: torch.Tensor, layers: int = LAYERS) -> hashee.ExitTable:
    return hashee.ExitTable.from_tensor(exits, num_layers=layers)


def make_hashed(family: str, layers: int = LAYERS) -> Any:
    """Return a model with exits in all stacks that it has."""
    decoder_table = table_of(make_exits("random exits", layers=layers, seed=8), layers)
    table = None if family == "llama" else table_of(make_exits("random exits", seed=7))
    return hashee.convert(make_writer(family), table, decoder_table=decoder_table)


def inputs_for(family: str) -> dict[str, torch.Tensor]:
    return {"input_ids": make_ids()} | ({} if family == "llama" else {"decoder_input_ids": make_ids(length=6, seed=4)})


@pytest.mark.parametrize("layers", [LAYERS, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_folders_with_two_tables_come_back_equal(family: str, layers: int, tmp_path: Path) -> None:
    model = make_hashed(family, layers)
    model.save_pretrained(tmp_path)
    auto_class = AutoModelForCausalLM if family == "llama" else AutoModelForSeq2SeqLM
    with torch.no_grad():
        expected = model(**inputs_for(family)).logits
        for loaded in (auto_class.from_pretrained(tmp_path), hashee.load(tmp_path)):
            assert type(loaded) is type(model)
            assert loaded.decoder_exit_table == model.decoder_exit_table
            assert loaded.exit_table == model.exit_table
            assert len(loaded.hashed_decoder.layers) == layers
            assert torch.equal(loaded(**inputs_for(family)).logits, expected)
    assert read_table(tmp_path) == model.exit_table


@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_alone_equal_freezing_all_positions_there(family: str) -> None:
    dense, exits = make_writer(family), make_exits("exits at 0", layers=2)
    shallow = hashee.convert(dense, decoder_table=table_of(exits, 2))
    with decoder_exits_by_hooks(dense, exits), torch.no_grad():
        theirs = dense(**inputs_for(family)).logits
    with torch.no_grad():
        assert (shallow(**inputs_for(family)).logits - theirs).abs().max() <= 1e-5


def test_folders_with_one_table_open_as_before(tmp_path: Path) -> None:
    model = converted(make_model("bart", AutoModelForSeq2SeqLM), make_exits("random exits"))
    model.save_pretrained(tmp_path)
    assert "decoder_table" not in json.loads((tmp_path / "config.json").read_text())["hashee"]
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.hashed_decoder is None and loaded.decoder_exit_table is None
    assert type(loaded.model.decoder).__name__ == "BartDecoder"


def test_a_folder_whose_decoder_is_not_that_of_its_table_is_refused(tmp_path: Path) -> None:
    make_hashed("bart").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    document = json.loads(path.read_text())
    del document["hashee"]["checksums"]
    document["decoder_layers"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(hashee.CheckpointError, match=r"has 2 layers but its table 4"):
        hashee.load(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_new_tokens_go_to_the_last_layer(family: str, tmp_path: Path) -> None:
    model = make_hashed(family)
    model.resize_token_embeddings(VOCABULARY + 3)
    exits = model.decoder_exit_table.exit_layers
    assert exits[-3:].tolist() == [LAYERS] * 3 and len(exits) == VOCABULARY + 3
    model.save_pretrained(tmp_path)
    loaded = hashee.load(tmp_path)
    name = "input_ids" if family == "llama" else "decoder_input_ids"
    inputs = inputs_for(family) | {name: torch.tensor([[5, VOCABULARY + 2]]).expand(5, 2)}
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model.eval()(**inputs).logits)


def test_seq2seq_trainer_trains_with_exits_on_both_sides(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    dense = hashee.build_seq2seq(make_model("bert"), decoder_layers=3, tokenizer=tokenizer)
    decoder_table = hashee.ExitTable.at_random(VOCABULARY, num_layers=3, seed=2)
    model = hashee.convert(dense, table_of(make_exits("random exits")), decoder_table=decoder_table)
    rows = [("the cat sat on the mat", "cat"), ("the dog is good", "dog"), ("a dull film", "film")] * 8
    data = [tokenizer(source) | {"labels": tokenizer(target)["input_ids"]} for source, target in rows]
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path),
        max_steps=120,
        learning_rate=5e-3,
        label_smoothing_factor=0.1,
        per_device_train_batch_size=6,
        predict_with_generate=True,
        generation_max_length=6,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=data,  # type: ignore[arg-type]
        eval_dataset=data[:3],  # type: ignore[arg-type]
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )
    trainer.train()
    written = tokenizer.batch_decode(trainer.predict(data[:3]).predictions, skip_special_tokens=True)  # type: ignore[arg-type]
    assert written == ["cat", "dog", "film"]


def test_what_cannot_be_honoured_is_refused() -> None:
    table = table_of(make_exits("random exits"))
    with pytest.raises(hashee.UnsupportedModel, match="exits are for"):
        hashee.convert(make_model("t5", AutoModelForSeq2SeqLM), decoder_table=table)
    with pytest.raises(hashee.UnsupportedModel, match="no decoder"):
        hashee.convert(make_model("bert"), decoder_table=table)
    with pytest.raises(hashee.TableMismatch, match="needs an exit table"):
        hashee.convert(make_model("bart"))
    with pytest.raises(hashee.TableMismatch, match="one table"):
        hashee.convert(make_writer("llama"), table, decoder_table=table)
    with pytest.raises(hashee.TableMismatch):
        hashee.convert(make_writer("bart", decoder_layers=2), decoder_table=table)
    llama = hashee.convert(make_writer("llama"), table)
    assert llama.exit_table == llama.decoder_exit_table == table
    with pytest.raises(hashee.UnsupportedModel, match="only decodes"):
        hashee.quantize(llama)
    with pytest.raises(hashee.UnsupportedModel, match="writes text"):
        llama.predict(["the cat"])
    with pytest.raises(hashee.UnsupportedOption, match="output_attentions"):
        llama(make_ids(), output_attentions=True)
    with pytest.raises(hashee.UnsupportedOption, match="token ids"):
        llama(inputs_embeds=torch.zeros(1, 2, 24))
    with pytest.raises(hashee.InputError, match="outside the exit table"):
        llama(torch.tensor([[VOCABULARY]]))
    bart = make_hashed("bart")
    with pytest.raises(hashee.InputError, match="fewer new tokens"):
        bart(make_ids(), decoder_input_ids=make_ids(length=41))
    with pytest.raises(hashee.UnsupportedOption, match="3 dimensions"):
        bart.hashed_decoder(make_ids(), attention_mask=torch.ones(5, 1, 12))


def test_empty_sources_give_finite_scores() -> None:
    bart = make_hashed("bart")
    mask = torch.ones(5, 12, dtype=torch.long)
    mask[2] = 0
    with torch.no_grad():
        assert bart(make_ids(), attention_mask=mask, decoder_input_ids=make_ids(length=3)).logits.isfinite().all()
