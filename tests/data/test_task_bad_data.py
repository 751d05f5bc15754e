"""Data that cannot be learnt from are refused in one line: the file, the place, the value and what to do."""

import json
from pathlib import Path
from typing import Any

import pytest
from task_files import reviews, write, write_rows

from hashee.data import Columns, load_task
from hashee.errors import InputError


def refused(*parts: str, **options: Any) -> None:
    with pytest.raises(InputError) as caught:
        load_task(**options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def train(tmp_path: Path, rows: list[dict[str, Any]], name: str = "mine.jsonl") -> Path:
    return write_rows(tmp_path / name, rows)


def test_unknown_columns(tmp_path: Path) -> None:
    path = train(tmp_path, reviews(4))
    for columns, missing in (
        (Columns(text="txt"), "'txt'"),
        (Columns(label="gold"), "'gold'"),
        (Columns(text="text", pair="other"), "'other'"),
        (Columns(label=("label", "gold")), "'gold'"),
    ):
        refused("mine.jsonl", missing, "text, label", name_or_path=path, columns=columns)
    with pytest.raises(InputError, match="needs text="):
        Columns(pair="other")
    odd = train(tmp_path, [{"body": "a", "verdict": "x"}] * 2, "odd.csv")
    refused("odd.csv", "looks like text", "Columns(text=", "body, verdict", name_or_path=odd)
    refused("odd.csv", "'label' or 'score'", "Columns(label=", name_or_path=odd, columns=Columns(text="body"))
    several = train(tmp_path, [{"text": "a", "x": 1, "y": 2}] * 2, "several.csv")
    refused("several.csv", "columns of only 0 and 1", "text, x, y", name_or_path=several)
    twice = write(tmp_path / "twice.csv", "text,label,label\na,1,2\n")
    refused("twice.csv", "two columns named 'label'", name_or_path=twice)


@pytest.mark.parametrize(("name", "separator"), [("a.csv", ";"), ("a.csv", "\t"), ("a.csv", "|"), ("a.tsv", ",")])
def test_the_wrong_separator(tmp_path: Path, name: str, separator: str) -> None:
    path = write(tmp_path / name, f"text{separator}label\nfine{separator}1\n")
    refused(name, "single column", "separated by", "as .tsv with tabs", name_or_path=path)
    own = "\t" if name.endswith("tsv") else ","
    write(path, f"text{separator}label\nfine{own} or not{separator}1\n")
    refused(name, "single column", "separated by", name_or_path=path)


@pytest.mark.parametrize("nothing", ["null", '""', "NaN"])
def test_missing_labels(tmp_path: Path, nothing: str) -> None:
    lines = [json.dumps(row) for row in reviews(10)]
    lines[3] = f'{{"text": "a", "label": {nothing}}}'
    lines[7] = f'{{"text": "b", "label": {nothing}}}'
    refused("mine.jsonl", "'label'", "lines 4, 8", name_or_path=write(tmp_path / "mine.jsonl", "\n".join(lines)))


def test_missing_labels_in_csv_and_in_dev(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\n" + "x,1\n" * 5 + "y,\n" * 8)
    refused("a.csv", "lines 7, 8, 9, 10, 11 and 3 more", name_or_path=path)
    good = train(tmp_path, reviews(6))
    refused(
        "dev.jsonl", "line 1;", name_or_path=good, dev=write(tmp_path / "dev.jsonl", '{"text": "a", "label": null}')
    )
    without = train(tmp_path, [{"text": "a"}], "bare.jsonl")
    refused("bare.jsonl", "'label' or 'score'", name_or_path=good, dev=without)


def test_labels_of_mixed_types(tmp_path: Path) -> None:
    rows = [*reviews(4), {"text": "x", "label": 3}]
    refused("mine.jsonl", "3 in line 5", "'bad' in line 1", "kind='classification'", name_or_path=train(tmp_path, rows))
    path = write(tmp_path / "a.csv", "text,label\na,1\nb,2\nc,three\n")
    refused("a.csv", "1 in line 2", "'three' in line 4", name_or_path=path)
    lists = [{"text": "x", "label": ["a"]}, {"text": "y", "label": "a"}]
    refused("lists in some rows", name_or_path=train(tmp_path, lists))
    refused("line 1", "of type dict", name_or_path=train(tmp_path, [{"text": "x", "label": {"a": 1}}]))
    nested = [{"text": "x", "label": [["a"]]}, {"text": "y", "label": [None]}]
    refused("line 1", "[['a']]", name_or_path=train(tmp_path, nested))
    refused("line 1", "[None]", name_or_path=train(tmp_path, nested[1:]))
    listed = train(tmp_path, [{"text": "x", "label": ["a"]}] * 2)
    refused("line 1", "is a list", name_or_path=listed, kind="classification")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"text": "x", "label": "good"}, "class"),
        ({"text": "x", "label": 2.5}, "score"),
        ({"tokens": ["x", "y"], "tags": ["O", "O"]}, "tag"),
        ({"text": "x", "labels": ["a"]}, "set of labels"),
    ],
)
def test_one_class_only(tmp_path: Path, row: dict[str, Any], what: str) -> None:
    refused("mine.jsonl", f"only one {what}", "5 rows", name_or_path=train(tmp_path, [row] * 5))


@pytest.mark.parametrize("split", ["dev", "test"])
def test_labels_that_train_never_had(tmp_path: Path, split: str) -> None:
    other = train(tmp_path, [{"text": "x", "label": "good"}, {"text": "y", "label": "ugly"}], "other.jsonl")
    options = {"name_or_path": train(tmp_path, reviews(6)), split: other}
    refused("other.jsonl", "'ugly'", "line 2", "among the labels of train", "bad, good", **options)


def test_tags_and_multi_labels_that_train_never_had(tmp_path: Path) -> None:
    words = train(tmp_path, [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}] * 4)
    other = train(tmp_path, [{"tokens": ["c", "d"], "tags": ["O", "I-Y"]}], "dev.jsonl")
    refused("dev.jsonl", "'I-Y'", "line 1", name_or_path=words, dev=other)
    labels = train(tmp_path, [{"text": "a", "labels": ["x"]}, {"text": "b", "labels": ["y"]}] * 4)
    other = train(tmp_path, [{"text": "c", "labels": ["x", "z"]}], "dev.jsonl")
    refused("dev.jsonl", "'z'", "line 1", name_or_path=labels, dev=other)


@pytest.mark.parametrize("blank", ["", "  ", "\u3000"])
def test_blank_texts(tmp_path: Path, blank: str) -> None:
    rows = reviews(6)
    rows[2]["text"] = rows[4]["text"] = blank
    refused("mine.jsonl", "blank text in lines 3, 5", name_or_path=train(tmp_path, rows))
    pairs = [{"premise": "a", "hypothesis": blank, "label": 1}, {"premise": "b", "hypothesis": "c", "label": 0}]
    refused("blank text in line 1;", name_or_path=train(tmp_path, pairs))
    words = [{"tokens": ["a"], "tags": ["O"]}, {"tokens": [], "tags": []}]
    refused("blank text in line 2;", name_or_path=train(tmp_path, words))


def test_texts_that_are_no_texts(tmp_path: Path) -> None:
    refused("line 1", "missing", name_or_path=train(tmp_path, [{"text": None, "label": 1}]))
    refused("line 1", "of type int", name_or_path=train(tmp_path, [{"text": 5, "label": 1}]))
    mixed = [{"text": "a", "label": 1}, {"text": ["b"], "label": 2}]
    refused("line 2", "list of words", "line 1", name_or_path=train(tmp_path, mixed))
    surrogate = write(tmp_path / "s.jsonl", '{"text": "\\ud800", "label": 1}\n')
    refused("s.jsonl, line 1", "surrogate", name_or_path=surrogate)
    refused("plain text", name_or_path=write(tmp_path / "a.txt", "text\tlabel\n"))


def test_broken_utf8(tmp_path: Path) -> None:
    refused("a.csv, line 3", "UTF-8", name_or_path=write(tmp_path / "a.csv", b"text,label\na,1\n\xe9,0\n"))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv.gz"])
def test_empty_files(tmp_path: Path, name: str) -> None:
    refused(name, "is empty", name_or_path=write(tmp_path / name, ""))
    if "jsonl" not in name:
        separator = "\t" if "tsv" in name else ","
        refused(name, "no rows", name_or_path=write(tmp_path / name, f"text{separator}label\n"))


def test_scores_that_are_no_scores(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"text": f"t{n}", "score": n / 2} for n in range(6)]
    words = train(tmp_path, [*rows, {"text": "x", "score": "high"}])
    refused("mine.jsonl", "'high' in line 7", name_or_path=words)
    refused("mine.jsonl, line 7", "'high'", "finite number", name_or_path=words, kind="regression")
    csv = write(tmp_path / "a.csv", "text,score\na,1.5\nb,nan\n")
    refused("a.csv", "'nan' in line 3", name_or_path=csv)
    nan = write(tmp_path / "n.jsonl", '{"text": "a", "score": 1.5}\n{"text": "b", "score": NaN}\n')
    refused("n.jsonl", "NaN", "line 2", name_or_path=nan)
    infinite = write(tmp_path / "i.jsonl", '{"text": "a", "score": 1.5}\n{"text": "b", "score": Infinity}\n')
    refused("i.jsonl, line 2", "inf", "finite", name_or_path=infinite)


def test_tags_and_words_of_different_length(tmp_path: Path) -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"tokens": ["a", "b"], "tags": ["O"]}]
    refused("mine.jsonl, line 2", "2 words but 1 tags", name_or_path=train(tmp_path, rows))
    texts = [{"text": "a b", "tags": ["O", "B-X"]}] * 2
    refused("list of words", name_or_path=train(tmp_path, texts), kind="tagging", columns=Columns(label="tags"))


def test_labels_that_could_be_two_things(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "labels": [n % 2, 1 - n % 2]} for n in range(6)]
    refused("mine.jsonl", "by name", name_or_path=train(tmp_path, rows))
    unique = [{"text": f"t{n}", "label": n} for n in range(50)]
    refused("50 different values in 50 rows", "kind='regression'", name_or_path=train(tmp_path, unique))
    vectors = train(tmp_path, [{"text": f"t{n}", "labels": [n % 2, 1, 1]} for n in range(6)])
    dev = train(tmp_path, [{"text": "x", "labels": [1, 0]}], "dev.jsonl")
    refused("dev.jsonl, line 1", "2 zeros and ones for 3 labels", name_or_path=vectors, dev=dev)
    columns = train(tmp_path, [{"text": f"t{n}", "a": n % 2, "b": 1} for n in range(6)])
    dev = train(tmp_path, [{"text": "x", "a": 1, "b": 2}], "dev.jsonl")
    refused("dev.jsonl, line 1", "'b' is 2", name_or_path=columns, dev=dev)


def test_the_same_split_twice(tmp_path: Path) -> None:
    path = train(tmp_path, reviews(6), "train.jsonl")
    refused("both train and dev", name_or_path=path, dev=tmp_path / "." / "train.jsonl")
    copy = train(tmp_path, reviews(6), "copy.csv")
    refused("train and test hold the same texts", name_or_path=path, test=copy)
    dev = train(tmp_path, reviews(6, 50), "dev.jsonl")
    refused(
        "dev and test hold the same texts", name_or_path=path, dev=dev, test=train(tmp_path, reviews(6, 50), "t.csv")
    )
    train(tmp_path, reviews(6), "validation.jsonl")
    refused("several files for dev", "dev.jsonl, validation.jsonl", name_or_path=tmp_path)
    folder = tmp_path / "again"
    for name in ("train.csv", "train.jsonl"):
        train(folder, reviews(6), name)
    refused("several files for train", "train.csv, train.jsonl", name_or_path=folder)


def test_splits_of_different_shape(tmp_path: Path) -> None:
    pairs = [{"premise": f"p{n}", "hypothesis": "h", "label": ("bad", "good")[n % 2]} for n in range(6)]
    dev = train(tmp_path, reviews(2), "dev.jsonl")
    refused("dev.jsonl", "single texts", "pairs", name_or_path=train(tmp_path, pairs), dev=dev)


def test_too_few_rows_for_a_dev_split(tmp_path: Path) -> None:
    refused("2 rows are too few", "dev=", name_or_path=train(tmp_path, reviews(2)))


def test_arguments_that_cannot_be_meant(tmp_path: Path) -> None:
    path = train(tmp_path, reviews(6))
    refused("limit=0", name_or_path=path, limit=0)
    refused("kind='sorting'", "regression", name_or_path=path, kind="sorting")
    refused("data= goes with", "sst2", name_or_path=path, data=tmp_path)
    refused("sst2 is a classification task", name_or_path="sst2", kind="regression")
    refused("neither a file nor a folder nor a task", "sst2, imdb", name_or_path="sst3")
    refused("does/not/exist.csv", name_or_path="does/not/exist.csv")
    refused("owner/file.csv is neither", name_or_path="owner/file.csv")
    refused("of type int", name_or_path=5)
    refused("dev='nowhere.csv' is not a file", name_or_path=path, dev="nowhere.csv")
    refused("test is of type int", name_or_path=path, test=5)


def test_dataset_dictionaries_without_train_or_with_two_dev_splits() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(reviews(4))
    refused("no split 'train'", "test", name_or_path={"test": data})
    refused("several splits for dev", name_or_path={"train": data, "dev": data, "validation": data})
    refused("must be a Dataset", name_or_path={"train": reviews(4)})
    refused("both train and test", name_or_path={"train": data, "test": data})
