"""BERT-of-Theseus: layers are replaced with a probability that rises, until the successor runs alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from static_models import make_batch, make_teacher, run_on_tiny_data
from transformers import AutoModelForTokenClassification, TrainerState

from architectures import make_model
from hashee.data.task import Kind
from hashee.export.loading import load
from hashee.families.layers import blocks_by_layer, encoder_of
from hashee.hf.convert import convert
from hashee.study.replacing import Curriculum, ReplacedLayers, Replacement
from hashee.study.students import student_of
from hashee.tables.table import ExitTable
from hashee.training.backbone import Backbone


def make_replaced(teacher: Backbone, depth: int = 2) -> ReplacedLayers:
    """Return a predecessor with a successor whose weights are its own, ready to train."""
    successor = student_of(teacher, range(1, depth + 1), seed=0)
    with torch.no_grad():
        for weight in successor.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    # Embeddings and head are the predecessor's while layers are replaced.
    kept = {id(weight) for layer in blocks_by_layer(successor) for module, _ in layer for weight in module.parameters()}
    whole = teacher.load()
    with torch.no_grad():
        for name, weight in successor.named_parameters():
            if id(weight) not in kept:
                weight.copy_(whole.get_parameter(name))
    return ReplacedLayers(teacher.packed(whole), teacher.packed(successor)).train()


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("bert", {}),
    ("roberta", {}),
    ("roberta-prelayernorm", {}),
    ("mpnet", {}),
    ("albert", {"num_hidden_groups": 1, "inner_group_num": 2, "classifier_dropout_prob": 0.0}),
]


@pytest.mark.parametrize(("family", "changes"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_it_is_the_successor_at_1_and_the_predecessor_at_0(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = make_replaced(make_teacher(tmp_path, family, **changes))
    inputs = make_batch(model.successor.config).inputs
    successor, predecessor = model.successor(**inputs).logits, model.predecessor(**inputs).logits
    assert not torch.allclose(successor, predecessor, atol=1e-2)
    model.set_probability_(1.0)
    torch.testing.assert_close(model(**inputs).logits, successor, rtol=1e-4, atol=1e-4)
    model.set_probability_(0.0)
    torch.testing.assert_close(model(**inputs).logits, predecessor, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model.eval()(**inputs).logits, successor, rtol=1e-4, atol=1e-4)


def test_some_layers_of_each(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    model = make_replaced(teacher)
    assert model.groups == [range(2), range(2, 4)]
    by_hand = teacher.load(depth=3)
    layers = [encoder_of(part).encoder.layer for part in (model.successor, model.predecessor)]
    for number, module in enumerate((layers[0][0], layers[1][2], layers[1][3])):
        encoder_of(by_hand).encoder.layer[number].load_state_dict(module.state_dict())
    inputs = make_batch(teacher.config).inputs
    expected = by_hand(**inputs).logits
    torch.testing.assert_close(model.mixed([True, False], inputs), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(model.mixed([False, True], inputs), expected, atol=1e-2)


def test_three_layers_are_two_groups(tmp_path: Path) -> None:
    assert make_replaced(make_teacher(tmp_path, layers=3)).groups == [range(2), range(2, 3)]


def test_heads_that_read_every_token() -> None:
    changes = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
    dense = [make_model("bert", AutoModelForTokenClassification, num_hidden_layers=n, **changes) for n in (4, 2)]
    predecessor, successor = (convert(model, ExitTable.never(97, model.config.num_hidden_layers)) for model in dense)
    inputs = make_batch(successor.config).inputs
    model = ReplacedLayers(predecessor, successor).train()
    found, expected = model(**inputs).logits, successor(**inputs).logits
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-4)


def test_each_group_is_replaced_with_the_probability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_replaced(make_teacher(tmp_path))
    drawn: list[Any] = []
    monkeypatch.setattr(model, "mixed", lambda replaced, inputs: (drawn.append(replaced), torch.zeros(1))[1])
    model.set_probability_(0.3)
    torch.manual_seed(0)
    for _ in range(1000):
        model()
    rates = torch.tensor(drawn, dtype=torch.float)
    assert (rates.mean(dim=0) - 0.3).abs().max() < 0.05
    assert abs(float(rates.prod(dim=1).mean()) - 0.09) < 0.03, "independently of each other"


def test_what_learns_before_and_after(tmp_path: Path) -> None:
    model = make_replaced(make_teacher(tmp_path))
    inputs = make_batch(model.successor.config).inputs
    own = {id(weight) for weight in model._layer_weights()}

    def learns(replaced: list[bool]) -> tuple[bool, bool, bool]:
        model.zero_grad()
        model.mixed(replaced, inputs).square().sum().backward()
        changed = {id(weight) for weight in model.parameters() if weight.grad is not None and weight.grad.any()}
        others = {id(weight) for weight in model.successor.parameters()} - own
        theirs = {id(weight) for weight in model.predecessor.parameters()}
        return bool(changed & own), bool(changed & others), bool(changed & theirs)

    model.set_probability_(0.5)
    assert learns([True, False]) == (True, False, False)
    model.set_probability_(1.0)
    assert learns([True, True]) == (True, True, False)


def test_a_step_in_which_nothing_is_replaced_changes_nothing(tmp_path: Path) -> None:
    model = make_replaced(make_teacher(tmp_path))
    model.set_probability_(0.0)
    model(**make_batch(model.successor.config).inputs).logits.sum().backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())


def test_the_curriculum_rises_to_1_at_60_percent() -> None:
    curriculum = Curriculum()
    found = [curriculum.at(step, 100) for step in range(101)]
    assert found[0] == pytest.approx(0.3) and found[30] == pytest.approx(0.65)
    assert found[59] < 1.0 and found[60:] == [1.0] * 41
    assert found == sorted(found)


def test_a_resumed_run_has_the_same_probability(tmp_path: Path) -> None:
    teacher = make_teacher(tmp_path)
    through, resumed = make_replaced(teacher), make_replaced(teacher)
    state = TrainerState(max_steps=50)
    callback = Replacement(through, Curriculum())
    for step in range(18):
        state.global_step = step
        callback.on_step_begin(None, state, None)
    state.save_to_json(str(tmp_path / "state.json"))
    stored = TrainerState.load_from_json(str(tmp_path / "state.json"))
    Replacement(resumed, Curriculum()).on_step_begin(None, stored, None)
    assert resumed.probability == through.probability == pytest.approx(0.3 + 0.7 * 17 / 30)


def test_a_successor_end_to_end(backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities: list[float] = []
    to = ReplacedLayers.set_probability_
    monkeypatch.setattr(
        ReplacedLayers, "set_probability_", lambda model, value: (probabilities.append(value), to(model, value))[1]
    )
    result = run_on_tiny_data("theseus", backbone, tmp_path, monkeypatch, Kind.TAGS)
    assert [(point.knob, round(point.paper_speedup, 6)) for point in result.curve] == [(2.0, 2.0)]
    assert result.passes == 8.0 and result.quality["test"] is not None and result.quality["test"] > 0.8
    assert probabilities == [Curriculum().at(step, 48) for step in range(48)]
    successor = load(next(tmp_path.glob("work/*/work/theseus-2")))
    assert successor.config.num_hidden_layers == 2 and not any("predecessor" in name for name in successor.state_dict())


def test_an_interrupted_run_ends_as_if_nothing_had_happened(
    backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through = run_on_tiny_data("theseus", backbone, tmp_path / "through", monkeypatch)
    assert through.quality["test"] is not None and through.quality["test"] > 0.8
    begin = Replacement.on_step_begin

    def interrupted(callback: Replacement, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 17:
            raise RuntimeError("interrupted")
        begin(callback, args, state, control, **kwargs)

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="interrupted"):
        patched.setattr(Replacement, "on_step_begin", interrupted)
        run_on_tiny_data("theseus", backbone, tmp_path / "resumed", monkeypatch)
    assert next((tmp_path / "resumed").glob("work/*/work/theseus-2/checkpoints/checkpoint-12")).is_dir()
    resumed = run_on_tiny_data("theseus", backbone, tmp_path / "resumed", monkeypatch)
    assert resumed.curve == through.curve
    mine, theirs = (
        load(next((tmp_path / name).glob("work/*/work/theseus-2"))).state_dict() for name in ("resumed", "through")
    )
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
