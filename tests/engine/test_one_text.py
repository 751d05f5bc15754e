"""A text on its own runs in one call of the kernels, with the packed engine's outputs, also when the model changes."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from architectures import FAMILIES, converted, encoder_of, make_exits, make_ids, make_model
from hashee.engine import one_text
from hashee.engine.reference import run_reference
from hashee.errors import HasheeError
from hashee.families.adapters import ADAPTERS
from hashee.hf.quantize import quantize
from which_kernels import needs_kernels, relative_error, states_of, wide_model, without_one_text

pytestmark = needs_kernels
ABLE = [family for family in FAMILIES if one_text._is_able(type(ADAPTERS[family]))]
OWN = {"electra": {"embedding_size": 24}}
"""No projection between embeddings and layers."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that gets an entry for every text that the kernels are asked for: whether they took it."""
    seen: list[bool] = []
    run = one_text.run_text

    def recorded(*arguments: Any) -> bool:
        seen.append(run(*arguments))
        return seen[-1]

    monkeypatch.setattr(one_text, "run_text", recorded)
    return seen


def packed(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Tensor]) -> Tensor:
    """Return what the packed engine gives."""
    with monkeypatch.context() as patch:
        without_one_text(patch)
        return run()


@pytest.mark.parametrize("family", ABLE)
@pytest.mark.parametrize("exits", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize(("length", "real"), [(1, 1), (13, 13), (13, 9)])
def test_it_equals_the_reference(calls: list[bool], family: str, exits: str, length: int, real: int) -> None:
    dense, layers, ids = make_model(family, **OWN.get(family, {})), make_exits(exits), make_ids(1, length)
    mask = (torch.arange(length) < real).long()[None]
    found = states_of(converted(dense, layers), input_ids=ids, attention_mask=mask)
    with torch.inference_mode():
        expected = run_reference(dense, layers, input_ids=ids, attention_mask=mask).last_hidden_state
    assert calls == [True]
    assert float((found - expected)[mask == 1].abs().max()) <= 1e-5
    if family != "cpt":  # whose decoder reads all positions
        assert not found[mask == 0].any()


def test_families_of_berts_layout_are_able() -> None:
    # MPNet's scores have a bias for positions, others have other embeddings.
    berts = {"bert", "camembert", "cpt", "distilbert", "elasticbert", "electra", "roberta", "xlm-roberta"}
    assert berts <= set(ABLE) and "mpnet" not in ABLE


def test_token_types_and_no_mask(calls: list[bool]) -> None:
    dense, exits, ids = make_model("bert"), make_exits("random exits"), make_ids(1, 12)
    types = (torch.arange(12) > 5).long()[None]
    found = states_of(converted(dense, exits), input_ids=ids, token_type_ids=types)
    with torch.inference_mode():
        expected = run_reference(dense, exits, input_ids=ids, token_type_ids=types).last_hidden_state
    assert calls == [True]
    assert float((found - expected).abs().max()) <= 1e-5


def test_a_head_on_the_first_row(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    model = converted(make_model("bert", AutoModelForSequenceClassification), make_exits("random exits"))
    ids = make_ids(1, 11)
    found = states_of(model, input_ids=ids)
    assert calls == [True]
    assert torch.allclose(found, packed(monkeypatch, lambda: states_of(model, input_ids=ids)), atol=1e-5)
    assert states_of(encoder_of(model), input_ids=ids).isnan().any(2).tolist() == [[False] + 10 * [True]]


@pytest.mark.parametrize("length", [1, 30, 100])
def test_int8(calls: list[bool], monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    model = quantize(wide_model(max_position_embeddings=128))
    ids = make_ids(1, length)
    found = states_of(model, input_ids=ids)
    assert calls == [True]
    # The first layer's projections are not looked up here, and what is rounded may fall to either side of a step.
    assert relative_error(found, packed(monkeypatch, lambda: states_of(model, input_ids=ids))) <= 0.01


def test_several_texts_and_long_ones_are_packed(calls: list[bool]) -> None:
    model = converted(make_model("bert", max_position_embeddings=200), make_exits("random exits"))
    for batch, length in ((2, 5), (1, one_text.LONGEST_IN_FLOAT32 + 1), (1, 0)):
        states_of(model, input_ids=make_ids(batch, length))
    assert not calls


@pytest.mark.parametrize("refused", ["gradients", "training", "states", "positions", "hook", "mask of floats"])
def test_what_it_cannot_do_is_packed(calls: list[bool], refused: str) -> None:
    dense, exits, ids = make_model("bert"), make_exits("random exits"), make_ids(1, 9)
    model, options = converted(dense, exits).train(refused == "training"), dict[str, Any]()
    ran: list[bool] = []
    if refused == "states":
        options["output_hidden_states"] = True
    if refused == "positions":
        options["position_ids"] = torch.arange(9)[None]
    if refused == "mask of floats":
        options["attention_mask"] = torch.ones(1, 9)
    if refused == "hook":
        encoder_of(model).encoder.layer[1].output.dense.register_forward_hook(lambda *_: ran.append(True))
    with torch.set_grad_enabled(refused == "gradients"):
        found = model(ids, **options).last_hidden_state.detach()
    with torch.no_grad():
        expected = run_reference(dense.eval(), exits, input_ids=ids).last_hidden_state
    assert not calls
    assert bool(ran) == (refused == "hook")
    if refused != "training":
        assert float((found - expected).abs().max()) <= 1e-5


@pytest.mark.parametrize(
    ("ids", "mask"),
    [([[3, 97, 4]], None), ([[3, -1, 4]], None), ([[3, 4, 5]], [[1, 2, 1]]), ([41 * [7]], None)],
    ids=["unknown id", "negative id", "odd mask", "too long"],
)
def test_bad_texts_get_the_packed_engines_error(calls: list[bool], ids: Any, mask: Any) -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    with pytest.raises(HasheeError):
        states_of(model, input_ids=torch.tensor(ids), attention_mask=None if mask is None else torch.tensor(mask))
    assert calls == [False]


def test_padding_on_the_left_is_packed(calls: list[bool]) -> None:
    dense, exits, mask = make_model("bert"), make_exits("random exits"), torch.tensor([[0, 0, 1, 1, 1]])
    ids = make_ids(1, 5)
    found = states_of(converted(dense, exits), input_ids=ids, attention_mask=mask)
    with torch.inference_mode():
        expected = run_reference(dense, exits, input_ids=ids, attention_mask=mask).last_hidden_state
    assert calls == [False]
    assert float((found - expected)[mask == 1].abs().max()) <= 1e-5


def swap_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.5


def write_in_place(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(0.5)


def transpose(model: Any) -> None:
    weight = model.encoder.layer[1].attention.self.query.weight
    weight.data = weight.data.t()


def replace_linear(model: Any) -> None:
    model.encoder.layer[2].intermediate.dense = nn.Linear(24, 40)


def replace_parameter(model: Any) -> None:
    model.encoder.layer[2].output.LayerNorm.weight = nn.Parameter(torch.rand(24))


def replace_embedding(model: Any) -> None:
    model.embeddings.position_embeddings = nn.Embedding(40, 24)


def change_epsilon(model: Any) -> None:
    model.encoder.layer[0].output.LayerNorm.eps = 0.5


def replace_layer(model: Any) -> None:
    model.encoder.layer[0] = copy.deepcopy(model.encoder.layer[3])


def change_activation(model: Any) -> None:
    model.encoder.layer[1].intermediate.intermediate_act_fn = nn.ReLU()


CHANGES = (
    swap_data,
    write_in_place,
    transpose,
    replace_linear,
    replace_parameter,
    replace_embedding,
    change_epsilon,
    replace_layer,
    change_activation,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_changes_of_the_model_are_followed(calls: list[bool], change: Callable[[Any], None]) -> None:
    dense, exits, ids = make_model("bert"), make_exits("exits at 0"), make_ids(1, 14)
    model = converted(dense, exits)
    before = states_of(model, input_ids=ids)
    assert calls == [True]
    # Other modules are put into the converted model too, which shares only the weights.
    torch.manual_seed(5)
    change(dense)
    if change not in (swap_data, write_in_place, transpose):
        torch.manual_seed(5)
        change(encoder_of(model))
    with torch.inference_mode():
        expected = run_reference(dense, exits, input_ids=ids).last_hidden_state
    assert float((expected - before).abs().max()) > 1e-3, "the model must have changed"
    assert float((states_of(model, input_ids=ids) - expected).abs().max()) <= 1e-5


def test_embeddings_that_were_cut_short_are_not_read_beyond_their_end(calls: list[bool]) -> None:
    model, ids = converted(make_model("bert"), make_exits("random exits")), make_ids(1, 14)
    states_of(model, input_ids=ids)
    positions = model.embeddings.position_embeddings.weight
    positions.data = positions.data[:10]  # begins where it did
    with pytest.raises((HasheeError, IndexError)):
        states_of(model, input_ids=ids)


def test_nothing_is_made_anew_while_nothing_changes() -> None:
    model = converted(make_model("bert"), make_exits("random exits"))
    states_of(model, input_ids=make_ids(1, 5))
    prepared = model.one_text_cache.prepared
    assert prepared is not None
    for length in (3, 7, 30):
        states_of(model, input_ids=make_ids(1, length))
    assert model.one_text_cache.prepared is prepared
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.one_text_cache.prepared is None
        assert torch.equal(states_of(other, input_ids=make_ids(1, 5)), states_of(model, input_ids=make_ids(1, 5)))
    model.train()
    assert model.one_text_cache.prepared is None


def test_a_model_that_kernels_cannot_run_is_not_examined_for_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model, examined = converted(make_model("bert", hidden_act="relu"), make_exits("random exits")), list[str]()
    prepare = one_text._prepare
    monkeypatch.setattr(one_text, "_prepare", lambda *a: (examined.append("bert"), prepare(*a))[1])
    for _ in range(3):
        states_of(model, input_ids=make_ids(1, 6))
    assert examined == ["bert"]


def test_int8_weights_that_are_loaded_anew_are_followed() -> None:
    first, second = quantize(wide_model()), quantize(wide_model(seed=3))
    ids = make_ids(1, 10)
    states_of(first, input_ids=ids)
    first.load_state_dict(second.state_dict())
    assert torch.allclose(states_of(first, input_ids=ids), states_of(second, input_ids=ids), atol=1e-5)
