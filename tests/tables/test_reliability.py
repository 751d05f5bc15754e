"""The less parts of a corpus agree on what types are worth, the more a type is taken to be like others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMultipleChoice, AutoModelForSequenceClassification

from architectures import make_ids, make_model
from hashee.errors import InputError, TableError
from hashee.tables.importance import Importance, Shrinkage
from hashee.tables.labelled import groups_of
from hashee.tables.measuring import measure_importance
from hashee.tables.reliability import DEFAULT_PSEUDO_COUNTS, PARTS, pseudo_counts_of


def made_up_parts(own: float, chance: float, types: int = 600, texts: int = 1, seed: int = 0) -> Any:
    """Return parts of types whose log means vary by `own`, and by `chance` in one occurrence; (types, 2, PARTS).

    texts: occurrences that come together, in one part and with one error.
    """
    draw = np.random.default_rng(seed)
    parts = np.zeros((types, 2, PARTS))
    for place, log in enumerate(own**0.5 * draw.standard_normal(types)):
        for _ in range(draw.integers(20, 200) // texts):
            size = np.exp(log) * (1 + chance**0.5 * draw.choice([-1, 1]))
            parts[place, :, draw.integers(PARTS)] += texts, texts * size
    return parts


@pytest.mark.parametrize(("own", "chance"), [(0.05, 0.4), (0.02, 0.4), (0.01, 0.8)])
def test_chance_over_what_is_their_own(own: float, chance: float) -> None:
    assert pseudo_counts_of(made_up_parts(own, chance)) == pytest.approx(chance / own, rel=0.25)


def test_occurrences_that_come_together_count_for_less() -> None:
    apart, together = (pseudo_counts_of(made_up_parts(0.05, 0.4, texts=texts)) for texts in (1, 5))
    assert together == pytest.approx(5 * apart, rel=0.35)


def test_the_error_of_shrunk_means_is_the_least_there_is() -> None:
    own, chance, draw = 0.04, 0.5, np.random.default_rng(1)
    parts = made_up_parts(own, chance)
    truth = own**0.5 * np.random.default_rng(0).standard_normal(len(parts))
    counts = draw.integers(3, 40, len(parts))
    seen = truth + (chance / counts) ** 0.5 * draw.standard_normal(len(parts))

    def error(strength: float) -> float:
        return float(np.mean((seen * counts / (counts + strength) - truth) ** 2))

    assert error(pseudo_counts_of(parts)) < 1.05 * min(error(strength) for strength in np.geomspace(1, 300, 50))
    assert error(pseudo_counts_of(parts)) < 0.8 * error(0)


def test_what_cannot_be_told() -> None:
    parts = made_up_parts(0.05, 0.4)
    assert pseudo_counts_of(None) == DEFAULT_PSEUDO_COUNTS
    assert pseudo_counts_of(parts[:20]) == DEFAULT_PSEUDO_COUNTS
    assert pseudo_counts_of(np.zeros_like(parts)) == DEFAULT_PSEUDO_COUNTS
    assert pseudo_counts_of(made_up_parts(0.0, 0.4)) > 200
    assert pseudo_counts_of(made_up_parts(0.5, 0.0)) == 2


# --- measuring ---


def measured(groups: list[int] | None) -> Importance:
    """Return what a tiny model's updates are worth on 64 rows of 9 tokens."""
    ids = make_ids(batch=64, length=9)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(64) % 2}
    more = {} if groups is None else {"groups": torch.tensor(groups)}
    return measure_importance(make_model("bert", AutoModelForSequenceClassification), [batch | more], progress=False)


def test_parts_add_up_to_the_whole_and_do_not_depend_on_the_order() -> None:
    importance = measured(None)
    assert importance.parts is not None
    np.testing.assert_array_equal(importance.parts[:, 0].sum(axis=-1), importance.counts)
    np.testing.assert_allclose(importance.parts[:, 1].sum(axis=-1), importance.absolute.sum(axis=-1))
    assert (importance.parts[:, 0].sum(axis=0) > 0).all(), "a part without texts"
    both = (importance + importance).parts
    np.testing.assert_allclose(both, 2 * importance.parts)  # type: ignore[arg-type]


def test_rows_of_one_group_are_in_one_part() -> None:
    one = measured([7] * 64)
    assert one.parts is not None
    assert (one.parts[:, 0].sum(axis=0) > 0).sum() == 1
    np.testing.assert_array_equal(one.absolute, measured(None).absolute)
    with pytest.raises(InputError, match=r"groups of shape \(3,\) do not number the 64 rows"):
        measured([1, 2, 3])
    two = measured([1, 2] * 32).parts
    assert two is not None and sorted(two[:, 0].sum(axis=0))[-2:] == [32 * 9, 32 * 9]


def test_all_choices_of_a_question_are_in_its_group() -> None:
    ids = make_ids(batch=8, length=6).view(4, 2, 6)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 1, 1, 0])}
    model = make_model("bert", AutoModelForMultipleChoice)
    importance = measure_importance(model, [batch | {"groups": torch.tensor([3, 3, 3, 3])}], progress=False)
    assert importance.parts is not None
    assert sorted(importance.parts[:, 0].sum(axis=0)) == [0] * (PARTS - 1) + [8 * 6]


def test_pairs_are_grouped_by_the_side_that_repeats() -> None:
    assert groups_of(["a", "b"]) is None
    asked = groups_of([("p1", "q1"), ("p2", "q1"), ("p3", "q2"), ("p1", "q2")])
    assert asked is not None and asked.tolist() == [0, 0, 1, 1]
    premises = groups_of([("p1", "h1"), ("p1", "h2"), ("p2", "h1"), ("p1", "h3")])
    assert premises is not None and premises.tolist() == [0, 0, 1, 0]


def test_files_of_before_have_no_parts(tmp_path: Path) -> None:
    whole = measured(None)
    before = Importance(whole.absolute, whole.signed, whole.counts, whole.signal, whole.corpus)
    before.save(tmp_path)
    loaded = Importance.load(tmp_path)
    assert loaded.parts is None and loaded == before != whole
    ids = np.flatnonzero(whole.counts)
    assert Shrinkage().strength(loaded, ids) == DEFAULT_PSEUDO_COUNTS
    assert Shrinkage(pseudo_counts=3).strength(whole, ids) == 3
    assert (loaded + whole).parts is None
    with pytest.raises(TableError, match=r"parts of an importance has shape \(2, 2, 8\)"):
        Importance(whole.absolute, None, whole.counts, "loss", whole.corpus, None, np.zeros((2, 2, PARTS)))
