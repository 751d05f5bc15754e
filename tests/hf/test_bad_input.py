"""What a model cannot read or honour is refused in one clear line, and never half done."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2Model,
    pipeline,
)

import hashee
from architectures import (
    FAMILIES,
    LAYERS,
    VOCABULARY,
    converted,
    encoder_of,
    make_exits,
    make_ids,
    make_mask,
    make_model,
)
from hashee.embedded import minilm_folder
from saved_folders import drop_checksums


@pytest.fixture
def classifier() -> Any:
    return converted(make_model("bert", AutoModelForSequenceClassification), make_exits("random exits"))


@pytest.fixture
def saved(classifier: Any, tmp_path: Path) -> Path:
    """A folder without checksums, which would refuse every change of a file before it is read."""
    classifier.save_pretrained(tmp_path / "model")
    return drop_checksums(tmp_path / "model")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"output_attentions": True}, "output_attentions"),
        ({"inputs_embeds": torch.zeros(5, 12, 24), "input_ids": None}, "inputs_embeds"),
        ({"attention_mask": torch.ones(5, 1, 12, 12)}, "attention_mask"),
        ({"attention_mask": torch.ones(5, 12, 12)}, "attention_mask"),
        ({"attention_mask": torch.full((5, 12), -1e9)}, "attention_mask"),
        ({"past_key_values": object()}, "past_key_values"),
        ({"encoder_hidden_states": torch.zeros(5, 12, 24)}, "encoder_hidden_states"),
        ({"cu_seq_lens_q": torch.tensor([0, 12])}, "cu_seq_lens_q"),
    ],
)
def test_options_that_cannot_be_honoured_are_named(options: dict[str, Any], named: str) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    with pytest.raises(hashee.UnsupportedOption, match=named) as caught:
        model(**({"input_ids": make_ids()} | options))
    assert "\n" not in str(caught.value)


# Transformers itself stops these with that setting, when the encoder is built.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("cpt", "encoder-bart")])
def test_output_attentions_in_the_config_is_refused_too(family: str) -> None:
    encoder = encoder_of(converted(make_model(family, output_attentions=True), make_exits("random exits")))
    with pytest.raises(hashee.UnsupportedOption, match="output_attentions"):
        encoder(make_ids())


def test_head_options_reach_the_check(classifier: Any) -> None:
    with pytest.raises(hashee.UnsupportedOption, match="output_attentions"):
        classifier(make_ids(), output_attentions=True)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet", "bart", "electra"])
def test_a_text_longer_than_the_model_is_refused(family: str) -> None:
    encoder = encoder_of(converted(make_model(family), make_exits("random exits")))
    with pytest.raises(hashee.InputError, match="truncation=True"):
        encoder(make_ids(batch=2, length=60))


@pytest.mark.parametrize("bad_id", [VOCABULARY, -1, 10**6])
def test_ids_outside_the_table_are_refused(bad_id: int) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    ids = make_ids()
    ids[2, 3] = bad_id
    with pytest.raises(hashee.InputError, match=f"token id {bad_id} is outside"):
        model(ids)
    # Where the mask says padding, the id is never looked at.
    mask = torch.ones_like(ids)
    mask[2, 3] = 0
    assert torch.isfinite(model(ids, attention_mask=mask).last_hidden_state).all()


def test_shapes_that_disagree_are_refused() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    with pytest.raises(hashee.InputError, match="attention_mask is"):
        model(make_ids(), attention_mask=torch.ones(5, 11))
    with pytest.raises(hashee.InputError, match="batch, length"):
        model(torch.tensor([5, 6, 7]))
    with pytest.raises(hashee.UnsupportedOption, match="input_ids is missing"):
        model()


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_batch_gives_an_empty_result(family: str) -> None:
    encoder = encoder_of(converted(make_model(family), make_exits("random exits")))
    assert encoder(torch.zeros(0, 7, dtype=torch.long)).last_hidden_state.shape == (0, 7, 24)
    assert encoder(torch.zeros(0, 0, dtype=torch.long)).last_hidden_state.shape == (0, 0, 24)


def test_an_empty_batch_gives_empty_logits(classifier: Any) -> None:
    assert classifier(torch.zeros(0, 7, dtype=torch.long)).logits.shape == (0, 2)


def test_empty_texts_go_through_the_pipeline() -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    dense = AutoModel.from_pretrained(minilm_folder())
    model = hashee.convert(dense, hashee.ExitTable.at_random(tokenizer, num_layers=6), tokenizer=tokenizer)
    extract = pipeline("feature-extraction", model=model, tokenizer=tokenizer)
    assert torch.tensor(extract("")).shape == (1, 2, 384)
    assert len(model.explain("").tokens) == 2


def test_a_sequence_without_tokens_stays_zero() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    mask = make_mask("mixed lengths")
    mask[2] = 0
    output = model(make_ids(), attention_mask=mask)
    assert output.last_hidden_state[2].abs().max() == 0
    assert torch.isfinite(output.last_hidden_state).all()
    output.last_hidden_state.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    # What the pooler would say of a padding position is marked as no number rather than made up.
    assert output.pooler_output[2].isnan().all() and torch.isfinite(output.pooler_output[[0, 1, 3, 4]]).all()


def test_a_head_that_reads_padding_is_refused(classifier: Any) -> None:
    with pytest.raises(hashee.InputError, match="padding_side = 'right'"):
        classifier(make_ids(), attention_mask=make_mask("left"))


def test_weights_that_are_not_numbers_are_refused(saved: Path) -> None:
    dense = make_model("bert")
    with torch.no_grad():
        dense.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(hashee.CheckpointError, match=r"encoder\.layer\.1\.output\.dense\.weight"):
        converted(dense, make_exits("random exits"))
    weights = load_file(saved / "model.safetensors")
    weights["bert.encoder.layer.0.intermediate.dense.bias"][3] = float("inf")
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hashee.CheckpointError, match=r"layer\.0\.intermediate\.dense\.bias"):
        AutoModelForSequenceClassification.from_pretrained(saved)


@pytest.mark.parametrize(
    "lost",
    ["bert.encoder.layer.1.output.dense.weight", "bert.exit_layers", "classifier.bias", "bert.pooler.dense.bias"],
)
def test_a_checkpoint_with_missing_keys_is_refused(saved: Path, lost: str) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights[lost]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hashee.CheckpointError, match=lost.replace(".", r"\.")):
        AutoModelForSequenceClassification.from_pretrained(saved)


def test_a_new_head_on_a_saved_encoder_is_fine(tmp_path: Path) -> None:
    converted(make_model("bert"), make_exits("random exits")).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=7)
    assert model(make_ids()).logits.shape == (5, 7)


def test_a_truncated_checkpoint_is_refused(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(hashee.CheckpointError, match="damaged or cut short"):
        AutoModelForSequenceClassification.from_pretrained(saved)


def test_another_table_in_the_weights_is_refused(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    weights["bert.exit_layers"] = (weights["bert.exit_layers"] + 1).clamp(max=LAYERS)
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hashee.TableError, match="different tables"):
        AutoModelForSequenceClassification.from_pretrained(saved)


def test_a_foreign_tokenizer_in_the_folder_is_refused(tokenizer: Any, own_tokenizer: Any, tmp_path: Path) -> None:
    dense = make_model("bert", vocab_size=len(tokenizer))
    table = hashee.ExitTable.by_frequency(tokenizer, ["the film is good", "a dull plot"], num_layers=LAYERS)
    hashee.convert(dense, table, tokenizer=tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.explain("the film").exit_layers[1] == table.exit_layers[tokenizer.convert_tokens_to_ids("the")]
    minilm = AutoTokenizer.from_pretrained(minilm_folder())
    minilm.save_pretrained(tmp_path)
    with pytest.raises(hashee.TableMismatch, match="tokenizer"):
        AutoModel.from_pretrained(tmp_path)


def test_tables_for_another_vocabulary_or_depth_are_refused(tokenizer: Any) -> None:
    dense = make_model("bert")
    with pytest.raises(hashee.TableMismatch, match=f"{VOCABULARY + 1} tokens"):
        hashee.convert(dense, hashee.ExitTable.never(VOCABULARY + 1, num_layers=LAYERS))
    with pytest.raises(hashee.TableMismatch, match=f"{VOCABULARY - 1} tokens"):
        hashee.convert(dense, hashee.ExitTable.never(VOCABULARY - 1, num_layers=LAYERS))
    with pytest.raises(hashee.TableMismatch, match=f"{LAYERS + 1} layers"):
        hashee.convert(dense, hashee.ExitTable.never(VOCABULARY, num_layers=LAYERS + 1))
    with pytest.raises(hashee.TableMismatch, match="tokenizer"):
        minilm = AutoTokenizer.from_pretrained(minilm_folder())
        hashee.convert(make_model("bert", vocab_size=len(tokenizer)), hashee.ExitTable.never(tokenizer, LAYERS), minilm)
    with pytest.raises(hashee.TableMismatch, match="one depth"):
        hashee.convert(
            dense,
            hashee.ExitTable.never(VOCABULARY, LAYERS),
            train_table=hashee.ExitTable.never(VOCABULARY, LAYERS - 1),
        )


def test_models_that_cannot_be_converted_are_refused(classifier: Any) -> None:
    table = hashee.ExitTable.never(VOCABULARY, num_layers=2)
    with pytest.raises(hashee.UnsupportedModel, match="gpt2"):
        hashee.convert(GPT2Model(GPT2Config(n_layer=2, n_embd=8, n_head=2, vocab_size=VOCABULARY)), table)
    with pytest.raises(hashee.UnsupportedModel, match="decoder"):
        tiny = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 8}
        hashee.convert(BertLMHeadModel(BertConfig(is_decoder=True, vocab_size=VOCABULARY, **tiny)), table)
    with pytest.raises(hashee.UnsupportedModel, match="exits already"):
        hashee.convert(classifier, table)
    with pytest.raises(hashee.UnsupportedModel, match="not a transformers model"):
        hashee.convert(torch.nn.Linear(2, 2), table)  # type: ignore[arg-type]


def test_a_model_from_a_bare_config_says_that_it_has_no_table(classifier: Any) -> None:
    model = AutoModelForSequenceClassification.from_config(classifier.config)
    with pytest.raises(hashee.CheckpointError, match="never filled"):
        model(make_ids())
    plain = dict(classifier.config.to_dict(), hashee=None)
    with pytest.raises(hashee.CheckpointError, match=r"hashee\.convert"):
        type(classifier)(type(classifier.config).from_dict(plain))


def test_a_folder_without_weights_is_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(hashee.CheckpointError, match="no file named"):
        AutoModelForSequenceClassification.from_pretrained(saved)


def test_pickled_weights_that_hold_code_are_never_run(saved: Path, tmp_path: Path) -> None:
    # A .bin file is only ever read with weights_only=True, so a pickle that would run code is refused.
    marker = tmp_path / "ran"

    class Attack:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    (saved / "model.safetensors").unlink()
    torch.save({"bert.exit_layers": Attack()}, saved / "pytorch_model.bin")
    with pytest.raises(Exception, match=r"(?i)weights"):
        AutoModelForSequenceClassification.from_pretrained(saved)
    assert not marker.exists()


def test_configs_written_by_conversion_are_plain_json(saved: Path) -> None:
    settings = json.loads((saved / "config.json").read_text())["hashee"]
    assert settings["source_layers"] == LAYERS
    assert settings["table"]["fingerprint"] and settings["train_table"] is None
    shutil.rmtree(saved)


@pytest.mark.parametrize("auto_class", [AutoModel, AutoModelForSequenceClassification])
def test_tracing_says_what_to_use_instead(auto_class: Any) -> None:
    model = converted(make_model("bert", auto_class), make_exits("random exits")).eval()
    with pytest.raises(hashee.UnsupportedOption, match="export_onnx"):
        torch.jit.trace(model, make_ids(), strict=False)


def test_errors_are_one_line_of_bounded_length() -> None:
    long = str(hashee.InputError("the column " + "x\n" * 10_000_000 + " is missing; name another"))
    assert len(long) <= 500 and "\n" not in long
    assert long.startswith("the column x x") and long.endswith("is missing; name another")
    assert str(hashee.InputError("a short one")) == "a short one"


@pytest.mark.parametrize(
    "options", [{"num_layers": 10**9}, {"num_layers": 2**63}, {"num_layers": 6, "num_buckets": 10**12}]
)
def test_numbers_that_cannot_be_meant_are_refused_at_once(tokenizer: Any, options: dict[str, int]) -> None:
    (name,) = set(options) - {"num_layers"} or {"num_layers"}
    with pytest.raises(hashee.TableError, match=f"{name}={options[name]} must be a whole number from 1 to"):
        hashee.ExitTable.at_random(tokenizer, **options)
    if name == "num_layers":
        with pytest.raises(hashee.TableError, match=name):
            hashee.ExitTable.never(tokenizer, **options)
        with pytest.raises(hashee.TableError, match=name):
            hashee.ExitTable.from_mapping(tokenizer, {}, **options)
