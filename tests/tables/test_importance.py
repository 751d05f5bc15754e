"""What updates are worth is what leaving them out costs, however the texts are batched."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerBase,
)

import hashee
from architectures import FAMILIES, LAYERS, VOCABULARY, encoder_of, make_exits, make_ids, make_mask, make_model, padded
from architectures import converted as convert_with
from common_models import SEQ2SEQ
from hashee.errors import InputError, TableError, TableMismatch, UnsupportedModel
from hashee.families.adapters import adapter_for
from hashee.tables.importance import Prices, Shrinkage, nearest, shrunk
from hashee.tables.measuring import Importance, measure_importance, measure_movement
from hashee.tables.table import tokenizer_fingerprint


def in_double(model: Any) -> Any:
    """Return a model in double precision; ModernBERT's eager attention masks with more than its softmax can hold."""
    if model.config.model_type == "modernbert":
        model.set_attn_implementation("sdpa")
    return model.double()


def with_head(family: str, **changes: Any) -> Any:
    """Return a tiny model of double precision with a head that has a loss."""
    head = AutoModelForSeq2SeqLM if family in SEQ2SEQ else AutoModelForSequenceClassification
    return in_double(make_model(family, head, **changes))


def make_batch(model: Any, mask_kind: str = "right") -> dict[str, Tensor]:
    """Return five rows with padding and labels."""
    mask = make_mask(mask_kind)
    labels = torch.tensor([0, 1, 1, 0, 1])
    if model.config.is_encoder_decoder:
        labels = make_ids(length=6, seed=3)
        labels[1, 4:] = labels[3, 2:] = -100
    return {"input_ids": padded(make_ids(), mask, model.config), "attention_mask": mask, "labels": labels}


def rows_of(batch: dict[str, Tensor], model: Any) -> Iterator[dict[str, Tensor]]:
    """Yield each row as a batch of its own, without padding."""
    for row, mask in enumerate(batch["attention_mask"]):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        yield one | {name: one[name][:, mask != 0] for name in ("input_ids", "attention_mask")}


def measure(model: Any, *batches: dict[str, Tensor], **options: Any) -> Importance:
    return measure_importance(model, iter(batches), progress=False, **options)


@contextmanager
def shortened(model: Any, layer: int, tokens: Tensor, by: float) -> Iterator[None]:
    """Scale the update that an exit layer gives to some tokens by 1 - `by`. tokens: (rows, length) bool."""
    adapter, encoder, place, before = adapter_for(model.config), encoder_of(model), 0, torch.empty(0)
    layers = adapter.layers(encoder)
    numbers = [adapter.exit_layer(encoder, position) for position in range(len(layers))]

    def change(module: Any, inputs: tuple[Tensor, ...], output: Any) -> Any:
        nonlocal place, before
        number, ends = numbers[place], place + 1 == len(layers) or numbers[place + 1] != numbers[place]
        if place == 0 or numbers[place - 1] != number:
            before = inputs[0]
        place += 1
        state = output[0] if isinstance(output, tuple) else output
        if number != layer or not ends:
            return output
        state = torch.where(tokens[..., None], state - by * (state - before), state)
        return (state, *output[1:]) if isinstance(output, tuple) else state

    handles = [module.register_forward_hook(change) for module in dict.fromkeys(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_worth_is_what_the_loss_gains_when_updates_are_left_out(family: str) -> None:
    model = with_head(family)
    batch = make_batch(model)
    importance = measure(model, batch)
    assert importance.absolute.shape == (VOCABULARY, LAYERS)
    answers = (batch["labels"] != -100).sum().item()
    real = batch["attention_mask"] != 0
    types = [int(batch["input_ids"][0, 0]), int(batch["input_ids"][0, 5])]
    # Some compute in single precision, whatever they have, so differences are taken over longer steps.
    steps = {"deberta-v2": 3e-3, "eurobert": 3e-3, "modernbert": 3e-2, "t5": 3e-2}
    step, tolerance, noise = (steps[family], 5e-3, 2e-5) if family in steps else (1e-4, 1e-4, 1e-8)
    for layer in range(1, LAYERS + 1):
        for token in types:
            tokens = (batch["input_ids"] == token) & real
            losses = []
            for by in (step, -step):
                with shortened(model, layer, tokens, by), torch.no_grad():
                    losses.append(model(**batch).loss.item() * answers)
            expected = (losses[0] - losses[1]) / (2 * step)
            assert importance.signed is not None
            assert importance.signed[token, layer - 1] == pytest.approx(expected, rel=tolerance, abs=noise)
    assert np.abs(importance.signed).max() > 1e-3


@pytest.mark.parametrize("signal", ["loss", "sampled", "answer"])
@pytest.mark.parametrize("family", ["bert", "roberta", "bart", "albert"])
def test_batching_and_padding_do_not_matter(family: str, signal: str) -> None:
    model = with_head(family)
    batch = make_batch(model)
    whole = measure(model, batch, signal=signal)
    single = measure(model, *rows_of(batch, model), signal=signal)
    np.testing.assert_allclose(single.absolute, whole.absolute, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(single.signed, whole.signed, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
    assert np.array_equal(single.counts, whole.counts)
    assert single.corpus == whole.corpus
    assert whole.corpus.num_texts == 5 and whole.corpus.num_tokens == int(batch["attention_mask"].sum())
    assert np.all(whole.absolute >= np.abs(whole.signed) - 1e-12)  # type: ignore[arg-type]
    assert np.all(whole.absolute[whole.counts == 0] == 0) and whole.absolute.max() > 0


def test_a_whole_update_is_worth_its_absolute_effect_token_by_token() -> None:
    model = with_head("bert")
    batch = make_batch(model)
    parts = [measure(model, row) for row in rows_of(batch, model)]
    # Each type at most once in a row, so that sizes are absolute values of the signed effects of the rows.
    types = [token for token in range(VOCABULARY) if max(part.counts[token] for part in parts) == 1]
    expected = sum(np.abs(part.signed) for part in parts)  # type: ignore[arg-type]
    np.testing.assert_allclose(measure(model, batch).absolute[types], expected[types], rtol=1e-9)


def test_labels_of_tokens_and_of_choices_count_each_answer_once() -> None:
    ids, mask = make_ids(), make_mask("right")
    tagger = make_model("bert", AutoModelForTokenClassification).double()
    labels = torch.randint(0, 2, ids.shape, generator=torch.Generator().manual_seed(5)).masked_fill(mask == 0, -100)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    halves = [{name: value[part] for name, value in batch.items()} for part in (slice(0, 2), slice(2, 5))]
    np.testing.assert_allclose(measure(tagger, *halves).absolute, measure(tagger, batch).absolute, rtol=1e-9)

    chooser = make_model("bert", AutoModelForMultipleChoice).double()
    choices = {"input_ids": make_ids(batch=6).view(3, 2, -1), "labels": torch.tensor([0, 1, 1])}
    singles = [{name: value[row : row + 1] for name, value in choices.items()} for row in range(3)]
    np.testing.assert_allclose(measure(chooser, *singles).absolute, measure(chooser, choices).absolute, rtol=1e-9)


@pytest.mark.parametrize(
    "changes", [{"num_labels": 1}, {"num_labels": 3, "problem_type": "multi_label_classification"}, {"num_labels": 3}]
)
@pytest.mark.parametrize("signal", ["sampled", "answer"])
def test_signals_without_labels_suit_every_kind_of_answer(changes: dict[str, Any], signal: str) -> None:
    model = with_head("bert", **changes)
    batch = make_batch(model)
    del batch["labels"]
    importance = measure(model, batch, signal=signal)
    assert importance.signal == signal
    # A head on the first row reads no other token after the last layer.
    assert np.all(importance.absolute[importance.counts > 0, :-1] > 0)
    first = np.unique(batch["input_ids"][:, 0])
    assert set(np.flatnonzero(importance.absolute[:, -1])) == set(first)


def test_the_answer_signal_is_the_lead_of_the_highest_logit() -> None:
    model = with_head("bert", num_labels=3)
    batch = make_batch(model)
    del batch["labels"]
    token = int(batch["input_ids"][0, 4])
    tokens = (batch["input_ids"] == token) & (batch["attention_mask"] != 0)
    leads = []
    for by in (1e-4, -1e-4):
        with shortened(model, 2, tokens, by), torch.no_grad():
            ranked = model(**batch).logits.sort(dim=-1).values
            leads.append((ranked[:, -1] - ranked[:, :-1].mean(dim=-1)).sum().item())
    signed = measure(model, batch, signal="answer").signed
    assert signed is not None and signed[token, 1] == pytest.approx((leads[1] - leads[0]) / 2e-4, rel=1e-4)


def test_drawn_labels_depend_on_the_seed_alone() -> None:
    model = with_head("bert")
    batch = make_batch(model)
    first, again, other = (measure(model, batch, signal="sampled", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    # Labels that the model is sure of are the ones it draws.
    with torch.no_grad():
        model.classifier.weight.mul_(1e3)
        batch["labels"] = model(**{**batch, "labels": None}).logits.argmax(dim=-1)
    sure = measure(model, batch, signal="sampled", seed=3)
    np.testing.assert_allclose(sure.absolute, measure(model, batch).absolute, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("family", ["bert", "albert", "bart", "roberta-prelayernorm", "mpnet"])
def test_a_converted_model_without_exits_measures_like_the_dense_one(family: str) -> None:
    model = with_head(family)
    batch = make_batch(model)
    converted = convert_with(model, make_exits("full depth"))
    np.testing.assert_allclose(measure(converted, batch).absolute, measure(model, batch).absolute, rtol=1e-9)
    with pytest.raises(UnsupportedModel, match="tokens exit in this model"):
        measure(convert_with(model, make_exits("random exits")), batch)


def test_a_converted_model_that_was_cut_is_measured_at_its_depth() -> None:
    model = with_head("bert")
    converted = convert_with(model, make_exits("full depth", layers=2), layers=2)
    batch = make_batch(model)
    importance = measure(converted, batch)
    assert importance.num_layers == 2
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    model.config.num_hidden_layers = 2
    np.testing.assert_allclose(measure(model, batch).absolute, importance.absolute, rtol=1e-9)
    albert = convert_with(with_head("albert"), make_exits("full depth", layers=2), layers=2)
    with pytest.raises(UnsupportedModel, match="groups of shared layers"):
        measure(albert, make_batch(albert))


def test_the_model_stays_as_it_was() -> None:
    model = with_head("bert", hidden_dropout_prob=0.5)
    expected = measure(model, make_batch(model))
    model.train()
    model.bert.embeddings.eval()
    model.requires_grad_(False)
    with torch.no_grad():
        assert measure(model, make_batch(model)) == expected
    assert model.training and model.bert.encoder.training and not model.bert.embeddings.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_half_precision_is_summed_in_double() -> None:
    model = make_model("bert", AutoModelForSequenceClassification)
    batch = make_batch(model)
    exact = measure(model, batch)
    half = measure(model.to(torch.bfloat16), batch)
    assert half.absolute.dtype == np.float64
    assert np.abs(half.absolute - exact.absolute).max() < 0.1 * exact.absolute.max()


@pytest.mark.parametrize("family", FAMILIES)
def test_movement_is_the_relative_step_of_the_states(family: str) -> None:
    model = in_double(make_model(family))
    encoder = encoder_of(model)
    ids, mask = make_ids(), make_mask("right")
    batch = {"input_ids": padded(ids, mask, model.config), "attention_mask": mask}
    with torch.no_grad():
        states = encoder(**batch, output_hidden_states=True).hidden_states
    # ALBERT keeps the states of the blocks inside a layer as well.
    states = states[:: (len(states) - 1) // LAYERS]
    token = int(ids[0, 3])
    here = (ids == token) & (mask != 0)
    model = encoder if model.config.is_encoder_decoder else model
    distance = measure_movement(model, [batch], progress=False)
    angle = measure_movement(model, [batch], by="angle", progress=False)
    assert distance.signed is None and distance.signal == "distance"
    # The last states may have passed a final norm, which is no part of the layer.
    for layer in range(LAYERS - 1):
        old, new = states[layer][here], states[layer + 1][here]
        steps = (new - old).norm(dim=-1) / new.norm(dim=-1)
        assert distance.absolute[token, layer] == pytest.approx(steps.sum().item())
        cosines = torch.cosine_similarity(old, new, dim=-1)
        assert angle.absolute[token, layer] == pytest.approx((1 - cosines).sum().item())
    with pytest.raises(TableError, match="'distance' have no sign"):
        distance.worth(signed=True)


# --- keeping it ---


def test_save_and_load(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    model = with_head("bert")
    importance = measure(model, make_batch(model), tokenizer=tokenizer)
    assert importance.tokenizer_fingerprint == tokenizer_fingerprint(tokenizer)
    importance.save(tmp_path)
    loaded = Importance.load(tmp_path)
    assert loaded == importance and loaded.signal == "loss"
    moved = measure_movement(model, [make_batch(model)], progress=False)
    (tmp_path / "moved").mkdir()
    moved.save(tmp_path / "moved")
    assert Importance.load(tmp_path / "moved") == moved != importance
    (tmp_path / "importance.safetensors").write_bytes(b"no")
    with pytest.raises(TableError, match="damaged"):
        Importance.load(tmp_path)


def test_shards_add_up() -> None:
    model = with_head("bert")
    batch = make_batch(model)
    rows = list(rows_of(batch, model))
    whole = measure(model, *rows)
    parts = measure(model, *rows[3:]) + measure(model, *rows[:3])
    np.testing.assert_allclose(parts.absolute, whole.absolute)
    assert parts.corpus == whole.corpus and np.array_equal(parts.counts, whole.counts)
    with pytest.raises(TableMismatch, match="do not add up"):
        whole + measure(model, batch, signal="answer")


# --- refusals ---


def test_unusable_input_is_refused() -> None:
    model = with_head("bert")
    batch = make_batch(model)
    unlabelled = {name: value for name, value in batch.items() if name != "labels"}
    with pytest.raises(InputError, match="no loss; add labels"):
        measure(model, unlabelled)
    with pytest.raises(InputError, match="no input_ids"):
        measure(model, {"labels": batch["labels"]})
    with pytest.raises(TableError, match="not a single batch"):
        measure(model)
    with pytest.raises(InputError, match="signal='kl' is unknown; use one of loss, sampled, answer"):
        measure(model, batch, signal="kl")
    with pytest.raises(InputError, match="needs a head with logits"):
        measure(make_model("bert", AutoModel), unlabelled, signal="answer")
    with pytest.raises(InputError, match="the loss of a batch is nan"):
        tagger = make_model("bert", AutoModelForMaskedLM)
        measure(tagger, unlabelled | {"labels": torch.full_like(batch["input_ids"], -100)})
    with pytest.raises(UnsupportedModel, match="Linear is not a transformers model"):
        measure(torch.nn.Linear(2, 2), batch)


# --- from worth to exits ---


def importance_of(sums: np.ndarray, counts: list[int]) -> Importance:
    corpus = hashee.tables.table.CorpusInfo(1, sum(counts), "0" * 64)
    return Importance(sums.astype(np.float64), sums.astype(np.float64), np.array(counts), "loss", corpus)


def test_few_occurrences_are_drawn_towards_the_prior() -> None:
    sums = np.array([[8.0, 0.0], [1.0, 3.0], [30.0, 10.0], [0.0, 0.0], [9.0, 3.0]])
    importance = importance_of(sums, [4, 1, 10, 0, 3])
    ids = np.array([0, 1, 2, 4])
    overall = sums.sum(axis=0) / 18

    def means(embeddings: Any = None, **options: Any) -> np.ndarray:
        return shrunk(importance, ids, Shrinkage(**{"rarity": 0.0} | options), False, embeddings)

    np.testing.assert_allclose(means(pseudo_counts=0), importance.worth()[ids])
    np.testing.assert_allclose(means(prior="overall", pseudo_counts=2)[1], (sums[1] + 2 * overall) / 3)
    np.testing.assert_allclose(means(prior="overall", pseudo_counts=1e9), np.tile(overall, (4, 1)), rtol=1e-6)
    # Bands of counts: 1 alone, 2 and 3, 4 to 7, 8 to 15.
    np.testing.assert_allclose(means(prior="frequency", pseudo_counts=7), importance.worth()[ids])
    near = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [5.0, 5.0], [0.1, 0.9]], dtype=np.float32)
    neighbour = (sums[0] + 2 * overall) / (4 + 2)
    found = means(near, prior="neighbours", pseudo_counts=2, neighbours=1)
    np.testing.assert_allclose(found[1], (sums[1] + 2 * neighbour) / 3)
    surprisal = np.log(18 / np.array([4, 1, 10, 3]))[:, None]
    np.testing.assert_allclose(means(pseudo_counts=0, rarity=2), importance.worth()[ids] * surprisal**2)
    drawn = (sums[1] * surprisal[1] + 2 * (sums[ids] * surprisal).sum(axis=0) / 18) / 3
    np.testing.assert_allclose(means(prior="overall", pseudo_counts=2, rarity=1)[1], drawn)
    with pytest.raises(TableError, match="needs embeddings"):
        means(prior="neighbours")
    with pytest.raises(TableMismatch, match="has 2 rows but token id 4"):
        means(near[:2], prior="neighbours")
    with pytest.raises(TableError, match="use one of overall, frequency, neighbours"):
        Shrinkage(prior="mean")  # type: ignore[arg-type]
    with pytest.raises(TableError, match="pseudo_counts=-1"):
        Shrinkage(pseudo_counts=-1)
    with pytest.raises(TableError, match="rarity=-1"):
        Shrinkage(rarity=-1)


def test_nearest_equals_sorting_all_cosines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hashee.tables.importance._ROWS_AT_A_TIME", 7)
    vectors = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit.T - 5 * np.eye(20)
    expected = np.argsort(-cosines, axis=1)[:, :3]
    assert [set(row) for row in nearest(vectors, 3)] == [set(row) for row in expected]
    assert nearest(vectors[:2], 5).tolist() == [[1], [0]]
    assert nearest(vectors[:1], 5).shape == (1, 0)


@pytest.mark.parametrize("min_exit", [0, 1, 2])
def test_exits_are_where_worth_less_price_peaks(min_exit: int) -> None:
    random = np.random.default_rng(1)
    worth, costs = random.normal(0.3, 1, size=(200, 5)), np.array([0.5, 1, 1, 1, 1.5])
    prices = Prices.of(worth, costs, min_exit)
    for place in (0, 0.3, 0.5, 0.8, 1):
        price = prices.price_at(place)
        for token, layer in enumerate(prices.layers_at(place)):
            sums = [(worth[token, :e] - price * costs[:e]).sum() for e in range(min_exit, 6)]
            assert sums[layer - min_exit] == pytest.approx(max(sums))
    assert set(prices.layers_at(0)) == {min_exit} and set(prices.layers_at(1)) == {5}
    exits = np.array([prices.layers_at(place) for place in np.linspace(0, 1, 30)])
    assert np.all(np.diff(exits, axis=0) >= 0)
