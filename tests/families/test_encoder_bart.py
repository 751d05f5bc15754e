"""Models that write text, built from a pretrained encoder of any family: the encoder is kept, the rest is BART's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

import hashee
from architectures import (
    FAMILIES,
    VOCABULARY,
    converted,
    encoder_of,
    make_exits,
    make_ids,
    make_mask,
    make_model,
    padded,
)
from hashee.embedded import minilm_folder
from hashee.engine.reference import exits_by_hooks
from small_tokenizer import make_tokenizer

# These have an encoder of their own between themselves and the words.
INNER = [family for family in FAMILIES if family not in ("cpt", "encoder-bart")]
OWN_EMBEDDINGS = ("albert", "bart", "deberta-v2", "electra")
"""Families whose tiny models have narrower word embeddings than states, or scaled ones."""
MODES = ({"num_beams": 1}, {"num_beams": 3}, {"do_sample": True, "top_k": 20})


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


def build(family: str, tokenizer: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    return hashee.build_seq2seq(make_model(family, **changes), decoder_layers=2, tokenizer=tokenizer)


def make_inputs(model: Any) -> dict[str, Any]:
    mask = make_mask("mixed lengths")
    return {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}


@pytest.mark.parametrize("family", INNER)
def test_the_encoder_is_kept_and_the_words_are_shared(family: str, tokenizer: Any, tmp_path: Path) -> None:
    source, model = make_model(family), build(family, tokenizer)
    inputs = make_inputs(model)
    with torch.no_grad():
        theirs = encoder_of(source)(**inputs).last_hidden_state
        ours = model.model.encoder(**inputs).last_hidden_state
        expected = model(**inputs, decoder_input_ids=make_ids(length=6)).logits
    real = inputs["attention_mask"].bool()
    assert (ours[real] - theirs[real]).abs().max() <= 1e-5
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(loaded) is type(model)
    for each in (model, loaded):
        shared = each.model.shared.weight
        assert each.lm_head.weight is shared and each.model.decoder.embed_tokens.weight is shared
        assert (each.model.encoder.get_input_embeddings().weight is shared) == (family not in OWN_EMBEDDINGS)
        with torch.no_grad():
            assert torch.equal(each.eval()(**inputs, decoder_input_ids=make_ids(length=6)).logits, expected)


@pytest.mark.parametrize("options", MODES, ids=["greedy", "beam", "sampling"])
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "modernbert", "t5"])
def test_it_generates_with_exits_as_the_reference_does(family: str, options: Any, tokenizer: Any) -> None:
    model = build(family, tokenizer)
    # An untrained decoder hardly reads its source.
    with torch.no_grad():
        for parameter in model.model.decoder.layers.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    inputs, exits = make_inputs(model), make_exits("random exits")
    with_exits = converted(model, exits)

    def generate(writer: Any, **more: Any) -> torch.Tensor:
        torch.manual_seed(0)
        ids: torch.Tensor = writer.generate(**inputs, max_new_tokens=9, min_new_tokens=6, **options, **more)
        return ids

    with exits_by_hooks(model, exits, inputs["input_ids"]):
        theirs = generate(model)
    assert torch.equal(generate(with_exits), theirs)
    assert torch.equal(generate(with_exits, use_cache=False), theirs)
    assert torch.equal(generate(converted(model, make_exits("full depth"))), generate(model))


@pytest.mark.parametrize("family", ["albert", "bert", "bart"])
def test_converted_models_are_saved_truncated_and_resized(family: str, tokenizer: Any, tmp_path: Path) -> None:
    model = converted(build(family, tokenizer), make_exits("random exits", layers=2), layers=2)
    inputs = make_inputs(model)
    model.save_pretrained(tmp_path)
    loaded = hashee.load(tmp_path)
    assert (loaded.config.num_hidden_layers, loaded.exit_table) == (2, model.exit_table)
    with torch.no_grad():
        expected = model(**inputs).logits
        assert torch.equal(loaded(**inputs).logits, expected)
        loaded.resize_token_embeddings(VOCABULARY + 3)
        assert loaded.model.encoder.get_input_embeddings().num_embeddings == VOCABULARY + 3
        assert torch.equal(loaded(**inputs).logits[..., :VOCABULARY], expected)


def test_a_model_with_a_head_gives_its_encoder(tokenizer: Any) -> None:
    classifier = make_model("bert", AutoModelForSequenceClassification)
    model = hashee.build_seq2seq(classifier, tokenizer=tokenizer)
    assert torch.equal(
        model.model.encoder.encoder.layer[0].output.dense.weight, classifier.bert.encoder.layer[0].output.dense.weight
    )
    assert model.model.encoder.pooler is None


def test_the_embedded_encoder_reads_and_writes_with_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    dense = hashee.build_seq2seq("minilm", decoder_layers=1)
    assert (dense.config.encoder_layers, dense.config.decoder_layers, dense.config.d_model) == (6, 1, 384)
    assert dense.config.decoder_start_token_id == tokenizer.sep_token_id == dense.generation_config.eos_token_id
    texts = tokenizer(["a quiet film", "ok"], padding=True, return_tensors="pt")
    encoder = AutoModel.from_pretrained(minilm_folder()).eval()
    with torch.no_grad():
        assert torch.equal(dense.model.encoder(**texts)[0], encoder(**texts).last_hidden_state)
    table = hashee.ExitTable.at_random(tokenizer, num_layers=6, seed=0)
    model = hashee.convert(dense, table, tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = hashee.load(tmp_path)
    ids = model.generate(**texts, max_new_tokens=5, num_beams=2)
    assert torch.equal(loaded.generate(**texts, max_new_tokens=5, num_beams=2), ids)
    assert loaded.tokenizer.batch_decode(ids, skip_special_tokens=True)


def test_seq2seq_trainer_trains_it(tokenizer: Any, tmp_path: Path) -> None:
    model = converted(build("bert", tokenizer), make_exits("random exits"))
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


@pytest.mark.parametrize("layers", [0, -1, 1.5, True, "2"])
def test_numbers_of_layers_that_are_none_are_refused(layers: Any, tokenizer: Any) -> None:
    with pytest.raises(hashee.InputError, match="decoder_layers must be"):
        hashee.build_seq2seq(make_model("bert"), layers, tokenizer)


def test_what_cannot_be_built_on_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(hashee.InputError, match="pass tokenizer="):
        hashee.build_seq2seq(make_model("bert"))
    with pytest.raises(hashee.InputError, match=f"81 tokens but the encoder embeds {VOCABULARY - 60}"):
        small = make_model("bert", vocab_size=VOCABULARY - 60)
        hashee.build_seq2seq(small, tokenizer=tokenizer)
    with pytest.raises(hashee.UnsupportedModel, match="has exits already"):
        hashee.build_seq2seq(converted(make_model("bert"), make_exits("full depth")), tokenizer=tokenizer)
    with pytest.raises(hashee.InputError, match="not a int"):
        hashee.build_seq2seq(3)
    with pytest.raises(hashee.HasheeError, match="no such file or folder"):
        hashee.build_seq2seq(str(tmp_path / "nowhere"))
    without_end = make_tokenizer()
    without_end.sep_token = None  # type: ignore[assignment]
    with pytest.raises(hashee.InputError, match="no token for end of text"):
        hashee.build_seq2seq(make_model("bert"), tokenizer=without_end)
