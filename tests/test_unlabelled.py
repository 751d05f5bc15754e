"""Texts without labels for a task: none of its dev or test, the same with the same seed."""

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from hashee.data.task import Examples, Kind, Task, TaskData
from hashee.data.texts import read_texts

SUBJECTS = ("the cat", "a dog", "my zebra", "every film", "no story", "this plot")
PLACES = ("on the mat", "in the garden", "near the river", "under an old bridge", "behind the cinema")
SENTENCES = [f"{subject.capitalize()} sat {place} today." for subject in SUBJECTS for place in PLACES]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "unlabelled.py"
    spec = importlib.util.spec_from_file_location("unlabelled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three documents of ten sentences, as reviews and as articles."""
    documents = [SENTENCES[start : start + 10] for start in range(0, len(SENTENCES), 10)]
    write(tmp_path / "IMDb-unsup-text" / "all.jsonl.gz", "text", ["<br /><br />".join(each) for each in documents])
    write(tmp_path / "XSum" / "train.jsonl.gz", "document", ["\n".join(each) for each in documents])
    return tmp_path


def write(path: Path, column: str, texts: list[str]) -> None:
    path.parent.mkdir()
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({column: text}) + "\n" for text in texts)


def task(pair: bool = False, dev: tuple[str, ...] = (), test: tuple[str, ...] = ()) -> TaskData:
    """Return a task with some of the sentences in dev and test, in pairs the second text."""
    about = Task("tiny", Kind.CLASSES, ("bad", "good"), "accuracy", pair=pair)
    splits = [Examples([("Not there.", text) if pair else text for text in texts], None) for texts in (dev, test)]
    return TaskData(about, Examples([], []), *splits, fingerprint="")


def test_sentences_of_reviews_are_written_as_the_tasks(made: ModuleType, folder: Path) -> None:
    found = made.unlabelled("sst2", task(), folder, 1000, seed=0)
    assert sorted(found) == sorted(sentence.replace(".", " .") for sentence in SENTENCES)
    assert made.treebank_style("It doesn't, and that's it!") == "It does n't , and that 's it !"
    assert made.unlabelled("imdb", task(), folder, 1000, seed=0)[0].count("sat") == 10, "whole reviews"


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_no_text_of_dev_or_test_is_taken_however_it_is_written(name: str, made: ModuleType, folder: Path) -> None:
    pair = name == "mrpc"
    held_out = task(pair, dev=("the CAT sat on the mat today",), test=("A dog sat  in the garden today .",))
    found = made.unlabelled(name, held_out, folder, 1000, seed=0)
    used = {made.key(part) for text in found for part in (text if pair else [text])}
    every = {made.key(sentence) for sentence in SENTENCES}
    assert every - used == {made.key("The cat sat on the mat today."), made.key("A dog sat in the garden today.")}


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_the_seed_decides_which_texts_are_drawn(name: str, made: ModuleType, folder: Path) -> None:
    data = task(pair=name == "mrpc")
    first, again, other = (made.unlabelled(name, data, folder, 10, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 10


def test_pairs_are_similar_neighbouring_or_random(made: ModuleType, folder: Path) -> None:
    assert made.similar_pairs(["a red cat", "blue dogs bark", "a red cat sat"], [0]) == [("a red cat", "a red cat sat")]
    found = made.unlabelled("mrpc", task(pair=True), folder, 30, seed=0)
    assert len(set(found)) == len(found) > 25
    assert all(first != second for first, second in found)
    order = {made.key(sentence): number for number, sentence in enumerate(SENTENCES)}
    steps = [order[made.key(second)] - order[made.key(first)] for first, second in found]
    assert sum(step == 1 for step in steps) >= 6, "a fifth of them are neighbours"


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_the_file_is_read_as_texts_or_pairs(name: str, made: ModuleType, folder: Path) -> None:
    found = made.unlabelled(name, task(pair=name == "mrpc"), folder, 10, seed=0)
    path = folder / "out.jsonl"
    made.write(path, made.COLUMNS[name], found)
    assert list(read_texts(path)) == found


def test_folders_without_the_sources_are_refused(made: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has none of IMDb-unsup-text"):
        made.unlabelled("sst2", task(), tmp_path, 10, seed=0)
