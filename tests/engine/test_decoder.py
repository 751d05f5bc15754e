"""Decoders with exits equal the reference: whole targets, steps with a cache, generated ids, gradients."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

import hashee
import hashee.engine.decoder
from architectures import LAYERS, converted, make_exits, make_ids, make_mask, make_writer, padded
from hashee.engine.decoder_adapter import DecoderBlock
from hashee.engine.reference import decoder_exits_by_hooks, exits_by_hooks
from hashee.families.adapters import DECODERS

TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
FAMILIES = sorted(DECODERS)
EXITS = ("full depth", "random exits", "exits at 0")
MODES = {"greedy": {}, "beam": {"num_beams": 3}, "sampling": {"do_sample": True, "top_k": 30}}
TARGET = 9


def with_exits(model: Any, exits: Tensor) -> Any:
    return hashee.convert(model, decoder_table=hashee.ExitTable.from_tensor(exits, num_layers=LAYERS))


def make_target_mask(kind: str) -> Tensor:
    return torch.ones(5, TARGET, dtype=torch.long) if kind == "full" else make_mask(kind, length=TARGET)


def make_inputs(model: Any, target_mask: str = "full") -> dict[str, Tensor]:
    """Return a source of mixed lengths and a target; a model that only decodes gets a target alone."""
    target, mask = make_ids(length=TARGET, seed=4), make_target_mask(target_mask)
    if not model.config.is_encoder_decoder:
        return {"input_ids": padded(target, mask, model.config), "attention_mask": mask}
    source_mask = make_mask("mixed lengths")
    return {
        "input_ids": padded(make_ids(), source_mask, model.config),
        "attention_mask": source_mask,
        "decoder_input_ids": padded(target, mask, model.config),
        **({} if target_mask == "full" else {"decoder_attention_mask": mask}),
    }


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


def gradients(logits: Tensor, model: Any) -> dict[str, Tensor]:
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(3))
    model.zero_grad()
    (logits * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("mask_kind", ["full", "mixed lengths", "left"])
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_targets_equal_the_reference(family: str, exits_kind: str, mask_kind: str) -> None:
    model, exits = make_writer(family), make_exits(exits_kind)
    inputs, real = make_inputs(model, mask_kind), make_target_mask(mask_kind).bool()
    with decoder_exits_by_hooks(model, exits):
        theirs = model(**inputs, use_cache=False).logits[real]
    ours = with_exits(model, exits)(**inputs, use_cache=False).logits[real]
    assert distance(ours, theirs) <= TOLERANCE
    if exits_kind == "full depth":
        assert distance(ours, model(**inputs).logits[real]) <= TOLERANCE
    by_reference, by_engine = gradients(theirs, model), gradients(ours, model)
    scale = max(float(gradient.abs().max()) for gradient in by_reference.values())
    for name, gradient in by_reference.items():
        # A layer without an active position leaves its weights out of the graph.
        found = by_engine.get(name, torch.zeros_like(gradient))
        size = max(float(gradient.abs().max()), 1e-2 * scale)
        assert distance(found, gradient) <= GRADIENT_TOLERANCE * size, name


@pytest.mark.parametrize("parts", [(1,) * TARGET, (4, 1, 3, 1), (TARGET - 1, 1)])
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_with_the_cache_equal_the_whole_target(family: str, exits_kind: str, parts: tuple[int, ...]) -> None:
    model, exits = make_writer(family), make_exits(exits_kind)
    writer = with_exits(model, exits)
    for mask_kind in ("full", "left"):
        inputs = make_inputs(model, mask_kind)
        names = (
            ("decoder_input_ids", "decoder_attention_mask")
            if "decoder_input_ids" in inputs
            else (
                "input_ids",
                "attention_mask",
            )
        )
        ids, mask = inputs.pop(names[0]), inputs.pop(names[1], None)
        positions = {} if mask is None or family != "llama" else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        whole_mask = {} if mask is None else {names[1]: mask}
        with torch.inference_mode():
            whole = writer(**inputs, **{names[0]: ids}, **whole_mask, **positions, use_cache=False).logits
            cache, start, logits = None, 0, []
            for size in parts:
                stop = start + size
                now = {names[0]: ids[:, start:stop]} | ({} if mask is None else {names[1]: mask[:, :stop]})
                where = {name: values[:, start:stop] for name, values in positions.items()}
                output = writer(**inputs, **now, **where, past_key_values=cache, use_cache=True)
                cache, start = output.past_key_values, stop
                logits.append(output.logits)
        real = make_target_mask(mask_kind).bool()
        assert distance(torch.cat(logits, dim=1)[real], whole[real]) <= TOLERANCE
        # What frozen positions are read by in every layer is in the cache.
        self_attention = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
        assert [self_attention.get_seq_length(layer) for layer in range(LAYERS)] == [TARGET] * LAYERS


def generate(model: Any, inputs: dict[str, Tensor], **options: Any) -> Tensor:
    torch.manual_seed(0)
    prompt = {name: values for name, values in inputs.items() if not name.startswith("decoder")}
    ids: Tensor = model.generate(**prompt, max_new_tokens=12, min_new_tokens=8, pad_token_id=0, **options)
    return ids


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_generated_ids_are_those_of_the_reference(family: str, mode: str) -> None:
    model, exits = make_writer(family), make_exits("random exits")
    inputs = make_inputs(model, "left")
    writer = with_exits(model, exits)
    with decoder_exits_by_hooks(model, exits):
        by_prefix = generate(model, inputs, use_cache=False, **MODES[mode])
        assert torch.equal(generate(model, inputs, **MODES[mode]), by_prefix), "the reference agrees with itself"
    assert torch.equal(generate(writer, inputs, **MODES[mode]), by_prefix)
    assert torch.equal(generate(writer, inputs, use_cache=False, **MODES[mode]), by_prefix)
    dense = generate(model, inputs, **MODES[mode])
    assert not torch.equal(by_prefix, dense), "exits must make a difference here"
    assert torch.equal(generate(with_exits(model, make_exits("full depth")), inputs, **MODES[mode]), dense)


def test_caches_of_fixed_size_give_the_same_ids() -> None:
    model, exits = make_writer("llama"), make_exits("random exits")
    inputs, writer = make_inputs(model, "left"), with_exits(model, exits)
    assert torch.equal(
        generate(writer, inputs, cache_implementation="static", disable_compile=True), generate(writer, inputs)
    )


@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama"])
def test_tokens_exit_in_encoder_and_decoder(family: str, mode: str) -> None:
    model, inside, outside = make_writer(family), make_exits("random exits", seed=7), make_exits("exits at 0", seed=8)
    inputs = make_inputs(model)
    tables = [hashee.ExitTable.from_tensor(exits, num_layers=LAYERS) for exits in (inside, outside)]
    writer = hashee.convert(model, tables[0], decoder_table=tables[1])
    with exits_by_hooks(model, inside, inputs["input_ids"]), decoder_exits_by_hooks(model, outside):
        theirs, ids = model(**inputs).logits, generate(model, inputs, **MODES[mode])
    assert distance(writer(**inputs).logits, theirs) <= TOLERANCE
    assert torch.equal(generate(writer, inputs, **MODES[mode]), ids)
    assert distance(converted(model, inside)(**inputs).logits, theirs) > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_the_reference(family: str) -> None:
    model, exits = make_writer(family), make_exits("exits at 0")
    inputs = make_inputs(model) | {"output_hidden_states": True}
    name = "decoder_hidden_states" if model.config.is_encoder_decoder else "hidden_states"
    with decoder_exits_by_hooks(model, exits):
        theirs = model(**inputs)[name]
    ours = with_exits(model, exits)(**inputs)[name]
    assert len(ours) == len(theirs) == LAYERS + 1
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert distance(mine, other) <= TOLERANCE, number


@pytest.mark.parametrize("field", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_is_where_hugging_face_has_it(family: str, field: str) -> None:
    # Dropping everything is the one kind of dropout that is not random.
    fields = ("attention_dropout",) if family == "llama" else ("dropout", "attention_dropout", "activation_dropout")
    if field not in fields:
        pytest.skip(f"{family} has no {field}")
    model, exits = make_writer(family, **{name: float(name == field) for name in fields}), make_exits("random exits")
    writer, inputs = with_exits(model, exits), make_inputs(model)
    decoder, dense = writer.hashed_decoder, DECODERS[family].decoder_in(model)[1]  # type: ignore[index]
    inputs = {"input_ids": inputs.get("decoder_input_ids", inputs["input_ids"])}
    if family != "llama":
        inputs["encoder_hidden_states"] = torch.randn(5, 7, 24, generator=torch.Generator().manual_seed(6))
    with decoder_exits_by_hooks(model, exits):
        theirs = dense.train()(**inputs).last_hidden_state
    ours = decoder.train()(**inputs).last_hidden_state
    assert distance(ours, theirs) <= TOLERANCE
    assert distance(ours, decoder.eval()(**inputs).last_hidden_state) > 1e-2


def test_layer_drop_skips_layers_in_training_only() -> None:
    model = make_writer("bart", decoder_layerdrop=1.0, dropout=0.0)
    decoder = with_exits(model, make_exits("full depth")).hashed_decoder
    states = decoder(make_ids(), output_hidden_states=True, use_cache=False).hidden_states
    assert distance(states[-1], states[0]) > 1e-2
    assert distance(decoder.train()(make_ids(), use_cache=False).last_hidden_state, states[0]) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    rates = {"attention_dropout": 0.0} | ({} if family == "llama" else {"dropout": 0.0, "activation_dropout": 0.0})
    rates |= (
        dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0) if family == "encoder-bart" else {}
    )
    writer = with_exits(make_writer(family, **rates), make_exits("random exits")).train()
    inputs = make_inputs(writer)
    plain = gradients(writer(**inputs).logits, writer)
    writer.gradient_checkpointing_enable()
    again = gradients(writer(**inputs).logits, writer)
    assert plain.keys() == again.keys()
    assert all(distance(plain[name], again[name]) <= 1e-5 * (1 + float(plain[name].abs().max())) for name in plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_inference_under_autocast(family: str) -> None:
    model, exits = make_writer(family), make_exits("random exits")
    writer, inputs = with_exits(model, exits), make_inputs(model)
    with torch.no_grad():
        exact = writer(**inputs).logits
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = writer(**inputs).logits
    assert 0 < distance(rough.float(), exact) < 0.05 * float(exact.abs().max())


# --- a wrong decoder cannot hide ---


@contextlib.contextmanager
def broken(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(hashee.engine.decoder, name, wrong)
        yield


def test_mutants_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right_updates, right_visible = hashee.engine.decoder.find_updates, hashee.engine.decoder._visible
    right_keys = hashee.engine.decoder._new_keys

    def stale_keys(block: DecoderBlock, normed: Tensor, step: Any) -> Any:
        # Keys and values of positions that have exited, left as zeros.
        frozen = (step.batch.exits < block.block.layer).flatten()
        return right_keys(block, normed.masked_fill(frozen[:, None], 0.0), step)

    mutants = {
        "find_updates": lambda exits, layer: right_updates(exits, max(1, layer - 1)),
        "_visible": lambda batch, tokens, past: torch.ones_like(right_visible(batch, tokens, past)),
        "_new_keys": stale_keys,
    }
    for family in FAMILIES:
        model, exits = make_writer(family), make_exits("random exits")
        inputs = make_inputs(model)
        with decoder_exits_by_hooks(model, exits):
            theirs = model(**inputs).logits
        for name, wrong in mutants.items():
            with broken(name, wrong, monkeypatch):
                assert distance(with_exits(model, exits)(**inputs).logits, theirs) > 100 * TOLERANCE, (family, name)


def test_a_cache_is_made_only_where_it_is_wanted() -> None:
    writer = with_exits(make_writer("llama"), make_exits("random exits"))
    assert writer(make_ids(), use_cache=False).past_key_values is None
    assert isinstance(writer(make_ids(), use_cache=True).past_key_values, DynamicCache)
