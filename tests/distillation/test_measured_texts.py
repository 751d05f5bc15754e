"""The texts that importance for a model's answers is measured on."""

from pathlib import Path

import numpy as np
import pytest

from hashee.distillation import tables
from hashee.distillation.corpus import read_corpus
from hashee.distillation.settings import SpeedupSettings
from hashee.hf.text_models import open_text_model
from tiny_text_models import make_texts


@pytest.mark.parametrize(("texts", "tokens"), [(20, 10_000), (1000, 150), (1000, 1)])
def test_importance_is_measured_on_so_much_at_most(
    encoder: Path, monkeypatch: pytest.MonkeyPatch, texts: int, tokens: int
) -> None:
    model = open_text_model(encoder)
    train = read_corpus(model, make_texts(160), SpeedupSettings(quiet=True)).train.tokenized
    monkeypatch.setattr(tables, "_MEASURED_TEXTS", texts)
    monkeypatch.setattr(tables, "_MEASURED_TOKENS", tokens)
    measured = int(np.asarray(tables.importance_of(model, train).counts).sum())
    drawn = train.lengths[np.random.default_rng(0).permutation(len(train))]
    fitting = [sum(drawn[:number]) for number in range(1, min(texts, len(drawn)) + 1) if sum(drawn[:number]) <= tokens]
    assert measured == (fitting or [drawn[0]])[-1]
    assert 0 < measured < sum(drawn)
