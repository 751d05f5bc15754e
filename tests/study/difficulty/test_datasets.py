"""Sets of difficulties: read as the authors wrote them, written as they are read, refused where they are unusable."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from small_sets import LAYERS, make_set

from hashee.errors import InputError
from hashee.study.difficulty.datasets import LEVELS, Level, load_set, save_set
from hashee.study.difficulty.sampling import difficulty_class, oversampled, splits_of

AUTHORS = pytest.mark.skipif("HASHEE_DATA" not in os.environ, reason="HASHEE_DATA is not set")


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_saved_loads_equal(level: Level, tmp_path: Path) -> None:
    made = make_set(level)
    found = load_set(save_set(made, tmp_path / "tiny"))
    assert (found.level, found.name, found.fingerprint) == (level, "tiny", made.fingerprint)
    assert found.layers == (1 if level == "human" else LAYERS)
    assert found.statistics()["train"]["right"] == made.statistics()["train"]["right"]


def test_files_say_1_for_difficult_where_annotators_decide(tmp_path: Path) -> None:
    made = make_set("human")
    folder = save_set(made, tmp_path)
    labels = [json.loads(line)["label"] for line in (folder / "train.jsonl").read_text().splitlines()]
    assert labels == [1 - target[0] for target in made.train.targets or ()]  # type: ignore[index]


@pytest.mark.data
@AUTHORS
def test_the_authors_sets_load_as_they_are() -> None:
    human, model = load_set("snli-human"), load_set("snli-model")
    assert (human.level, len(human.train), len(human.test)) == ("human", 1237, 1000)
    assert human.statistics()["test"]["right"] == [0.5]
    assert (model.level, model.layers, len(model.train), len(model.test)) == ("sentence", 12, 8000, 1842)
    right = model.statistics()["train"]["right"]
    assert right[0] == pytest.approx(0.381, abs=1e-3) and right[-1] == pytest.approx(0.825, abs=1e-3)


def write(folder: Path, **splits: list[dict[str, Any]]) -> Path:
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def rows(count: int, labels: Any, text: str = "a cat") -> list[dict[str, Any]]:
    return [{"text": f"{text} {number}", "labels": labels} for number in range(count)]


def test_unusable_sets_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder and none of snli-human, snli-model"):
        load_set(tmp_path / "nowhere")
    write(tmp_path, train=rows(30, [0, 1, 1]), test=rows(5, [0, 1, 1], "a dog"))
    with pytest.raises(InputError, match=r"test of .* has 5 rows, too few to tell anything; it needs at least 20"):
        load_set(tmp_path)
    write(tmp_path, test=rows(30, [0, 1], "a dog"))
    with pytest.raises(InputError, match="differ between train and dev: for 3 layers in train, for 2 in test"):
        load_set(tmp_path)
    write(tmp_path, test=rows(30, [0, 1, 2], "a dog"))
    with pytest.raises(InputError, match=r"test\.jsonl, line 1: .*2 is neither 0 nor 1"):
        load_set(tmp_path)
    write(tmp_path, test=[{"text": f"a dog {number}", "label": 1} for number in range(30)])
    with pytest.raises(InputError, match="sentence labels in train but human labels in test"):
        load_set(tmp_path)


def test_a_set_without_a_test_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no test file"):
        load_set(write(tmp_path, train=rows(30, [0, 1, 1])))


# --- what predictors learn from ------------------------------------------------------------------------------


def test_rare_classes_are_sampled_over_as_far_as_asked() -> None:
    made = make_set(train=400)
    counts = {power: _sizes(oversampled("sentence", made.train, power, 0), made) for power in (0.0, 0.5, 1.0)}
    few, many = sorted(counts[0.0].values())
    assert sum(counts[0.0].values()) == len(made.train)
    rare = min(counts[0.0], key=lambda each: counts[0.0][each])
    assert counts[0.5][rare] == pytest.approx((few * many) ** 0.5, rel=0.1)
    assert counts[1.0][rare] == pytest.approx(many, rel=0.1)
    frequent = max(counts[0.0], key=lambda each: counts[0.0][each])
    assert counts[1.0][frequent] == counts[0.5][frequent] == many, "the most frequent class is left as it is"


def _sizes(indices: list[int], made: Any) -> dict[int, int]:
    classes = [difficulty_class("sentence", made.train.targets[index]) for index in indices]
    return {each: classes.count(each) for each in set(classes)}


@pytest.mark.parametrize("level", LEVELS)
def test_dev_is_never_trained_on_and_test_is_whole(level: Level) -> None:
    made = make_set(level)
    splits = splits_of(made, seed=3)
    assert len(splits.seen) + len(splits.dev) == len(made.train) and splits.test is made.test
    assert {str(text) for text in splits.train.texts} == {str(text) for text in splits.seen.texts}
    assert len(splits.train) >= len(splits.seen)
    assert splits_of(made, seed=3).dev.texts == splits.dev.texts != splits_of(made, seed=4).dev.texts
