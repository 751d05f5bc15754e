"""The depth-adaptive Transformer: exits by confidence in the decoder, with transformers' cache, counted by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from summary_data import make_summaries
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from architectures import LAYERS, VOCABULARY, make_ids, make_mask, make_writer, padded
from hashee.cost.generation import DecoderShape, decoder_costs
from hashee.cost.macs import Costs
from hashee.data.task_types import type_of
from hashee.families.adapters import DECODERS
from hashee.study.depth_adaptive import DepthAdaptiveModel, adaptive_costs
from hashee.study.objectives import ExitLosses
from hashee.training.objective import TargetLoss
from hashee.training.outputs import Batch, Need, outputs_of

FAMILIES = sorted(set(DECODERS) - {"llama"})
NOBODY = 1.01
TARGET = 7


def sources(model: Any) -> dict[str, Tensor]:
    mask = make_mask("mixed lengths")
    return {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask}


def decoder_of(model: Any) -> Any:
    found = DECODERS[model.config.model_type].decoder_in(model)
    assert found is not None
    return found[1]


@contextmanager
def states_copied_upward(dense: Any, threshold: float) -> Iterator[list[Tensor]]:
    """Let a dense model of transformers freeze positions where the head is sure, and list who goes on after each layer.

    Written without the engine: every layer updates all positions, and what a frozen one had is put back.
    """
    decoder = decoder_of(dense)
    norm = getattr(decoder, "layer_norm", None) or torch.nn.Identity()
    going: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> Any:
        before, after = inputs[0], output[0] if isinstance(output, tuple) else output
        kept = torch.where(going[-1][..., None], after, before) if going else after
        logits = dense.lm_head(norm(kept)) + dense.final_logits_bias
        sure = logits.softmax(-1).amax(-1) >= threshold
        going.append(~sure & going[-1] if going else ~sure)
        return (kept, *output[1:]) if isinstance(output, tuple) else kept

    handles = [layer.register_forward_hook(keep) for layer in decoder.layers]
    try:
        yield going
    finally:
        for handle in handles:
            handle.remove()


def some_leave(model: DepthAdaptiveModel, inputs: dict[str, Tensor], target: Tensor) -> float:
    """Return a threshold that about half of the positions reach after the first layer."""
    with torch.no_grad():
        logits = model(**inputs, decoder_input_ids=target).exits[0].logits
    values = logits.softmax(-1).amax(-1).flatten().sort().values
    # Between two positions, so that rounding decides nothing.
    return float(values[len(values) // 2 - 1 : len(values) // 2 + 1].mean())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_threshold_that_nobody_reaches_is_full_depth(family: str) -> None:
    dense = make_writer(family)
    model = DepthAdaptiveModel.of(dense).eval()
    inputs = sources(dense)
    for options in ({"num_beams": 1}, {"num_beams": 3}):
        theirs = dense.generate(**inputs, max_new_tokens=TARGET, do_sample=False, **options)
        with model.exiting_at(NOBODY):
            assert torch.equal(model.generate(**inputs, max_new_tokens=TARGET, do_sample=False, **options), theirs)
    exits = model.exit_layers(inputs, theirs.tolist(), NOBODY)
    assert all((each == LAYERS).all() for each in exits)
    assert model.model.hashed_decoder.decide is None, "nothing stays behind"


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_with_a_cache_are_the_whole_prefix_with_copied_states(family: str) -> None:
    dense = make_writer(family)
    model = DepthAdaptiveModel.of(dense).eval()
    inputs, target = sources(dense), make_ids(length=TARGET, seed=4)
    threshold = some_leave(model, inputs, target)
    with torch.no_grad():
        states = model.model(**inputs, decoder_input_ids=target).encoder_last_hidden_state
    encoded, cache = BaseModelOutput(last_hidden_state=states), None
    exits = torch.from_numpy(np.stack(model.exit_layers(inputs, [[*row, 0] for row in target.tolist()], threshold)))
    assert len(set(exits.flatten().tolist())) > 1, "some exit early and some do not"
    for step in range(TARGET):
        with torch.no_grad(), model.exiting_at(threshold):
            new = target[:, step : step + 1]
            mask = inputs["attention_mask"]
            ours = model.model(
                encoder_outputs=encoded,
                attention_mask=mask,
                decoder_input_ids=new,
                past_key_values=cache,
                use_cache=True,
            )
        cache = ours.past_key_values
        with torch.no_grad(), states_copied_upward(dense, threshold) as going:
            theirs = dense(**inputs, decoder_input_ids=target[:, : step + 1], use_cache=False).logits
        assert float((ours.logits[:, -1] - theirs[:, -1]).abs().max()) <= 1e-4
        layers = 1 + torch.stack(going[:-1]).sum(0)
        assert torch.equal(layers, exits[:, : step + 1])


def test_generated_texts_depend_on_the_threshold_and_exits_fall_with_it() -> None:
    dense = make_writer("bart")
    model = DepthAdaptiveModel.of(dense).eval()
    inputs, target = sources(dense), make_ids(length=TARGET, seed=4)
    threshold = some_leave(model, inputs, target)
    rows = [[*row, 0] for row in target.tolist()]
    means = [np.concatenate(model.exit_layers(inputs, rows, each)).mean() for each in (NOBODY, threshold, 0.0)]
    assert means[0] == LAYERS and LAYERS > means[1] > means[2] == 1


def test_what_a_token_costs_by_hand() -> None:
    model = DepthAdaptiveModel.of(make_writer("bart")).eval()
    shape = model.shape
    assert (shape.layers, shape.width, shape.vocabulary) == (LAYERS, 24, VOCABULARY)
    d, f, h, source = 24, shape.inner, shape.heads, 5
    nothing = Costs(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    for exit_layer in (1, 2, 3, 4):
        costs = adaptive_costs(model, nothing, [np.array([exit_layer])], np.array([source]), beams=1)
        # Each layer up to the exit: its own projections, those to the source, the source's, attention, norms, inner.
        update = 2 * d * d + 2 * (d + h) + 2 * d * d + 2 * source * d * d + 2 * source * (d + h) + 6 * d + 2 * d * f
        keys = 2 * d * d * LAYERS
        asked = min(exit_layer, LAYERS - 1)
        assert costs.decoder.executed[0] == exit_layer * update + keys + asked * d * VOCABULARY
        assert costs.head[0] == (d * VOCABULARY if exit_layer == LAYERS else 0)
        beams = adaptive_costs(model, nothing, [np.array([exit_layer])], np.array([source]), beams=4)
        assert beams.decoder.executed[0] == 4 * costs.decoder.executed[0]


def test_a_vocabulary_makes_deciding_dearer_than_layers() -> None:
    # BART-base: three layers saved do not pay for asking after each of the three that ran.
    bart = DecoderShape(layers=6, width=768, heads=12, inner=3072, vocabulary=50265)
    full, half = (decoder_costs(bart, [np.array([depth] * 60)], np.array([800])).executed[0] for depth in (6, 3))
    assert half + 3 * 60 * 768 * 50265 > full


def test_all_exits_learn_alike() -> None:
    model = DepthAdaptiveModel.of(make_writer("bart")).eval()
    inputs = sources(model) | {"decoder_input_ids": make_ids(length=3, seed=4)}
    words = torch.arange(15)
    targets = make_ids(length=3, seed=5).flatten()
    batch = Batch(tuple(range(5)), inputs, torch.full((5,), 3), targets, words=words)
    loss = TargetLoss(type_of(make_summaries().task))
    outputs = outputs_of(model, batch, Need.LABELS)
    assert [each.logits.shape for each in outputs.exits] == [(15, VOCABULARY)] * LAYERS
    with torch.no_grad():
        states = model.model(**inputs, output_hidden_states=True).decoder_hidden_states
        each = [loss(type(outputs)(model.score(state).flatten(0, 1)), batch) for state in states[1:]]
    torch.testing.assert_close(ExitLosses(loss)(outputs, batch), torch.stack(each).mean())


def test_folders_come_back_equal(tmp_path: Path) -> None:
    model = DepthAdaptiveModel.of(make_writer("bart")).eval()
    model.save_pretrained(tmp_path)
    loaded = DepthAdaptiveModel.from_folder(tmp_path)
    inputs = sources(model) | {"decoder_input_ids": make_ids(length=3, seed=4)}
    with torch.no_grad():
        for ours, theirs in zip(loaded(**inputs).exits, model(**inputs).exits, strict=True):
            assert torch.equal(ours.logits, theirs.logits)
