"""Building sets: from annotators, and from which layers of a model are right."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fitting_data import RECIPE, make_backbone, make_data
from small_sets import write_annotated

from hashee.data import Kind
from hashee.errors import InputError
from hashee.study.difficulty.building_human import HumanSettings, build_human, even_sample, majority
from hashee.study.difficulty.building_model import ModelSettings, build_by_model, multi_exit_fit
from hashee.study.difficulty.plan import read_plan
from hashee.study.difficulty.token_exits import open_token_exits, token_exits, train_token_exits
from hashee.study.methods import METHODS

SHORT = replace(RECIPE, epochs=2.0)


def human(path: Path, **other: object) -> HumanSettings:
    return HumanSettings("tiny", [path], **other)  # type: ignore[arg-type]


def test_rows_without_a_majority_are_difficult_and_as_many_others_are_not(tmp_path: Path) -> None:
    path = write_annotated(tmp_path / "rows.jsonl", difficult=60, simple=300)
    made = build_human(human(path))
    texts = [*made.train.texts, *made.test.texts]
    targets = [*(made.train.targets or ()), *(made.test.targets or ())]
    assert len(set(texts)) == len(texts) == 120
    assert all(
        str(text).startswith("difficult") == (target == (0,)) for text, target in zip(texts, targets, strict=True)
    )
    assert made.statistics()["train"]["right"] == made.statistics()["test"]["right"] == [0.5]
    assert len(made.test) == pytest.approx(120 * 1000 / 2238, abs=2)
    assert made.about["without_majority"] == 60


def test_simple_rows_are_of_every_label_alike() -> None:
    labels = [0] * 50 + [1] * 10 + [None] * 9 + [2] * 3
    chosen = [labels[index] for index in even_sample(labels, 15, seed=0)]
    assert sorted(chosen, key=str) == [0] * 6 + [1] * 6 + [2] * 3
    assert [majority(each) for each in ([1, 1, 2], [1, 2], [1, 1, 2, 2, 0], ["a"] * 3)] == ["1", None, None, "a"]


def test_data_without_several_labels_are_refused(tmp_path: Path) -> None:
    path = write_annotated(tmp_path / "rows.jsonl", 30, 30)
    with pytest.raises(
        InputError, match="has no column 'labels' with several labels for each row; its columns are: text"
    ):
        build_human(human(path, labels_column="labels"))
    single = tmp_path / "single.jsonl"
    single.write_text('{"text": "a", "votes": [1, 2]}\n{"text": "b", "votes": [1]}\n{"text": "c", "votes": []}\n')
    with pytest.raises(InputError, match=r"needs several labels for each row; .* has fewer than two in lines 2, 3"):
        build_human(human(single, labels_column="votes"))
    with pytest.raises(InputError, match="most annotators agree, so no row is difficult"):
        build_human(human(write_annotated(tmp_path / "agreed.jsonl", 0, 30)))
    with pytest.raises(InputError, match="has 5 difficult and 5 simple rows, too few to split into train and test"):
        build_human(human(write_annotated(tmp_path / "few.jsonl", 5, 30)))


# --- by a model ----------------------------------------------------------------------------------------------


def test_texts_are_labelled_with_the_layers_that_are_right(backbone: Path, tmp_path: Path) -> None:
    data = make_data(recipe=SHORT)
    settings = ModelSettings("tiny", data, str(backbone), method="deebert", test_share=0.5)
    made = build_by_model("sentence", settings, tmp_path)
    assert made.level == "sentence" and made.layers == 4
    assert sorted([*made.train.texts, *made.test.texts]) == sorted(data.dev.texts), "train is never labelled"  # type: ignore[type-var]
    model = METHODS["deebert"].open(tmp_path / "work" / "deebert").eval()
    fit = multi_exit_fit("sentence", settings, tmp_path)
    with torch.no_grad():
        exits = model(**fit.encoder(made.test).inputs(range(len(made.test)))).exits
    classes = dict(zip(data.dev.texts, data.dev.targets or (), strict=True))
    gold = torch.tensor([classes[text] for text in made.test.texts])
    expected = torch.stack([each.logits.argmax(-1) == gold for each in exits], dim=1).int().tolist()
    assert [list(target) for target in made.test.targets or ()] == expected  # type: ignore[arg-type]
    assert (made.about["trained_on"], made.about["layers"]) == (96, 4)


def test_words_are_labelled_with_the_layers_that_are_right(backbone: Path, tmp_path: Path) -> None:
    data = make_data(Kind.TAGS, recipe=replace(RECIPE, epochs=6.0))
    settings = ModelSettings("tiny", data, str(backbone), label_splits=("dev", "test"), test_share=0.5)
    made = build_by_model("token", settings, tmp_path)
    assert made.level == "token" and made.layers == 4 and len(made.train) + len(made.test) == 80
    for text, target in zip(made.train.texts, made.train.targets or (), strict=True):
        assert len(text) == len(target)  # type: ignore[arg-type]
    right = np.mean(made.statistics()["train"]["right"])
    assert right > 0.9, "every layer sees the word itself, and that is all the tag depends on"


def test_exits_of_words_are_saved_and_opened_equal(backbone: Path, tmp_path: Path) -> None:
    data = make_data(Kind.TAGS, recipe=SHORT)
    fit = multi_exit_fit("token", ModelSettings("tiny", data, str(backbone)), tmp_path)
    trained = train_token_exits(fit, tmp_path / "model")
    inputs = fit.dev.inputs([0, 1, 2])
    opened = open_token_exits(tmp_path / "model")
    with torch.no_grad():
        pairs = zip(trained(**inputs).exits, opened(**inputs).exits, strict=True)
        assert all(torch.equal(one.logits, other.logits) for one, other in pairs)
    new = token_exits(fit.backbone.packed(fit.backbone.load(0))).eval()
    with torch.no_grad():
        assert not torch.allclose(new(**inputs).logits, opened(**inputs).logits), "training has changed it"


def test_what_cannot_be_built_is_refused(backbone: Path, tmp_path: Path) -> None:
    data = make_data(recipe=SHORT)
    with pytest.raises(InputError, match="token-level difficulty needs a task with a tag for each word"):
        build_by_model("token", ModelSettings("tiny", data, str(backbone)), tmp_path)
    with pytest.raises(InputError, match="sentence-level difficulty needs a task with one class for each text"):
        build_by_model("sentence", ModelSettings("tiny", make_data(Kind.SCORE), str(backbone)), tmp_path)
    single = make_backbone(tmp_path / "single", layers=1)
    with pytest.raises(InputError, match=r"the backbone single has 1 layer; .* at least 2"):
        build_by_model("sentence", ModelSettings("tiny", data, str(single)), tmp_path)
    with pytest.raises(InputError, match="'dense' trains no classifier after every layer; choose from berxit"):
        build_by_model("sentence", ModelSettings("tiny", data, str(backbone), method="dense"), tmp_path)
    with pytest.raises(InputError, match="of dev or test, not of 'train'"):
        ModelSettings("tiny", data, label_splits=("train",))
    few = ModelSettings("tiny", data, str(backbone), limits=(None, 12, None))
    with pytest.raises(InputError, match="has 12 texts to label, too few to split into train and test"):
        build_by_model("sentence", few, tmp_path)


def test_labels_that_only_dev_has_are_refused(backbone: Path, tmp_path: Path) -> None:
    for split, names in (("train", ("good", "bad")), ("dev", ("good", "odd"))):
        lines = [f"a {split} film {number},{names[number % 2]}" for number in range(60)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    with pytest.raises(InputError, match=r"'odd' in lines .*, not among the labels of train"):
        build_by_model("sentence", ModelSettings("tiny", str(tmp_path), str(backbone)), tmp_path / "work")


# --- the whole study in one file --------------------------------------------------------------------------------


def test_the_plan_of_the_study_is_readable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HASHEE_MODELS", str(tmp_path))
    monkeypatch.setenv("HASHEE_DATA", str(tmp_path))
    plan = read_plan(Path(__file__).parents[3] / "experiments" / "difficulty" / "study.toml")
    assert {build.level for build in plan.builds} == {"human", "sentence", "token"}
    assert {trial.predictor for block in plan.blocks for trial in block.trials()} >= {"majority", "transformer"}
    assert [each.seed for each in plan.hypotheses][:3] == [0, 1, 2]


def test_mistakes_in_a_plan_are_named(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    for text, message in (
        ('[[runs]]\nset = ["a"]', "has 'set' where there are backbones"),
        ("[[runs]]\n", "missing 1 required positional argument: 'sets'"),
        ('[[build]]\nlevel = "human"', r"\[\[build\]\] needs 'output'"),
        ('[[build]]\nlevel = "word"\noutput = "x"\ntask = "sst2"', "unknown level 'word'"),
        ("[[run]]\n", "has 'run'; there are output"),
        ("[[", "cannot read a study of difficulty"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            read_plan(path)
