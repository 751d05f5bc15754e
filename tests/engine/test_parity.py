"""The packed engine equals the padded reference: every family, every kind of exits, every kind of mask."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification

import hashee.engine.block
import hashee.engine.encoder
import hashee.engine.fused
import hashee.engine.plan
from architectures import (
    FAMILIES,
    LAYERS,
    SEQ2SEQ,
    converted,
    encoder_of,
    make_config,
    make_exits,
    make_ids,
    make_mask,
    make_model,
    padded,
)
from hashee.engine.block import Block
from hashee.engine.reference import run_reference
from hashee.families.adapters import ADAPTERS
from which_kernels import FUSED, needs_kernels, recorded_forms, recorded_training

FORWARD_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 1e-4
EXITS = ("full depth", "random exits", "exits at 0")
MASKS = ("mixed lengths", "left", "holes")


def run_both(family: str, exits_kind: str, mask_kind: str, **changes: Any) -> tuple[Tensor, Tensor, Any]:
    """Return the real tokens' states from the engine and the reference, and the dense model behind both."""
    model = make_model(family, **changes)
    exits, mask = make_exits(exits_kind), make_mask(mask_kind)
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    with_exits = encoder_of(converted(model, exits))
    dense = encoder_of(model)
    with_exits.train(model.training)
    ours = with_exits(**inputs).last_hidden_state[mask.bool()]
    theirs = run_reference(dense, exits, **inputs).last_hidden_state[mask.bool()]
    return ours, theirs, dense


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max())


def gradients(states: Tensor, module: Any) -> dict[str, Tensor]:
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
    module.zero_grad()
    (states * weights).sum().backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def test_matrix_covers_every_family() -> None:
    assert sorted(ADAPTERS) == FAMILIES


@pytest.mark.parametrize("mask_kind", MASKS)
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize(
    ("family", "layers"),
    [
        *((family, "in torch") for family in FAMILIES),
        *(pytest.param(family, "in kernels", marks=[needs_kernels]) for family in sorted(FUSED)),
    ],
)
def test_engine_equals_reference(
    family: str, layers: str, exits_kind: str, mask_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = recorded_training(monkeypatch)
    if layers == "in torch":
        monkeypatch.setattr(hashee.engine.block, "layer_in_kernels", lambda *_: None)
    ours, theirs, dense = run_both(family, exits_kind, mask_kind)
    assert bool(ran) == (layers == "in kernels")
    assert distance(ours, theirs) <= FORWARD_TOLERANCE
    theirs_by_name = gradients(theirs, dense)
    ours_by_name = gradients(ours, dense)
    assert ours_by_name.keys() == theirs_by_name.keys()
    scale = max(float(gradient.abs().max()) for gradient in theirs_by_name.values())
    for name, gradient in theirs_by_name.items():
        # The key bias cancels in the softmax: its true gradient is zero and what is left is rounding.
        size = max(float(gradient.abs().max()), 1e-2 * scale)
        assert distance(ours_by_name[name], gradient) <= GRADIENT_TOLERANCE * size, name


def forms(family: str) -> list[Any]:
    """Return every form of attention that a family has in inference, and how its layers are called."""
    # The absorbed form supports neither a position bias nor rotary positions nor scores of distances.
    names = ("plain", "absorbed") if ADAPTERS[family].shape(make_config(family)).absorbable else ("plain",)
    calls = ("one by one", "in one call") if family in FUSED else ("one by one",)
    return [
        pytest.param(family, form, call, marks=[needs_kernels] if call == "in one call" else [])
        for form in names
        for call in calls
    ]


@pytest.mark.parametrize("mask_kind", MASKS)
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize(("family", "form", "call"), [case for family in FAMILIES for case in forms(family)])
def test_every_form_of_attention_equals_reference(
    family: str, exits_kind: str, mask_kind: str, form: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inference also packs weights and reuses keys and values; the form is forced, whatever it would cost.
    monkeypatch.setattr(hashee.engine.block, "absorbing_saves", lambda *numbers: 1 if form == "absorbed" else -1)
    if call == "one by one":
        monkeypatch.setattr(hashee.engine.encoder, "run_layers_", lambda *arguments: False)
    ran = recorded_forms(monkeypatch)
    with torch.inference_mode():
        ours, theirs, _ = run_both(family, exits_kind, mask_kind)
    assert distance(ours, theirs) <= FORWARD_TOLERANCE
    # Each case ran the form and the call that it names, and no other.
    assert ran == {(form, call)}


@pytest.mark.parametrize("mask_kind", MASKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_large_batches_run_in_parts(family: str, mask_kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    post_attention = hashee.engine.block._post_attention

    def counted(block: Block, dropout: Any, context: Tensor, active: Tensor) -> Tensor:
        parts.append(len(active))
        return post_attention(block, dropout, context, active)

    monkeypatch.setattr(hashee.engine.block, "_post_attention", counted)
    monkeypatch.setattr(hashee.engine.block, "SLICE", 7)
    monkeypatch.setattr(hashee.engine.fused, "MAX_ROWS", 1)
    monkeypatch.setattr(hashee.engine.plan, "MAX_SLOTS", 10)
    with torch.no_grad():
        ours, theirs, _ = run_both(family, "random exits", mask_kind)
    assert distance(ours, theirs) <= FORWARD_TOLERANCE
    assert len(parts) > LAYERS
    assert max(parts) <= 7


@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", [name for name in FAMILIES if ADAPTERS[name].heads_on_first_row])
def test_unread_rows_are_left_out_of_the_last_layer(family: str, exits_kind: str) -> None:
    model = make_model(family, AutoModelForSequenceClassification)
    exits, mask = make_exits(exits_kind), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    classifier = converted(model, exits)
    theirs = run_reference(model, exits, **inputs).logits
    assert distance(classifier(**inputs).logits, theirs) <= FORWARD_TOLERANCE
    with torch.inference_mode():
        assert distance(classifier(**inputs).logits, theirs) <= FORWARD_TOLERANCE
    # An unread row is never returned as if it were final, and with output_hidden_states all rows are computed.
    types = {"token_type_ids": torch.ones_like(mask)} if family == "cpt" else {}
    encoder = classifier.hashed_encoder
    assert encoder(**inputs, **types).last_hidden_state[:, 1:].isnan().all()
    everything = encoder(**inputs, **types, output_hidden_states=True).last_hidden_state
    encoder.reads_first_row = False
    assert torch.equal(encoder(**inputs, **types).last_hidden_state, everything)
    assert distance(classifier(**inputs).logits, theirs) <= FORWARD_TOLERANCE


def test_packed_weights_follow_the_weights() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    ids = make_ids()
    with torch.inference_mode():
        before = model(ids).last_hidden_state
    with torch.no_grad():
        for parameter in model.encoder.layer.parameters():
            parameter.mul_(0.5)
        expected = run_reference(model_of(model), model.exit_table.exit_layers, input_ids=ids).last_hidden_state
        after = model(ids).last_hidden_state
    assert distance(after, expected) <= FORWARD_TOLERANCE < distance(after, before)


def model_of(hashed: Any) -> Any:
    """Return a dense model with a converted one's weights."""
    dense = make_model("bert")
    dense.load_state_dict({name: value for name, value in hashed.state_dict().items() if name != "exit_layers"})
    return dense


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_are_those_of_the_reference(family: str) -> None:
    model = make_model(family)
    exits, mask = make_exits("exits at 0"), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask, "output_hidden_states": True}
    ours = encoder_of(converted(model, exits))(**inputs).hidden_states
    theirs = run_reference(encoder_of(model), exits, **inputs).hidden_states
    assert len(ours) == len(theirs)
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert distance(mine[mask.bool()], other[mask.bool()]) <= FORWARD_TOLERANCE, number


@pytest.mark.parametrize("family", FAMILIES)
def test_first_layers_alone_equal_freezing_all_tokens_there(family: str) -> None:
    # Depth truncation: a model cut to 2 layers is the full model in which everything is frozen after layer 2.
    model = make_model(family)
    depth = 2
    exits, mask = make_exits("exits at 0", layers=depth), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    shallow = encoder_of(converted(model, exits, layers=depth))
    assert len(set(shallow.adapter.layers(shallow))) <= len(set(shallow.adapter.layers(encoder_of(model))))
    ours = shallow(**inputs).last_hidden_state[mask.bool()]
    theirs = run_reference(encoder_of(model), exits, **inputs).last_hidden_state[mask.bool()]
    assert distance(ours, theirs) <= FORWARD_TOLERANCE


@pytest.mark.parametrize(
    ("family", "field"),
    [
        (family, field)
        for family in FAMILIES
        for field in ("token_type_ids", "position_ids", "inputs_embeds")
        if family not in SEQ2SEQ and (ADAPTERS[family].token_types or field != "token_type_ids")
    ],
)
def test_other_inputs_are_honoured(family: str, field: str) -> None:
    model = make_model(family, **({"type_vocab_size": 2} if ADAPTERS[family].token_types else {}))
    exits, mask, ids = make_exits("random exits"), make_mask("mixed lengths"), make_ids()
    extra = {
        "token_type_ids": (ids % 2).long(),
        "position_ids": torch.randint(2, 30, ids.shape),
        "inputs_embeds": torch.randn(*ids.shape, model.get_input_embeddings().embedding_dim),
    }[field]
    encoder = encoder_of(converted(model, exits))
    ours = encoder(input_ids=ids, attention_mask=mask, **{field: extra}).last_hidden_state
    without = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    assert distance(ours, without) > 1e-2, "the input must make a difference for this test to say anything"
    if field == "inputs_embeds":
        # Hugging Face takes ids or embeddings; the same embeddings by way of its own look-up table.
        table = torch.nn.Embedding.from_pretrained(extra.flatten(0, 1))
        fresh = copy.deepcopy(model)
        fresh.set_input_embeddings(table)
        indices = torch.arange(ids.numel()).view_as(ids)
        positions = ADAPTERS[family].positions(encoder_of(model), ids)
        theirs = run_reference(
            fresh, exits[ids.flatten()], input_ids=indices, attention_mask=mask, position_ids=positions
        )
    else:
        theirs = run_reference(model, exits, input_ids=ids, attention_mask=mask, **{field: extra})
    assert distance(ours[mask.bool()], theirs.last_hidden_state[mask.bool()]) <= FORWARD_TOLERANCE


DROPOUTS = {
    "distilbert": ("dropout", "attention_dropout"),
    "bart": ("dropout", "attention_dropout", "activation_dropout"),
    "marian": ("dropout", "attention_dropout", "activation_dropout"),
    "mbart": ("dropout", "attention_dropout", "activation_dropout"),
    "t5": ("dropout_rate",),
    "cpt": ("activation_dropout", "attention_dropout"),
    "eurobert": ("attention_dropout",),
    "modernbert": ("attention_dropout", "embedding_dropout", "mlp_dropout"),
}


@pytest.mark.parametrize(
    ("family", "field"),
    [
        (family, field)
        for family in FAMILIES
        for field in DROPOUTS.get(family, ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    ],
)
def test_dropout_is_where_hugging_face_has_it(family: str, field: str) -> None:
    # Dropping everything is the one kind of dropout that is not random.
    fields = DROPOUTS.get(family, ("hidden_dropout_prob", "attention_probs_dropout_prob"))
    model = make_model(family, **{name: 1.0 if name == field else 0.0 for name in fields}).train()
    exits, mask = make_exits("random exits"), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    ours = encoder_of(converted(model, exits))(**inputs).last_hidden_state[mask.bool()]
    theirs = run_reference(encoder_of(model), exits, **inputs).last_hidden_state[mask.bool()]
    assert distance(ours, theirs) <= FORWARD_TOLERANCE
    without = encoder_of(converted(model.eval(), exits))(**inputs).last_hidden_state[mask.bool()]
    assert distance(ours, without) > 1e-2


def test_dropout_is_random_in_training_only() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    ids = make_ids()
    assert distance(model(ids).last_hidden_state, model(ids).last_hidden_state) == 0
    model.train()
    assert distance(model(ids).last_hidden_state, model(ids).last_hidden_state) > 1e-2


def test_layer_drop_skips_layers_in_training_only() -> None:
    model = converted(make_model("bart", encoder_layerdrop=1.0, dropout=0.0), make_exits("full depth"))
    encoder, ids = encoder_of(model), make_ids()
    embedded = encoder(ids, output_hidden_states=True).hidden_states[0]
    assert distance(encoder(ids).last_hidden_state, embedded) > 1e-2
    assert distance(encoder.train()(ids).last_hidden_state, embedded) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_autocast_trains(family: str) -> None:
    model = make_model(family)
    exits, mask = make_exits("random exits"), make_mask("mixed lengths")
    inputs = {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}
    encoder = encoder_of(converted(model, exits))
    exact = encoder(**inputs).last_hidden_state[mask.bool()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = encoder(**inputs).last_hidden_state[mask.bool()]
    assert 0 < distance(rough.float(), exact) < 0.3
    expected, got = gradients(exact, encoder), gradients(rough.float(), encoder)
    flat = [torch.cat([by_name[name].flatten() for name in sorted(expected)]) for by_name in (expected, got)]
    assert torch.nn.functional.cosine_similarity(*flat, dim=0) > 0.98


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("albert", "mpnet")])
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    dropouts = dict.fromkeys(DROPOUTS.get(family, ("hidden_dropout_prob", "attention_probs_dropout_prob")), 0.0)
    model = converted(make_model(family, **dropouts), make_exits("random exits")).train()
    encoder, ids = encoder_of(model), make_ids()
    plain = gradients(encoder(ids).last_hidden_state, encoder)
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    again = gradients(encoder(ids).last_hidden_state, encoder)
    assert plain.keys() == again.keys()
    assert all(distance(plain[name], again[name]) <= 1e-6 * (1 + float(plain[name].abs().max())) for name in plain)


def swap_norms(block: Block) -> Block:
    return dataclasses.replace(block, attention_norm=block.feed_forward_norm, feed_forward_norm=block.attention_norm)


def flip_norm_position(block: Block) -> Block:
    return dataclasses.replace(block, pre_norm=not block.pre_norm)


def shift_exit(block: Block) -> Block:
    return dataclasses.replace(block, layer=max(1, block.layer - 1))


@pytest.mark.parametrize("mutate", [swap_norms, flip_norm_position, shift_exit])
@pytest.mark.parametrize("family", FAMILIES)
def test_mutated_layers_are_caught(family: str, mutate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ADAPTERS["bert" if family in ("cpt", "encoder-bart") else family]
    right = adapter.blocks
    monkeypatch.setattr(adapter, "blocks", lambda encoder: (mutate(block) for block in right(encoder)), raising=False)
    ours, theirs, _ = run_both(family, "random exits", "mixed lengths")
    assert distance(ours, theirs) > 100 * FORWARD_TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_dropped_mask_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashee.engine.attention

    monkeypatch.setattr(hashee.engine.attention, "_mask", lambda group, bias: None)
    monkeypatch.setattr(hashee.engine.block, "layer_in_kernels", lambda *_: None)
    ours, theirs, _ = run_both(family, "random exits", "mixed lengths")
    assert distance(ours, theirs) > 100 * FORWARD_TOLERANCE


# T5 has no absolute positions.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "t5"])
def test_wrong_position_offset_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = ADAPTERS["bert" if family in ("cpt", "encoder-bart") else family]
    right = adapter.positions
    monkeypatch.setattr(
        adapter, "positions", lambda encoder, ids: (right(encoder, ids) - 1).clamp(min=0), raising=False
    )
    ours, theirs, _ = run_both(family, "random exits", "mixed lengths")
    assert distance(ours, theirs) > 100 * FORWARD_TOLERANCE


@pytest.mark.parametrize("family", ["mpnet", "t5"])
def test_missing_position_bias_is_caught(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ADAPTERS[family], "position_bias", lambda encoder, columns: None, raising=False)
    ours, theirs, _ = run_both(family, "random exits", "mixed lengths")
    assert distance(ours, theirs) > 100 * FORWARD_TOLERANCE


def test_albert_keeps_the_groups_of_its_trained_depth() -> None:
    # With 4 layers in 2 groups the first two layers are group 0; a config of 2 layers alone would use both groups.
    model = make_model("albert")
    exits = make_exits("full depth", layers=2)
    ids = make_ids()
    ours = converted(model, exits, layers=2)(ids).last_hidden_state
    naive = AutoModel.from_config(make_config("albert", num_hidden_layers=2)).eval()
    naive.load_state_dict(model.state_dict())
    assert distance(ours, naive(ids).last_hidden_state) > 1e-2
    assert distance(ours, run_reference(model, exits, input_ids=ids).last_hidden_state) <= FORWARD_TOLERANCE


def test_reference_updates_every_token_at_full_depth() -> None:
    model, ids = make_model("bert"), make_ids()
    theirs = run_reference(model, make_exits("full depth"), input_ids=ids).last_hidden_state
    assert distance(theirs, model(ids).last_hidden_state) == 0
    assert model.config.num_hidden_layers == LAYERS
