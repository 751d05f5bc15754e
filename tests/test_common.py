"""What transformers asks of its own models holds for converted ones, or is on the documented list of refusals."""

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import hashee
from architectures import FAMILIES, LAYERS, VOCABULARY, converted, make_exits, make_ids, make_mask, make_model

DOCS = Path(__file__).parents[1] / "docs" / "huggingface.md"
SEQ2SEQ = ("bart", "mbart", "cpt")
ENCODERS = [family for family in FAMILIES if family not in SEQ2SEQ]
EXITS = make_exits("random exits")
TOLERANCE = 1e-5


def classifier(family: str, **changes: Any) -> Any:
    """Return a tiny converted classifier."""
    return converted(make_model(family, AutoModelForSequenceClassification, **changes), EXITS)


def inputs_for(family: str) -> dict[str, torch.Tensor]:
    ids = make_ids()
    if family in SEQ2SEQ:
        ids[:, -1] = 2  # the end of text, which BART's classifier reads
    return {"input_ids": ids, "attention_mask": make_mask("full")}


def logits(model: Any, family: str) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(**inputs_for(family)).logits


def without_dropout(family: str) -> dict[str, float]:
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "dropout")
    names += ("attention_dropout", "activation_dropout", "seq_classif_dropout", "encoder_layerdrop")
    config = transformers.AutoConfig.for_model(family) if family in transformers.CONFIG_MAPPING else None
    return {name: 0.0 for name in names if config is None or hasattr(config, name)}


# --- loading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_from_pretrained_takes_its_first_argument_by_name(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(pretrained_model_name_or_path=tmp_path)
    assert torch.equal(logits(loaded, family), logits(model, family))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_can_be_given_instead_of_a_folder(family: str) -> None:
    model = classifier(family)
    loaded = type(model).from_pretrained(None, config=model.config, state_dict=model.state_dict())
    assert torch.equal(logits(loaded, family), logits(model, family))
    lacking = {name: value for name, value in model.state_dict().items() if not name.endswith("exit_layers")}
    with pytest.raises(hashee.CheckpointError, match="exit_layers"):
        type(model).from_pretrained(None, config=model.config, state_dict=lacking)


HEADS = (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoModelForQuestionAnswering,
)


@pytest.mark.parametrize("loaded_as", HEADS)
@pytest.mark.parametrize("saved_as", HEADS)
@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "elasticbert", "electra", "mpnet", "roberta"])
def test_a_folder_opens_under_another_head(family: str, saved_as: Any, loaded_as: Any, tmp_path: Path) -> None:
    saved = converted(make_model(family, saved_as), EXITS)
    saved.save_pretrained(tmp_path)
    loaded, info = loaded_as.from_pretrained(tmp_path, output_loading_info=True)
    assert loaded.exit_table == saved.exit_table
    ours, theirs = loaded.hashed_encoder.state_dict(), saved.hashed_encoder.state_dict()
    shared = [name for name in ours if name in theirs]
    assert len(shared) > 16
    assert all(torch.equal(ours[name], theirs[name]) for name in shared)
    # What is new is what transformers reports, and it is initialised: small, finite, biases zero.
    for name in info["missing_keys"]:
        weight = loaded.get_parameter(name)
        assert weight.isfinite().all() and weight.abs().max() <= 1.0
    if saved_as is loaded_as:
        assert not info["missing_keys"]
    with torch.no_grad():
        assert loaded.eval()(make_ids())[0].isfinite().all()


def test_a_summarizer_opens_as_a_classifier(tmp_path: Path) -> None:
    saved = converted(make_model("bart", AutoModelForSeq2SeqLM), EXITS)
    saved.save_pretrained(tmp_path)
    loaded, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert {name.partition(".")[0] for name in info["missing_keys"]} == {"classification_head"}
    assert logits(loaded, "bart").isfinite().all()


@pytest.mark.parametrize(
    ("family", "lost"),
    [
        ("bert", "classifier.bias"),
        ("bert", "bert.pooler.dense.bias"),
        ("bert", "bert.encoder.layer.1.output.dense.bias"),
        ("roberta", "classifier.dense.weight"),
        ("bart", "model.decoder.layers.0.fc1.weight"),
    ],
)
def test_half_a_head_or_a_hole_in_the_encoder_is_damage(family: str, lost: str, tmp_path: Path) -> None:
    model = classifier(family)
    state = model.state_dict()
    assert lost in state
    for architectures in (None, ["HasheeOther"], [type(model).__name__]):
        config = copy.deepcopy(model.config)
        config.architectures = architectures
        rest = {name: value for name, value in state.items() if name != lost}
        with pytest.raises(hashee.CheckpointError, match=re.escape(lost)):
            type(model).from_pretrained(None, config=config, state_dict=rest)


def test_a_head_that_a_folder_should_have_is_not_made_up(tmp_path: Path) -> None:
    model = classifier("bert")
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    rest = {name: value for name, value in model.state_dict().items() if not name.startswith("classifier")}
    with pytest.raises(hashee.CheckpointError, match="classifier"):
        type(model).from_pretrained(None, config=config, state_dict=rest)


@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "mpnet", "roberta", "bart"])
def test_mismatched_sizes_are_new_where_that_is_wanted(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size"):
        type(model).from_pretrained(tmp_path, num_labels=42)
    many = type(model).from_pretrained(tmp_path, num_labels=42, ignore_mismatched_sizes=True)
    assert logits(many, family).shape[1] == 42
    assert logits(many, family).isfinite().all()
    assert many.exit_table == model.exit_table
    few = type(model).from_pretrained(tmp_path, vocab_size=10, ignore_mismatched_sizes=True)
    assert few.exit_table.exit_layers.tolist() == [LAYERS] * 10, "no token of another vocabulary has an exit"
    ids = torch.tensor([[5, 7, 9, 2]])
    with torch.no_grad():
        assert few.eval()(ids).logits.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_models_on_the_meta_device_are_filled_or_refused(family: str) -> None:
    model = classifier(family)
    with torch.device("meta"):
        empty = type(model)(model.config)
    filled = copy.deepcopy(empty)
    filled.load_state_dict(model.state_dict(), assign=True)
    # Positions and the like are no weights, so `assign` leaves them on the meta device, as in transformers.
    for name, buffer in filled.named_buffers():
        if buffer.is_meta:
            owner, _, leaf = name.rpartition(".")
            filled.get_submodule(owner).register_buffer(leaf, model.get_buffer(name), persistent=False)
    filled.tie_weights()
    assert torch.equal(logits(filled, family), logits(model, family))
    undefined = empty.to_empty(device="cpu")
    with torch.no_grad():
        for value in (94636393850368, -1):
            undefined.hashed_encoder.exit_layers.fill_(value)
            with pytest.raises(hashee.CheckpointError, match="never filled"):
                undefined(**inputs_for(family))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["albert", "bert", "bart", "distilbert", "mpnet", "roberta-prelayernorm"])
def test_folders_open_in_any_precision(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = classifier(family)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
    assert loaded.dtype == dtype
    assert loaded.hashed_encoder.exit_layers.dtype == torch.int64
    difference = (logits(loaded, family).float() - logits(model, family)).abs().max()
    assert difference <= (1e-6 if dtype == torch.float32 else 0.25)


# --- running --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exits", ["random exits", "exits at 0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_inference_under_autocast(family: str, exits: str, dtype: torch.dtype) -> None:
    model = make_model(family)
    # Few active tokens among many: the absorbed form of attention, in which few queries read many states.
    table = make_exits(exits).clamp(max=1)
    table[7] = LAYERS
    ids = make_ids(batch=3, length=30)
    ids[:, 0] = 7
    with_exits = converted(model, table)
    states = "encoder_last_hidden_state" if family in SEQ2SEQ else "last_hidden_state"
    from hashee.reference import run_reference

    with torch.no_grad():
        exact = run_reference(model, table, input_ids=ids)[states]
        with torch.autocast("cpu", dtype=dtype):
            theirs = run_reference(model, table, input_ids=ids)[states]
            ours = with_exits(ids)[states]
    assert ours.isfinite().all()
    # As close to the exact states as transformers is in that precision.
    assert (ours.float() - exact).abs().max() <= 3 * (theirs.float() - exact).abs().max() + 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_tuples_and_dictionaries_say_the_same(family: str) -> None:
    model = classifier(family)
    with torch.no_grad():
        for options in ({}, {"output_hidden_states": True}):
            named = model(**inputs_for(family), **options)
            plain = model(**inputs_for(family), **options, return_dict=False)
            flat = [value for value in named.to_tuple() if not isinstance(value, transformers.Cache)]
            plain = [value for value in plain if not isinstance(value, transformers.Cache)]
            assert len(flat) == len(plain)
            for one, other in zip(flat, plain, strict=True):
                for left, right in zip(*[x if isinstance(x, tuple) else (x,) for x in (one, other)], strict=True):
                    assert torch.equal(left.nan_to_num(), right.nan_to_num())


@pytest.mark.parametrize("family", ENCODERS)
def test_hidden_states_have_gradients(family: str) -> None:
    model = converted(make_model(family), EXITS).train()
    output = model(make_ids(), output_hidden_states=True)
    for state in output.hidden_states:
        state.retain_grad()
    output.last_hidden_state.square().sum().backward()
    assert all(state.grad is not None and state.grad.abs().max() > 0 for state in output.hidden_states)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_that_matters_has_a_gradient(family: str) -> None:
    def trained(model: Any) -> set[str]:
        model.train()(**inputs_for(family)).logits.square().sum().backward()
        return {name for name, parameter in model.named_parameters() if parameter.grad is not None}

    dense = make_model(family, AutoModelForSequenceClassification, **without_dropout(family))
    model = converted(copy.deepcopy(dense), make_exits("full depth"))
    assert trained(model) == trained(dense)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_by_config(family: str) -> None:
    options = without_dropout(family)
    dense = make_model(family, AutoModelForSequenceClassification, **options)
    if not dense.supports_gradient_checkpointing:
        pytest.skip(f"transformers has no gradient checkpointing for {family}")
    plain = converted(dense, EXITS).train()
    config = copy.deepcopy(plain.config)
    config.gradient_checkpointing = True
    model = type(plain).from_pretrained(None, config=config, state_dict=plain.state_dict()).train()
    assert model.is_gradient_checkpointing
    runs = []
    encoder = model.hashed_encoder
    for layer in encoder.adapter.layers(encoder):
        layer._gradient_checkpointing_func = _counted(layer._gradient_checkpointing_func, runs)
    for each in (plain, model):
        each(**inputs_for(family)).logits.square().sum().backward()
    assert len(runs) == len(encoder.adapter.layers(encoder)), "the layers ran without checkpoints"
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(parameter.grad, model.get_parameter(name).grad, atol=1e-4, rtol=1e-4), name
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    dense.gradient_checkpointing_enable()
    assert converted(dense, EXITS).is_gradient_checkpointing


def _counted(function: Callable[..., Any], runs: list[int]) -> Callable[..., Any]:
    def counting(*args: Any, **kwargs: Any) -> Any:
        runs.append(1)
        return function(*args, **kwargs)

    return counting


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_models_answer_alike(family: str) -> None:
    model = converted(make_model(family), EXITS)
    compiled = torch.compile(model, backend="eager")
    for seed in (0, 1):
        ids = make_ids(seed=seed)
        with torch.no_grad():
            assert (compiled(ids)[0] - model(ids)[0]).abs().max() <= TOLERANCE
    torch._dynamo.reset()


@pytest.mark.parametrize("family", FAMILIES)
def test_word_embeddings_may_be_given_beside_the_ids(family: str) -> None:
    model = converted(make_model(family), EXITS)
    ids = make_ids()
    encoder = model.hashed_encoder
    with torch.no_grad():
        words = model.get_input_embeddings()(ids)
        given = encoder(ids, inputs_embeds=words).last_hidden_state
        assert (given - encoder(ids).last_hidden_state).abs().max() <= TOLERANCE


# --- as an object ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_are_independent(family: str) -> None:
    model = classifier(family)
    expected = logits(model, family)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(copied) is type(model)
        assert torch.equal(logits(copied, family), expected)
        with torch.no_grad():
            copied.get_input_embeddings().weight.zero_()
        assert torch.equal(logits(model, family), expected)


def test_pickled_models_open_in_another_process(tmp_path: Path) -> None:
    for family in FAMILIES:
        model = classifier(family)
        contents = pickle.dumps((model, inputs_for(family), logits(model, family)))
        (tmp_path / f"{family}.pickle").write_bytes(contents)
    script = """
import pathlib, pickle, sys, torch
paths = sorted(pathlib.Path(sys.argv[1]).glob("*.pickle"))
for path in paths:
    model, inputs, expected = pickle.loads(path.read_bytes())
    with torch.no_grad():
        assert (model(**inputs).logits - expected).abs().max() <= 1e-5, path
    assert type(model).__name__.startswith("Hashee")
    assert pickle.loads(pickle.dumps(type(model))) is type(model)
print(len(paths))
"""
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_vocabularies_are_resized(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    for size in (VOCABULARY + 13, VOCABULARY - 20):
        resized = copy.deepcopy(model)
        resized.resize_token_embeddings(size)
        assert resized.config.vocab_size == resized.get_input_embeddings().num_embeddings == size
        assert len(resized.exit_table.exit_layers) == size
        kept = min(size, VOCABULARY)
        assert torch.equal(resized.exit_table.exit_layers[:kept], model.exit_table.exit_layers[:kept])
        assert (resized.exit_table.exit_layers[kept:] == LAYERS).all()
        with pytest.raises(hashee.InputError):
            resized.hashed_encoder(torch.tensor([[size]]))
        resized.save_pretrained(tmp_path / str(size))
        loaded = type(model).from_pretrained(tmp_path / str(size))
        ids = make_ids().clamp(max=size - 1)
        ids[:, -1] = 2
        with torch.no_grad():
            assert torch.equal(loaded(ids).logits, resized.eval()(ids).logits)


@pytest.mark.parametrize("family", ENCODERS)
def test_tied_weights_stay_tied(family: str, tmp_path: Path) -> None:
    model = converted(make_model(family, AutoModelForMaskedLM), EXITS)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    loaded.resize_token_embeddings(VOCABULARY + 3)
    for each in (model, loaded, copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):
        assert each.get_output_embeddings().weight is each.get_input_embeddings().weight
    with torch.no_grad():
        assert loaded.eval()(make_ids()).logits.shape[-1] == VOCABULARY + 3


@pytest.mark.parametrize("family", FAMILIES)
def test_embeddings_are_read_and_replaced(family: str) -> None:
    model = classifier(family)
    before = logits(model, family)
    other = copy.deepcopy(model.get_input_embeddings())
    assert other.weight is not model.get_input_embeddings().weight
    model.set_input_embeddings(other)
    assert model.get_input_embeddings().weight is other.weight
    assert torch.allclose(logits(model, family), before, atol=TOLERANCE)
    with torch.no_grad():
        other.weight.mul_(0.5)
    assert not torch.allclose(logits(model, family), before, atol=1e-3)
    assert model.main_input_name == "input_ids"


@pytest.mark.parametrize("pooling", [True, False])
@pytest.mark.parametrize("family", ["albert", "bert", "camembert", "elasticbert", "mpnet", "roberta", "xlm-roberta"])
def test_encoders_with_and_without_a_pooler(family: str, pooling: bool, tmp_path: Path) -> None:
    from architectures import make_config, randomise
    from hashee.adapters import ADAPTERS
    from hashee.reference import run_reference

    torch.manual_seed(0)
    dense = ADAPTERS[family].encoder_class(make_config(family), add_pooling_layer=pooling).eval()
    model = converted(randomise(dense), EXITS)
    with torch.no_grad():
        theirs = run_reference(dense, EXITS, input_ids=make_ids())
        ours = model(make_ids())
    assert (ours.pooler_output is not None) == pooling == (theirs.pooler_output is not None)
    for name in ours:
        assert (ours[name] - theirs[name]).abs().max() <= TOLERANCE
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, add_pooling_layer=pooling)
    with torch.no_grad():
        assert torch.equal(loaded(make_ids()).last_hidden_state, ours.last_hidden_state)


# --- what is refused ------------------------------------------------------------------------------------------


def _bert(**inputs: Any) -> Any:
    return converted(make_model("bert"), EXITS)(**{"input_ids": make_ids()} | inputs)


def _no_table(_: Path) -> None:
    config = copy.deepcopy(converted(make_model("bert"), EXITS).config)
    AutoModel.from_config(config)(make_ids())


def _non_finite(folder: Path) -> None:
    model = classifier("bert")
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    model.save_pretrained(folder)
    AutoModelForSequenceClassification.from_pretrained(folder)


def _missing(folder: Path) -> None:
    model = classifier("bert")
    state = {name: value for name, value in model.state_dict().items() if "layer.0" not in name}
    type(model).from_pretrained(None, config=model.config, state_dict=state)


REFUSALS: dict[str, Callable[[Path], Any]] = {
    "`torch.jit.trace`": lambda _: torch.jit.trace(classifier("bert").eval(), make_ids(), strict=False),
    "`output_attentions`": lambda _: _bert(output_attentions=True),
    "`inputs_embeds` without `input_ids`": lambda _: _bert(input_ids=None, inputs_embeds=torch.randn(5, 12, 24)),
    "masks of three or four dimensions": lambda _: _bert(attention_mask=torch.ones(5, 1, 12, 12)),
    "masks with values other than 0 and 1": lambda _: _bert(attention_mask=torch.full((5, 12), 0.5)),
    "`past_key_values`": lambda _: _bert(past_key_values=((None,),)),
    "`encoder_hidden_states`": lambda _: _bert(encoder_hidden_states=torch.randn(5, 12, 24)),
    "decoder configs": lambda _: converted(
        transformers.BertLMHeadModel(make_model("bert", is_decoder=True).config), EXITS
    ),
    "`cu_seq_lens_q`, `cu_seq_lens_k`": lambda _: _bert(cu_seq_lens_q=torch.tensor([0, 5])),
    "`head_mask`": lambda _: _bert(head_mask=torch.ones(LAYERS, 3)),
    "a classifier on left-padded rows": lambda _: classifier("bert")(make_ids(), make_mask("left")),
    "token ids outside the table": lambda _: _bert(input_ids=torch.tensor([[VOCABULARY]])),
    "texts longer than the model": lambda _: _bert(input_ids=torch.ones(1, 41, dtype=torch.long)),
    "a config without its exit table": _no_table,
    "missing weights": _missing,
    "non-finite weights": _non_finite,
    "a model that has exits already": lambda _: converted(converted(make_model("bert"), EXITS), EXITS),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_refusals_are_errors_of_ours(what: str, tmp_path: Path) -> None:
    with pytest.raises(hashee.HasheeError) as caught:
        REFUSALS[what](tmp_path)
    assert len(str(caught.value).splitlines()) == 1


def test_the_documented_list_of_refusals_is_the_one_that_is_tested() -> None:
    section = DOCS.read_text(encoding="utf-8").split("## What is refused")[1].split("\n## ")[0]
    documented = [row.split("|")[1].strip() for row in section.splitlines() if row.startswith("|")][2:]
    assert documented == list(REFUSALS)
