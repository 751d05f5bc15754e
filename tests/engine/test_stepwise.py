"""Encoders run layer by layer: states do not depend on which sequences leave the batch, and those cost nothing."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoTokenizer

import hashee
import hashee.engine.block
import hashee.engine.encoder
from architectures import (
    FAMILIES,
    LAYERS,
    converted,
    encoder_of,
    make_exits,
    make_ids,
    make_mask,
    make_model,
    padded,
)
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.engine import native
from hashee.engine.encoder import EncoderState
from hashee.engine.plan import Plan, make_plan
from hashee.engine.reference import run_reference

TOLERANCE = 1e-5
THRESHOLD = 0.3
EXITS = ("full depth", "random exits", "exits at 0")
FORMS = ("plain", "absorbed", "without kernels", "with gradients")


def make_inputs(family: str, mask_kind: str, seed: int = 0) -> tuple[Any, dict[str, Tensor]]:
    """Return a dense model and a batch for it."""
    model = make_model(family)
    mask = torch.ones(5, 12, dtype=torch.long) if mask_kind == "full" else make_mask(mask_kind)
    return model, {"input_ids": padded(make_ids(seed=seed), mask, model.config), "attention_mask": mask}


def layer_states(encoder: Any, hidden_states: tuple[Tensor, ...]) -> list[Tensor]:
    """Return the states before and after each exit layer, which may be several blocks."""
    return list(hidden_states[:: getattr(encoder.config, "inner_group_num", 1)])


def set_form(form: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Force a form of attention, and return what makes inference or training of the lines below."""
    if form in ("plain", "absorbed"):
        monkeypatch.setattr(hashee.engine.block, "absorbing_saves", lambda *numbers: 1 if form == "absorbed" else -1)
    if form == "without kernels":
        monkeypatch.setattr(native, "library", lambda: None)
    return torch.enable_grad() if form == "with gradients" else torch.inference_mode()


def distance(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).detach().abs().max()) if ours.numel() else 0.0


@pytest.mark.parametrize("mask_kind", ["left", "holes"])
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_stepping_equals_the_reference_after_every_layer(family: str, exits_kind: str, mask_kind: str) -> None:
    model, inputs = make_inputs(family, mask_kind)
    exits, real = make_exits(exits_kind), inputs["attention_mask"].bool()
    encoder = encoder_of(converted(model, exits))
    for context in (torch.inference_mode(), torch.enable_grad()):
        with context:
            expected = layer_states(encoder, encoder(**inputs, output_hidden_states=True).hidden_states)
            whole = encoder(**inputs).last_hidden_state
            truth = run_reference(encoder_of(model), exits, **inputs).last_hidden_state
            state = encoder.start(**inputs)
            assert state.layer == 0
            found = [state.unpacked()]
            while not state.done:
                state = state.advance()
                assert state.layer == len(found)
                found.append(state.unpacked())
            finished = encoder.start(**inputs).advance().finish()
        assert len(found) == len(expected) == LAYERS + 1
        assert state.sequences.tolist() == list(range(5))
        for ours, theirs in zip(found, expected, strict=True):
            assert distance(ours, theirs) <= TOLERANCE
        for last in (found[-1], finished.unpacked()):
            assert distance(last[real], truth[real]) <= TOLERANCE
            assert distance(last, whole) <= TOLERANCE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exits_kind", EXITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_states_do_not_depend_on_which_sequences_left(
    family: str, exits_kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make_inputs(family, "holes")  # of mixed lengths too
    encoder = encoder_of(converted(model, make_exits(exits_kind)))
    generator = torch.Generator().manual_seed(FAMILIES.index(family))
    with set_form(form, monkeypatch):
        alone = []
        for row in range(5):
            output = encoder(
                **{name: tensor[row : row + 1] for name, tensor in inputs.items()}, output_hidden_states=True
            )
            alone.append([states[0] for states in layer_states(encoder, output.hidden_states)])
        for _ in range(3):
            # The layer after which each row leaves: some before the first.
            last = torch.randint(0, LAYERS + 1, (5,), generator=generator)
            state = encoder.start(**inputs)
            while True:
                remaining = state.sequences
                assert remaining.tolist() == (last >= state.layer).nonzero().squeeze(1).tolist()
                for row, states in enumerate(state.unpacked()):
                    expected = alone[row][state.layer] if row in remaining else torch.zeros_like(states)
                    assert distance(states, expected) <= TOLERANCE, (row, state.layer)
                firsts = inputs["attention_mask"].argmax(1)
                expected_first = [alone[row][state.layer][firsts[row]] for row in remaining.tolist()]
                assert distance(state.first(), torch.stack(expected_first)) <= TOLERANCE
                state = state.select(last[remaining] > state.layer)
                if state.done:
                    break
                state = state.advance()


@pytest.mark.parametrize("family", FAMILIES)
def test_several_exits_train_as_they_would_alone(family: str) -> None:
    model, inputs = make_inputs(family, "mixed lengths")
    exits, last = make_exits("exits at 0"), torch.tensor([4, 1, 3, 0, 2])
    dense, encoder = encoder_of(model), encoder_of(converted(model, exits))
    weights = torch.randn(LAYERS + 1, 24, generator=torch.Generator().manual_seed(1))

    def gradients(loss: Tensor) -> dict[str, Tensor]:
        model.zero_grad()
        loss.backward()
        return {name: weight.grad.clone() for name, weight in dense.named_parameters() if weight.grad is not None}

    state, loss = encoder.start(**inputs), torch.zeros(())
    while True:
        # Every remaining sequence contributes to the loss at every layer, as with several exits.
        loss = loss + (state.first() * weights[state.layer]).sum()
        state = state.select(last[state.sequences] > state.layer)
        if state.done:
            break
        state = state.advance()
    ours = gradients(loss)
    states = layer_states(encoder, run_reference(dense, exits, **inputs, output_hidden_states=True).hidden_states)
    loss = torch.stack(
        [(states[n][row, 0] * weights[n]).sum() for row in range(5) for n in range(int(last[row]) + 1)]
    ).sum()
    theirs = gradients(loss)
    assert ours.keys() <= theirs.keys()
    scale = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        mine = ours.get(name, torch.zeros_like(gradient))
        assert distance(mine, gradient) <= 1e-4 * max(float(gradient.abs().max()), 1e-2 * scale), name


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_that_left_cost_nothing(family: str) -> None:
    model, inputs = make_inputs(family, "mixed lengths")
    encoder = encoder_of(converted(model, make_exits("random exits")))
    keep = torch.tensor([False, True, False, True, True])
    remaining = encoder.start(**{name: tensor[keep] for name, tensor in inputs.items()}).advance()
    state = encoder.start(**inputs).advance()

    def flops_of_the_next_layer(state: EncoderState) -> int:
        with FlopCounterMode(display=False) as counter:
            state.advance()
        return counter.get_total_flops()

    all_of_them = flops_of_the_next_layer(state)
    state = state.select(keep)
    assert state.plan.tokens == int(inputs["attention_mask"][keep].sum())
    while not state.done:
        assert flops_of_the_next_layer(state) == flops_of_the_next_layer(remaining) < all_of_them
        state, remaining = state.advance(), remaining.advance()
    assert state.layer == LAYERS


@torch.inference_mode()
def test_all_may_leave() -> None:
    model, inputs = make_inputs("bert", "mixed lengths")
    encoder = encoder_of(converted(model, make_exits("random exits")))
    state = encoder.start(**inputs).advance()
    empty = state.select(torch.zeros(5, dtype=torch.bool))
    assert empty.done and not state.done
    assert empty.sequences.tolist() == [] and empty.first().shape == (0, 24)
    assert empty.unpacked().shape == (5, 12, 24) and not empty.unpacked().any()
    assert empty.select(torch.zeros(0, dtype=torch.bool)).done
    with pytest.raises(hashee.InputError, match="nothing is left to run after layer 1 with 0 sequences"):
        empty.advance()
    with pytest.raises(hashee.InputError, match="after layer 4 with 5 sequences"):
        state.finish().advance()


@pytest.mark.parametrize(
    "keep", [torch.ones(4, dtype=torch.bool), torch.ones(5), torch.tensor([0, 1]), torch.ones(5, 1, dtype=torch.bool)]
)
def test_keep_needs_one_boolean_per_sequence(keep: Tensor) -> None:
    model, inputs = make_inputs("bert", "mixed lengths")
    state = encoder_of(converted(model, make_exits("random exits"))).start(**inputs)
    with pytest.raises(hashee.InputError, match=r"keep must be \(5,\) booleans, not "):
        state.select(keep)
    with pytest.raises(hashee.InputError, match=r"keep must be \(5,\) booleans, not "):
        state.plan.select(keep)


def test_earlier_states_stay_as_they_were() -> None:
    model, inputs = make_inputs("bert", "mixed lengths")
    encoder = encoder_of(converted(model, make_exits("exits at 0")))
    with torch.inference_mode():
        states = [encoder.start(**inputs)]
        before = [states[0].hidden.clone()]
        while not states[-1].done:
            states.append(states[-1].advance())
            before.append(states[-1].hidden.clone())
        for state in states:
            state.finish()
    assert all(torch.equal(state.hidden, hidden) for state, hidden in zip(states, before, strict=True))


def test_rows_of_padding_are_never_in_the_batch() -> None:
    model, inputs = make_inputs("bert", "mixed lengths")
    encoder = encoder_of(converted(model, make_exits("random exits")))
    inputs["attention_mask"][2] = 0
    state = encoder.start(**inputs).advance()
    assert state.sequences.tolist() == [0, 1, 3, 4]
    state = state.select(torch.tensor([False, True, True, False])).advance()
    assert state.sequences.tolist() == [1, 3]
    assert (
        distance(state.first(), encoder(**inputs, output_hidden_states=True).hidden_states[2][[1, 3], 0]) <= TOLERANCE
    )


@pytest.mark.parametrize("family", ["albert", "bert", "mpnet"])
def test_only_first_rows_may_be_read(family: str) -> None:
    model, inputs = make_inputs(family, "mixed lengths")
    encoder = encoder_of(converted(model, make_exits("random exits")))
    with torch.inference_mode():
        state, expected = encoder.start(**inputs, reads="first"), encoder.start(**inputs)
        while not state.done:
            state, expected = state.advance(), expected.advance()
            assert distance(state.first(), expected.first()) <= TOLERANCE
        assert state.unpacked()[:, 1:].isnan().all() and not state.unpacked()[:, 0].isnan().any()
    with pytest.raises(hashee.InputError, match="padding in row 1"):
        encoder.start(**make_inputs(family, "left")[1], reads="first")


@pytest.mark.parametrize("table", ["exit_layers", "train_exit_layers"])
def test_the_table_in_use_decides(table: str) -> None:
    model, inputs = make_inputs("bert", "mixed lengths")
    tables = [hashee.ExitTable.from_tensor(make_exits("exits at 0", seed=seed), num_layers=LAYERS) for seed in (1, 2)]
    encoder = encoder_of(hashee.convert(model, tables[0], train_table=tables[1]))
    encoder.train(table == "train_exit_layers")
    plan = encoder.start(**inputs).plan
    assert plan.active[1] == int(
        (getattr(encoder, table)[inputs["input_ids"]] >= 1)[inputs["attention_mask"] == 1].sum()
    )


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, LAYERS), st.booleans()), min_size=7, max_size=7),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_selected_plan_is_that_of_the_remaining_sequences(rows: list[Any]) -> None:
    exits = torch.tensor([[exit_layer for exit_layer, _ in tokens] for tokens, _, _ in rows])
    mask = torch.tensor([[real for _, real in tokens] for tokens, _, _ in rows])
    first, second = (torch.tensor([row[number] for row in rows]) for number in (1, 2))
    plan = make_plan(exits, mask, LAYERS)
    for selected, keep in (
        (plan.select(first), first),
        (plan.select(first).plan.select(second), first & second),
    ):
        expected = make_plan(exits, mask & keep[:, None], LAYERS)
        for field in dataclasses.fields(Plan):
            ours, theirs = getattr(selected.plan, field.name), getattr(expected, field.name)
            assert torch.equal(ours, theirs) if isinstance(ours, Tensor) else ours == theirs, field.name
    selected = plan.select(first)
    assert torch.equal(plan.rows[selected.rows], selected.plan.rows)
    assert torch.equal(plan.batch_rows[selected.sequences], selected.plan.batch_rows)


def exit_by_entropy(model: Any, classifiers: torch.nn.ModuleList, texts: list[str], threshold: float) -> Any:
    """Classify as DeeBERT does: a text leaves at the first layer whose classifier is sure.

    Returns logits (texts, labels), the layer at which each text left, (texts,), and the tokens that each layer saw.
    """
    inputs = model.tokenizer(texts, padding=True, return_tensors="pt")
    logits, layers = torch.empty(len(texts), 2), torch.zeros(len(texts), dtype=torch.long)
    tokens = []
    state = model.hashed_encoder.start(**inputs)
    while not state.done:
        tokens.append(state.plan.tokens)
        state = state.advance()
        scores = classifiers[state.layer - 1](state.first())
        logits[state.sequences], layers[state.sequences] = scores, state.layer
        state = state.select(torch.distributions.Categorical(logits=scores).entropy() > threshold)
    return logits, layers, tokens


@pytest.mark.parametrize("exits", ["never", "frequency"])
def test_texts_leave_minilm_where_a_classifier_is_sure(exits: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    sentences = [text for text, _ in rotten_tomatoes()][:400]
    make_table = hashee.ExitTable.never if exits == "never" else hashee.ExitTable.by_frequency
    arguments = (tokenizer,) if exits == "never" else (tokenizer, sentences)
    table = make_table(*arguments, num_layers=6)
    model = hashee.convert(AutoModel.from_pretrained(minilm_folder()), table, tokenizer=tokenizer)
    torch.manual_seed(0)
    classifiers = torch.nn.ModuleList(torch.nn.Linear(384, 2) for _ in range(6))
    texts = sentences[:32]
    with torch.inference_mode():
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        for classifier, state in zip(
            classifiers, model(**batch, output_hidden_states=True).hidden_states[1:], strict=True
        ):
            # First tokens have much in common; what they differ in decides.
            spread, mean = torch.std_mean(classifier(state[:, 0]), dim=0)
            classifier.weight.mul_(2 / spread[:, None])
            classifier.bias.sub_(mean).mul_(2 / spread)
        logits, layers, tokens = exit_by_entropy(model, classifiers, texts, threshold=THRESHOLD)
        assert len(layers.unique()) >= 3 and tokens[-1] < tokens[0]
        for text, scores, layer in zip(texts, logits, layers.tolist(), strict=True):
            inputs = tokenizer(text, return_tensors="pt")
            states = model(**inputs, output_hidden_states=True).hidden_states
            every = [classifier(state[0, 0]) for classifier, state in zip(classifiers, states[1:], strict=True)]
            sure = [float(torch.distributions.Categorical(logits=one).entropy()) <= THRESHOLD for one in every]
            assert layer == (sure.index(True) + 1 if any(sure) else 6)
            assert torch.allclose(scores, every[layer - 1], atol=1e-3)
