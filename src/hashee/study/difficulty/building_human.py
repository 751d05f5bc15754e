"""Human-defined difficulty from any data with several labels per row: annotators without a majority, or with one."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashee.data import Columns, Examples
from hashee.data.reading import Rows, read_split
from hashee.data.sources import FileSource
from hashee.data.splits import part_of, shuffled
from hashee.errors import InputError
from hashee.study.difficulty.datasets import FEWEST, DifficultySet, checked

TEST_SHARE = 1000 / 2238
"""The paper's: 1,238 rows to train on, 1,000 to test."""


@dataclass(frozen=True)
class HumanSettings:
    """Which rows are read, and how they are divided."""

    name: str
    files: Sequence[Path]
    labels_column: str = "annotator_labels"
    """A list of labels in each row."""
    columns: Columns = field(default_factory=Columns)
    test_share: float = TEST_SHARE
    seed: int = 0


def build_human(settings: HumanSettings) -> DifficultySet:
    """Return all rows without a majority and as many with one, in equal parts of each label, divided evenly."""
    texts: list[Any] = []
    majorities: list[Any] = []
    for path in settings.files:
        rows = read_annotated(path, settings)
        texts += rows.texts
        majorities += [majority(labels) for labels in rows.labels or ()]
    difficult = [index for index, label in enumerate(majorities) if label is None]
    if not difficult:
        raise InputError(
            f"in every row of {_shown(settings.files)} most annotators agree, so no row is difficult; "
            f"name data whose annotators disagree"
        )
    simple = even_sample(majorities, len(difficult), settings.seed)
    size = min(len(difficult), len(simple))
    chosen = [(index, 0) for index in _drawn(difficult, size, settings.seed)] + [(index, 1) for index in simple[:size]]
    if len(chosen) < 2 * FEWEST:
        raise InputError(
            f"{_shown(settings.files)} has {size} difficult and {size} simple rows, too few to split into train and "
            f"test; give at least {FEWEST} of each"
        )
    cut = round(size * settings.test_share)
    held_out, kept = [*chosen[:cut], *chosen[size : size + cut]], [*chosen[cut:size], *chosen[size + cut :]]
    about = {
        "source": [path.name for path in settings.files],
        "rows": len(majorities),
        "without_majority": len(difficult),
        "seed": settings.seed,
    }
    train, test = (_examples(texts, part, settings.seed) for part in (kept, held_out))
    return checked(DifficultySet(settings.name, "human", train, test, about))


def read_annotated(path: Path, settings: HumanSettings) -> Rows:
    """Read rows with several labels each, refusing rows that have fewer than two."""
    source = FileSource(path)
    available = source.columns()
    column = settings.labels_column
    if column not in available:
        raise InputError(
            f"{path} has no column {column!r} with several labels for each row; its columns are: "
            f"{', '.join(available)}; name another with --labels-column"
        )
    wanted = Columns(settings.columns.text, settings.columns.pair, column)
    rows = read_split(source, wanted, None, labelled=True)
    few = [index for index, labels in enumerate(rows.labels or ()) if not isinstance(labels, list) or len(labels) < 2]
    if few:
        raise InputError(
            f"human-defined difficulty needs several labels for each row; {rows.label_column} has fewer than two in "
            f"{rows.listed(few)}"
        )
    return rows


def majority(labels: Sequence[Any]) -> Any:
    """Return the label that more than half of the annotators chose, None if there is none."""
    label, times = Counter(map(str, labels)).most_common(1)[0]
    return label if 2 * times > len(labels) else None


def even_sample(labels: Sequence[Any], size: int, seed: int) -> list[int]:
    """Return the indices of `size` rows with a label, equally many of each label as far as there are, shuffled."""
    by_label: dict[Any, list[int]] = {}
    for index in shuffled(len(labels), seed):
        if labels[index] is not None:
            by_label.setdefault(labels[index], []).append(index)
    taken: list[int] = []
    queues = [by_label[label] for label in sorted(by_label)]
    while len(taken) < size and any(queues):
        for queue in queues:
            if queue and len(taken) < size:
                taken.append(queue.pop())
    return taken


def _drawn(indices: Sequence[int], size: int, seed: int) -> list[int]:
    return [indices[number] for number in shuffled(len(indices), seed)[:size]]


def _examples(texts: Sequence[Any], chosen: Sequence[tuple[int, int]], seed: int) -> Examples:
    """Return rows in a random order. chosen: (index, 1 for simple) each."""
    examples = Examples([texts[index] for index, _ in chosen], [(simple,) for _, simple in chosen])
    return part_of(examples, shuffled(len(chosen), seed))


def _shown(files: Iterable[Path]) -> str:
    return ", ".join(path.name for path in files)
