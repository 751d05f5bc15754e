"""Faster models keep layers spread from the first to the last, as many as suit the speed-up."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hashee
from architectures import make_model
from hashee.distillation import tables
from hashee.distillation.corpus import read_corpus
from hashee.distillation.depth import depths_to_try, grouped, with_table
from hashee.distillation.entry import run_speedup
from hashee.distillation.settings import SpeedupSettings
from hashee.errors import ImpossibleSpeedup, InputError, UnsupportedModel
from hashee.families.layers import blocks_by_layer
from hashee.hf.text_models import TextModel, as_text_model, open_text_model
from small_tokenizer import make_tokenizer
from tiny_text_models import make_folder, make_texts

TEXTS = make_texts(160)
QUICK: dict[str, Any] = {"learning_rate": 3e-3, "batch_size": 16, "quiet": True}


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder of six layers."""
    return make_folder(tmp_path_factory.mktemp("deep"), layers=6)


def never(model: TextModel, layers: int) -> hashee.ExitTable:
    return hashee.ExitTable.never(model.tokenizer, layers)


@pytest.mark.parametrize(("speedup", "depths"), [(1.0, [6]), (2.0, [6]), (3.0, [4, 5, 6]), (5.0, [3, 4, 5, 6])])
def test_twice_as_many_layers_as_would_do_without_exits(deep: Path, speedup: float, depths: list[int]) -> None:
    model = open_text_model(deep)
    assert depths_to_try(model, speedup, None) == depths
    assert depths_to_try(model, speedup, 5) == [5]
    with pytest.raises(InputError, match="depth is 7, but the model has 6 layers"):
        depths_to_try(model, speedup, 7)


def test_layers_that_see_differently_far_are_all_kept() -> None:
    model = as_text_model(make_model("modernbert", vocab_size=len(make_tokenizer())), make_tokenizer())
    layers = len(blocks_by_layer(model.transformer))
    assert depths_to_try(model, 3.0, None) == depths_to_try(model, 3.0, layers) == [layers]
    with pytest.raises(UnsupportedModel, match="differ in how far they see"):
        depths_to_try(model, 3.0, layers - 1)


def test_weights_are_those_of_the_layers_kept(deep: Path) -> None:
    model = open_text_model(deep)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = with_table(model, never(model, 3))
    whole = blocks_by_layer(model.transformer)
    for own, number in zip(blocks_by_layer(made.transformer), (1, 4, 6), strict=True):
        for (module, _), (other, _) in zip(own, whole[number - 1], strict=True):
            assert all(torch.equal(each, other.state_dict()[name]) for name, each in module.state_dict().items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    full = with_table(model, never(model, 6))
    pairs = zip(full.outputs(TEXTS[:5]), model.outputs(TEXTS[:5]), strict=True)
    assert all(np.abs(own - dense).max() <= 1e-5 for own, dense in pairs)


def test_layers_are_worth_what_those_that_they_stand_for_are(deep: Path) -> None:
    model = open_text_model(deep)
    train = read_corpus(model, TEXTS, SpeedupSettings(quiet=True)).train.tokenized
    importance = tables.importance_of(model, train)
    columns = importance.absolute.T
    expected = np.stack([columns[0], columns[1:4].sum(axis=0), columns[4:].sum(axis=0)], axis=1)
    assert np.array_equal(grouped(importance, 3).absolute, expected)
    assert np.array_equal(grouped(importance, 1).absolute[:, 0], columns.sum(axis=0))
    assert np.array_equal(grouped(importance, 6).absolute, importance.absolute)


@pytest.mark.parametrize(("fields", "depth"), [({}, 4), ({"depth": 6}, 6), ({"depth": 3}, 3)])
def test_the_speed_up_is_over_the_whole_model_at_any_depth(
    deep: Path, tmp_path: Path, fields: dict[str, int], depth: int
) -> None:
    result = run_speedup(deep, TEXTS, output=tmp_path / "fast", speedup=3, **QUICK, **fields)
    assert result.report.counted == pytest.approx(3, rel=0.15)
    assert result.model.config.num_hidden_layers == len(result.report.updated) == depth
    again = open_text_model(tmp_path / "fast")
    assert again.exit_table.num_layers == depth
    assert result.report.agreement["cosine"] > result.report.untrained["cosine"]


def test_heads_that_read_one_state_get_more_layers_where_few_are_too_cheap(reranker: Path, tmp_path: Path) -> None:
    from tiny_text_models import make_pairs

    pairs = make_pairs(12, 10)
    with pytest.raises(ImpossibleSpeedup):
        run_speedup(reranker, pairs, output=tmp_path / "too-cheap", speedup=6, depth=1, **QUICK)
    result = run_speedup(reranker, pairs, output=tmp_path / "fast", speedup=6, **QUICK)
    assert result.report.counted == pytest.approx(6, rel=0.2) and result.model.config.num_hidden_layers == 2
