"""Which columns of a file hold the texts and the answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from hashee.data.task import Kind, Task
from hashee.data.texts import LABEL_COLUMNS, TEXT_COLUMNS
from hashee.errors import InputError

# Each in the order in which they are tried; the names after hashee's own are those of GLUE, MSRP and CoNLL files.
_TEXTS = (*TEXT_COLUMNS, ("#1 String", "#2 String"))
_WORDS = (("tokens",), ("words",))
_LABELS = (*LABEL_COLUMNS, "labels", "gold_label", "Quality")
_TAGS = ("tags", "ner_tags", "labels")
_NEVER_LABELS = frozenset({"id", "idx", "index", "guid", "pairID", "captionID", "#1 ID", "#2 ID"})
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
NAME_TEXTS = "name them with --text-column and --pair-column (Python: Columns(text=..., pair=...))"
"""What to do where the columns of texts are not found, or not the wanted ones."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; what is left out is guessed."""

    text: str | None = None
    pair: str | None = None
    """Column of the second text of each pair."""
    label: str | tuple[str, ...] | None = None
    """Column of the answers; several columns of 0 and 1 are the labels of a multi-label task."""

    def __post_init__(self) -> None:
        if self.pair is not None and self.text is None:
            raise InputError(f"pair={self.pair!r} needs text= for the first text of each pair")


@dataclass(frozen=True)
class Chosen:
    """The columns of one file that are read."""

    text: tuple[str, ...]
    label: tuple[str, ...]
    """None, one, or those of a multi-label task."""
    guessed_labels: bool = False
    """Whether `label` is just every column that is left over."""


def choose_columns(place: str, there: Sequence[str], wanted: Columns, task: Task | None, labelled: bool) -> Chosen:
    """Choose from the columns that are `there`, as named or, for a known task, as its data are usually named.

    labelled: whether the answers must be there; without them `Chosen.label` is empty.
    """
    _refuse_odd_columns(place, there)
    text = _text_columns(place, there, wanted, task)
    label = _named_labels(wanted)
    if label:
        missing = [name for name in label if name not in there]
        if not missing:
            return Chosen(text, label)
        if labelled:
            raise InputError(f"{place} has no column {missing[0]!r}; its columns are: {', '.join(there)}")
        return Chosen(text, ())
    tagging = text in _WORDS if task is None else task.kind is Kind.TAGS
    for guess in (*_TAGS, *_LABELS) if tagging else _LABELS:
        if guess in there:
            return Chosen(text, (guess,))
    rest = tuple(name for name in there if name not in text and name not in _NEVER_LABELS)
    if task is None and labelled and len(rest) > 1:
        return Chosen(text, rest, guessed_labels=True)
    if labelled:
        raise no_label_column(place, there)
    return Chosen(text, ())


def no_label_column(place: str, there: Sequence[str]) -> InputError:
    """Return the error for a file in which nothing looks like answers."""
    return InputError(
        f"{place} has no column 'label' or 'score' and no set of columns of only 0 and 1; "
        f"name the label column with --label-column (Python: Columns(label=...)), one of: {', '.join(there)}"
    )


def _named_labels(wanted: Columns) -> tuple[str, ...]:
    if wanted.label is None:
        return ()
    return (wanted.label,) if isinstance(wanted.label, str) else tuple(wanted.label)


def _text_columns(place: str, there: Sequence[str], wanted: Columns, task: Task | None) -> tuple[str, ...]:
    if wanted.text is not None:
        named = (wanted.text,) if wanted.pair is None else (wanted.text, wanted.pair)
        for name in named:
            if name not in there:
                raise InputError(f"{place} has no column {name!r}; its columns are: {', '.join(there)}")
        return named
    for guess in _guesses(there, task):
        if all(name in there for name in guess):
            return guess
    what = "two columns that look like a pair of texts" if task and task.pair else "a column that looks like text"
    raise InputError(f"{place} lacks {what}; {NAME_TEXTS}, out of: {', '.join(there)}")


def _guesses(there: Sequence[str], task: Task | None) -> tuple[tuple[str, ...], ...]:
    if task is None:
        # A file may hold its texts twice, whole and as words; which of them counts, the tags tell.
        return (*_WORDS, *_TEXTS) if {"tags", "ner_tags"} & set(there) else (*_TEXTS, *_WORDS)
    if task.kind is Kind.TAGS:
        return _WORDS
    return tuple(guess for guess in _TEXTS if len(guess) == (2 if task.pair else 1))


def _refuse_odd_columns(place: str, there: Sequence[str]) -> None:
    if len(there) == 1:
        for separator, plural in _OTHER_SEPARATORS.items():
            if separator in there[0]:
                raise InputError(
                    f"{place} has a single column, {there[0]!r}, which looks like several separated by {plural}; "
                    f"save it as .csv with commas or as .tsv with tabs"
                )
    repeated = sorted({name for name in there if list(there).count(name) > 1})
    if repeated:
        raise InputError(f"{place} has two columns named {repeated[0]!r}; rename one of them")
