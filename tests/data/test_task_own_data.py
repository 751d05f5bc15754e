"""A user's own data become a task: every format, every kind, stable splits."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import reviews, write, write_rows

from hashee import packages as packages_module
from hashee.data import Columns, Examples, Kind, load_task, write_submission
from hashee.errors import HasheeError, InputError


def pairs_of(part: Examples) -> list[tuple[Any, Any]]:
    assert part.targets is not None
    return list(zip(part.texts, part.targets, strict=True))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "csv.gz", "tsv", "tsv.gz", "parquet"])
def test_every_format_gives_the_same_task(tmp_path: Path, ending: str) -> None:
    rows = [{"text": 'a "quoted", word', "label": "b"}, {"text": "two", "label": "a"}, {"text": "three", "label": "b"}]
    train = write_rows(tmp_path / f"mine.{ending}", rows)
    loaded = load_task(train, dev=write_rows(tmp_path / f"dev.{ending}", rows[:2]))
    assert (loaded.task.name, loaded.task.kind, loaded.task.labels) == ("mine", Kind.CLASSES, ("a", "b"))
    assert list(loaded.train.texts) == [row["text"] for row in rows]
    assert list(loaded.train.targets or ()) == [1, 0, 1]
    assert len(loaded.dev) == 2 and loaded.test is None and loaded.task.metric == "accuracy"


@pytest.mark.parametrize("dev_name", ["dev", "validation", "valid", "val"])
def test_a_folder_has_its_splits_by_name(tmp_path: Path, dev_name: str) -> None:
    write_rows(tmp_path / "films" / "train.csv", reviews(10))
    write_rows(tmp_path / "films" / f"{dev_name}.csv", reviews(4, 10))
    write_rows(tmp_path / "films" / "test.csv", [{"text": "unknown"}, {"text": "too"}])
    write(tmp_path / "films" / "README.md", "what this is")
    loaded = load_task(str(tmp_path / "films"))
    assert loaded.task.name == "films" and loaded.notes == ()
    assert (len(loaded.train), len(loaded.dev)) == (10, 4)
    assert loaded.test is not None and loaded.test.targets is None and list(loaded.test.texts) == ["unknown", "too"]


def test_a_test_set_may_have_other_columns_and_answers(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", reviews(8))
    test = write_rows(tmp_path / "t.jsonl", [{"id": 5, "text": "x", "source": "web", "label": "good"}])
    loaded = load_task(train, test=test)
    assert loaded.test is not None and loaded.test.targets == [1]
    hidden = write_rows(tmp_path / "hidden.jsonl", [{"id": 5, "text": "x", "source": "web", "lang": "en"}])
    loaded = load_task(train, test=hidden)
    assert loaded.test is not None and loaded.test.targets is None


def test_a_missing_dev_split_is_cut_off_in_proportion(tmp_path: Path) -> None:
    rows = [{"text": f"t{number}", "label": "rare" if number % 10 == 0 else "often"} for number in range(1000)]
    loaded = load_task(write_rows(tmp_path / "a.jsonl", rows))
    assert (len(loaded.train), len(loaded.dev)) == (900, 100)
    assert list(loaded.dev.targets or ()).count(1) == 10
    assert set(loaded.train.texts) | set(loaded.dev.texts) == {row["text"] for row in rows}
    assert any("100 rows were cut off train" in note for note in loaded.notes)
    for split, part in (("train", loaded.train), ("dev", loaded.dev)):
        names = [{"text": text, "label": loaded.task.labels[int(target)]} for text, target in pairs_of(part)]
        write_rows(tmp_path / "cut" / f"{split}.csv", names)
    assert load_task(tmp_path / "cut").fingerprint == loaded.fingerprint
    again, other = load_task(tmp_path / "a.jsonl"), load_task(tmp_path / "a.jsonl", seed=1)
    assert list(again.dev.texts) == list(loaded.dev.texts) != list(other.dev.texts)
    assert again.fingerprint == loaded.fingerprint != other.fingerprint


def test_limit_takes_a_stated_part_that_grows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", reviews(100))
    whole, ten, twenty = load_task(path), load_task(path, limit=10), load_task(path, limit=20)
    assert len(ten.train) == 10 and set(ten.train.texts) < set(twenty.train.texts) < set(whole.train.texts)
    assert list(ten.train.texts) != list(whole.train.texts)[:10]
    assert list(ten.dev.texts) == list(whole.dev.texts)
    assert "train is 10 of 80 rows, drawn with seed 0" in ten.notes
    assert len({part.fingerprint for part in (whole, ten, twenty)}) == 3
    assert load_task(path, limit=80).fingerprint == load_task(path, limit=10_000).fingerprint == whole.fingerprint


def test_the_fingerprint_is_that_of_texts_and_answers(tmp_path: Path) -> None:
    def fingerprint(name: str, rows: list[dict[str, Any]], **options: Any) -> str:
        return load_task(write_rows(tmp_path / name, rows), dev=dev, **options).fingerprint

    dev = write_rows(tmp_path / "dev.jsonl", reviews(2, 100))
    same = fingerprint("a.jsonl", reviews(6))
    assert fingerprint("b.csv", reviews(6)) == same and len(same) == 64
    relabelled = [row | {"label": "good" if row["text"] == "review 0" else row["label"]} for row in reviews(6)]
    pairs = [
        {"sentence1": "ab", "sentence2": "c", "label": "good"},
        {"sentence1": "x", "sentence2": "y", "label": "bad"},
    ]
    assert len({same, fingerprint("c.csv", relabelled), fingerprint("d.csv", reviews(6)[::-1])}) == 3
    dev = write_rows(tmp_path / "pairs.jsonl", pairs[:1])
    moved = [pairs[0] | {"sentence1": "a", "sentence2": "bc"}, pairs[1]]
    assert fingerprint("e.jsonl", pairs) != fingerprint("f.jsonl", moved)


# --- kinds ---


def kind_of(tmp_path: Path, values: list[Any], column: str = "label", **options: Any) -> Any:
    rows = [{"text": f"text {number}", column: value} for number, value in enumerate(values)]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_task(path, **options).task


def test_the_kind_is_told_from_the_answers(tmp_path: Path) -> None:
    assert kind_of(tmp_path, [0, 1] * 5).labels == ("0", "1")
    assert kind_of(tmp_path, [True, False] * 5).labels == ("0", "1")
    assert kind_of(tmp_path, [10, 9, 2] * 5).labels == ("2", "9", "10")
    assert kind_of(tmp_path, [1.0, 0.0] * 5).labels == ("0", "1")
    assert kind_of(tmp_path, [1, 0] * 5, column="score").kind is Kind.SCORE
    task = kind_of(tmp_path, [0.5, 1.5, 3.0] * 5)
    assert (task.kind, task.labels, task.metric) == (Kind.SCORE, (), "pearson_and_spearman")
    assert kind_of(tmp_path, [float(number) for number in range(30)]).kind is Kind.SCORE
    assert kind_of(tmp_path, [1, 2, 3] * 5, kind="regression").kind is Kind.SCORE
    assert kind_of(tmp_path, [0.5, 1.5] * 5, kind=Kind.CLASSES).labels == ("0.5", "1.5")
    assert kind_of(tmp_path, ["a", 1] * 5, kind="classification").labels == ("1", "a")


def test_lists_of_names_or_numbers_are_labels_that_apply(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "a.jsonl",
        [{"text": str(number), "labels": labels} for number, labels in enumerate([["x", "y"], [], ["z"], ["x"]] * 3)],
    )
    loaded = load_task(path, dev=write_rows(tmp_path / "d.jsonl", [{"text": "q", "labels": ["z", "x"]}]))
    assert (loaded.task.kind, loaded.task.labels, loaded.task.metric) == (Kind.LABELS, ("x", "y", "z"), "micro_f1")
    assert list(loaded.train.targets or ())[:4] == [(1, 1, 0), (0, 0, 0), (0, 0, 1), (1, 0, 0)]
    assert loaded.dev.targets == [(1, 0, 1)]
    assert kind_of(tmp_path, [[0, 12], [3], [12]] * 4, "labels").labels == ("0", "3", "12")


def test_zeros_and_ones_for_every_label(tmp_path: Path) -> None:
    task = kind_of(tmp_path, [[0, 1, 1], [1, 0, 0], [0, 0, 0]] * 4, "labels")
    assert (task.kind, task.labels) == (Kind.LABELS, ("0", "1", "2"))
    rows = [{"id": n, "text": str(n), "toxic": n % 2, "rude": n % 3 == 0, "threat": 0} for n in range(12)]
    for columns in (None, Columns(label=("toxic", "rude", "threat"))):
        loaded = load_task(write_rows(tmp_path / "b.jsonl", rows), columns=columns)
        assert (loaded.task.kind, loaded.task.labels) == (Kind.LABELS, ("toxic", "rude", "threat"))
        expected = {row["text"]: (row["toxic"], int(row["rude"]), 0) for row in rows}
        assert list(loaded.train.targets or ()) == [expected[str(text)] for text in loaded.train.texts]
    csv = load_task(write_rows(tmp_path / "c.csv", [row | {"rude": int(row["rude"])} for row in rows]))
    assert csv.fingerprint == loaded.fingerprint


def test_how_lists_are_written_is_decided_by_train_alone(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "a.jsonl", [{"text": str(n), "labels": [n % 3, 3]} for n in range(12)])
    dev = write_rows(tmp_path / "d.jsonl", [{"text": "q", "labels": [0, 1]}])
    assert load_task(train, dev=dev).dev.targets == [(1, 1, 0, 0)]


def test_words_with_tags_are_a_tagging_task(tmp_path: Path) -> None:
    rows = [{"text": "Ann left", "tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}] * 3
    rows += [{"text": "so what", "tokens": ["so", "what"], "tags": ["O", "O"]}] * 3
    loaded = load_task(write_rows(tmp_path / "a.jsonl", rows), dev=write_rows(tmp_path / "d.jsonl", rows[2:4]))
    assert (loaded.task.kind, loaded.task.labels, loaded.task.metric) == (Kind.TAGS, ("B-PER", "O"), "span_f1")
    assert loaded.train.texts[0] == ("Ann", "left") and (loaded.train.targets or ())[0] == (0, 1)
    plain = [{"words": ["a", "b"], "labels": ["DET", "NOUN"]}] * 8
    assert load_task(write_rows(tmp_path / "b.jsonl", plain)).task.metric == "tag_accuracy"


def test_words_without_tags_are_joined(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", f"w{number}"], "label": number % 2} for number in range(8)]
    loaded = load_task(write_rows(tmp_path / "a.jsonl", rows))
    assert loaded.task.kind is Kind.CLASSES and loaded.train.texts[0].startswith("a w")  # type: ignore[union-attr]


def test_pairs_and_named_columns(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": f"a{n}", "right": n % 2, "label": "other"} for n in range(8)]
    path = write_rows(tmp_path / "a.csv", rows)
    loaded = load_task(path, columns=Columns(text="question", pair="answer", label="right"))
    assert loaded.task.pair and loaded.task.labels == ("0", "1")
    assert loaded.train.texts[0] in {(f"q{n}", f"a{n}") for n in range(8)}


def test_data_called_like_a_benchmark_are_still_ones_own(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": n % 3 + 1} for n in range(9)]
    for name in ("sst2", "banking77"):
        task = load_task(write_rows(tmp_path / f"{name}.csv", rows)).task
        assert (task.name, task.labels) == (name, ("1", "2", "3"))
        assert write_submission(tmp_path / "out.tsv", task, [2]).read_text() == "index\tprediction\n0\t3\n"


# --- the datasets package ---


def test_datasets_objects_keep_the_names_of_their_classes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])})
    train = datasets.Dataset.from_dict({"text": [f"t{n}" for n in range(10)], "label": [0, 1] * 5}, features=features)
    test = datasets.Dataset.from_dict({"text": ["x", "y"], "label": [-1, -1]}, features=features)
    loaded = load_task(datasets.DatasetDict(train=train.with_format("numpy"), test=test))
    assert loaded.task.labels == ("pos", "neg")
    assert loaded.test is not None and loaded.test.targets is None
    assert len(loaded.train) + len(loaded.dev) == 10
    alone = load_task(train, test=test)
    assert alone.fingerprint == loaded.fingerprint
    train.to_parquet(tmp_path / "train.parquet")
    assert load_task(tmp_path / "train.parquet", test=test).fingerprint == loaded.fingerprint


def test_tags_that_are_numbers_get_their_names(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-X", "I-X"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    data = datasets.Dataset.from_dict({"tokens": [["a", "b"]] * 8, "ner_tags": [[0, 1]] * 8}, features=features)
    loaded = load_task(data)
    assert (loaded.task.labels, loaded.task.metric) == (("O", "B-X", "I-X"), "span_f1")
    data.to_parquet(tmp_path / "train.parquet")
    assert load_task(tmp_path / "train.parquet").fingerprint == loaded.fingerprint


@pytest.fixture
def datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return datasets


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_a_folder_laid_out_as_on_the_hub(tmp_path: Path, datasets_cache: Any, ending: str) -> None:
    folder = tmp_path / "films"
    write_rows(folder / "data" / f"train-00000-of-00002.{ending}", reviews(6))
    write_rows(folder / "data" / f"train-00001-of-00002.{ending}", reviews(6, 6))
    write_rows(folder / "data" / f"validation-00000-of-00001.{ending}", reviews(4, 20))
    loaded = load_task(folder)
    assert (len(loaded.train), len(loaded.dev), loaded.task.labels) == (12, 4, ("bad", "good"))
    assert list(loaded.train.texts) == [f"review {number}" for number in range(12)]


def test_what_is_neither_here_nor_on_the_hub_is_said(tmp_path: Path, datasets_cache: Any) -> None:
    with pytest.raises(InputError, match=r"nobody/nothing is no task \(sst2.*the Hub did not give it"):
        load_task("nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"has no file train.*and the datasets package cannot load it either"):
        load_task(tmp_path / "empty")


def test_the_extra_is_named_where_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(packages_module.importlib, "import_module", missing)
    with pytest.raises(HasheeError, match=r"needs the package datasets .*hashee\[train\]"):
        load_task("owner/name")
