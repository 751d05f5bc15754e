"""Loading a task with its examples: a benchmark by its name, or a user's own data."""

import os
from dataclasses import replace
from pathlib import Path
from typing import cast

from hashee.data.columns import NAME_TEXTS, Columns
from hashee.data.fingerprint import fingerprint_of
from hashee.data.kinds import infer_kind
from hashee.data.reading import Rows, read_split
from hashee.data.registry import TASKS, Layout, layout_of, registered
from hashee.data.sources import Source
from hashee.data.split_sources import Data, benchmark_folder, find_sources
from hashee.data.splits import cut_off_dev, first_of_shuffled
from hashee.data.targets import rows_with_label
from hashee.data.task import Examples, Kind, Task, TaskData, Words
from hashee.data.task_types import TASK_TYPES, type_of
from hashee.data.texts import Text
from hashee.errors import InputError

_DEV_SHARE = 0.1


def load_task(
    name_or_path: Data,
    *,
    data: Data = None,
    columns: Columns | None = None,
    dev: Data = None,
    test: Data = None,
    kind: Kind | str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> TaskData:
    """Load a registered task by its name, or make a task of a file, a folder, a Hub id or a `datasets` object.

    data: where a registered task's examples are, instead of the folder that `HASHEE_DATA` names.
    columns, kind: what is otherwise inferred from the data. dev, test: a file or `Dataset` each.
    limit: train on that many examples only. seed: of that choice, and of a dev split that is cut off train.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} must be at least 1")
    known, kind = _known_task(name_or_path, data, kind)
    # Which columns are read follows from what is known of the task, which for others is only its kind.
    writing = known is None and kind is not None and TASK_TYPES[kind].writes_text
    expected = Task("", kind, (), "") if kind is not None and writing else known
    layout = None if known is None else layout_of(known)
    if known is not None and layout is not None and data is None:
        data = benchmark_folder(known.name, layout)
    sources = find_sources(name_or_path if known is None else data, layout, dev, test)
    columns = columns or Columns()
    notes = list(sources.notes)

    rows = _read(sources.train, columns, (known, expected), "train", notes)
    task = _new_task(rows, _name_of(name_or_path), kind) if known is None else known
    if not task.labels:
        task = replace(task, labels=type_of(task).label_names(rows))
    # Labels that are read from train are not fixed by the benchmark, so they are treated like those of any other data.
    given = layout if known is not None and known.labels else None
    train = _examples(rows, rows, task, given)
    assert train.targets is not None
    type_of(task).refuse_constant(rows, train.targets)

    # Labels that have a column each are not guessed again for dev and test.
    columns = replace(columns, label=rows.columns.label) if rows.one_column_each else columns
    others = {"dev": sources.dev, "test": sources.test}
    found = {
        split: _examples(_read(source, columns, (known, expected), split, notes), rows, task, given)
        for split, source in others.items()
        if source is not None
    }
    _refuse_equal_splits({"train": train} | found)
    if "dev" not in found:
        share = _DEV_SHARE if layout is None else layout.dev_share
        train, found["dev"] = cut_off_dev(train, type_of(task), share, seed)
        notes.append(f"there is no dev split: {len(found['dev']):,} rows were cut off train (seed {seed})")
    notes += _notes_on_sizes(layout, {"train": train} | found) + _notes_on_overlap(train, found)
    if limit is not None and limit < len(train):
        notes.append(f"train is {limit:,} of {len(train):,} rows, drawn with seed {seed}")
        train = first_of_shuffled(train, limit, seed)
    splits = (train, found["dev"], found.get("test"))
    return TaskData(task, *splits, fingerprint_of(task, *splits), tuple(notes))


def _known_task(name_or_path: Data, data: Data, kind: Kind | str | None) -> tuple[Task | None, Kind | None]:
    """Return the registered task of that name, if there is one, and the kind that was given."""
    if kind is not None and kind not in list(Kind):
        raise InputError(f"kind={kind!r} is not one of {', '.join(Kind)}")
    kind = None if kind is None else Kind(kind)
    key = registered(name_or_path) if isinstance(name_or_path, str) else None
    if key is None:
        if data is not None:
            raise InputError(f"data= goes with one of the tasks {', '.join(TASKS)}, not with {name_or_path}")
        return None, kind
    task = TASKS[key]
    if kind not in (None, task.kind):
        raise InputError(f"{key} is a {task.kind} task; leave out kind={str(kind)!r} or pass the path of your data")
    return task, kind


def _new_task(rows: Rows, name: str, kind: Kind | None) -> Task:
    kind = kind or infer_kind(rows)
    task_type = TASK_TYPES[kind]
    labels = task_type.label_names(rows)
    metric = task_type.default_metric(labels)
    return Task(name, kind, labels, metric, pair=rows.pair, recipe=task_type.recipe)


def _name_of(data: Data) -> str:
    """Return what to call a task that has no name: its file, or its folder if the file is just `train`."""
    if not isinstance(data, str | os.PathLike):
        return "data"
    path = Path(data)
    stem = path.name.split(".")[0]
    return path.resolve().parent.name if stem in ("", "train") else stem


def _read(
    source: Source, columns: Columns, task: tuple[Task | None, Task | None], split: str, notes: list[str]
) -> Rows:
    """Read a split. task: the registered one, and what is expected of the data."""
    known, expected = task
    rows = read_split(source, columns, expected, labelled=split != "test")
    rows, note = rows_with_label(rows, benchmark=known is not None, may_be_hidden=split == "test")
    if note is not None:
        notes.append(note)
    return rows


def _refuse_another_shape(rows: Rows, train: Rows) -> None:
    if train.pair != rows.pair:
        what = {True: "pairs of texts", False: "single texts"}
        raise InputError(
            f"{rows.source.name} has {what[rows.pair]} but {train.source.name} has {what[train.pair]}; {NAME_TEXTS}"
        )


def _examples(rows: Rows, train: Rows, task: Task, given: Layout | None) -> Examples:
    _refuse_another_shape(rows, train)
    task_type = type_of(task)
    if task_type.tags_words and not rows.words:
        raise InputError(f"{rows.source.name} has whole texts; a tagging task needs a list of words for each")
    texts = rows.texts
    if rows.words and not task_type.tags_words:
        texts = [" ".join(cast(Words, words)) for words in texts]
    targets = None if rows.labels is None else task_type.read_targets(rows, task, train, given)
    return Examples(texts, targets)


def _refuse_equal_splits(splits: dict[str, Examples]) -> None:
    names = list(splits)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            if list(splits[first].texts) == list(splits[second].texts):
                raise InputError(f"{first} and {second} hold the same texts; give each split data of its own")


def _notes_on_sizes(layout: Layout | None, splits: dict[str, Examples]) -> list[str]:
    if layout is None or layout.sizes is None:
        return []
    return [
        f"{split} has {len(splits[split]):,} examples; by the benchmark's definition it has {size:,}"
        for split, size in zip(("train", "dev", "test"), layout.sizes, strict=True)
        if split in splits and len(splits[split]) != size
    ]


def _notes_on_overlap(train: Examples, others: dict[str, Examples]) -> list[str]:
    seen: set[Text | Words] = set(train.texts)
    shared = {split: sum(text in seen for text in examples.texts) for split, examples in others.items()}
    return [f"{count:,} texts of {split} are in train too" for split, count in shared.items() if count]
