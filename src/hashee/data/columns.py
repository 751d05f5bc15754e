"""Which columns of a file hold the texts and the labels."""

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
_DOCUMENTS = tuple((name,) for name in ("document", "text", "article", "source", "body", "email"))
_SUMMARIES = ("summary", "title", "target", "headline", "subject", "generated")
_NEVER_LABELS = frozenset({"id", "idx", "index", "guid", "pairID", "captionID", "#1 ID", "#2 ID"})
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
NAME_TEXTS = "name them with --text-column and --pair-column (Python: Columns(text=..., pair=...))"
"""What to do where the columns of texts are not found, or not the wanted ones."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns to read; columns that are not named are guessed."""

    text: str | None = None
    pair: str | None = None
    """Column of the second text of each pair."""
    label: str | tuple[str, ...] | None = None
    """Column of the labels; several columns of 0 and 1 are the labels of a multi-label task."""

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
    labels_are_texts: bool = False
    """Whether the labels are summaries."""


def choose_columns(
    source_name: str, available: Sequence[str], wanted: Columns, task: Task | None, labelled: bool
) -> Chosen:
    """Choose from the available columns: those wanted or, for a known task, those that its data usually have.

    labelled: whether there must be labels; without them `Chosen.label` is empty.
    """
    _refuse_odd_columns(source_name, available)
    text = _text_columns(source_name, available, wanted, task)
    writing = task is not None and task.kind is Kind.SUMMARIES
    label = _named_labels(wanted)
    if label:
        missing = [name for name in label if name not in available]
        if not missing:
            return Chosen(text, label, labels_are_texts=writing)
        if labelled:
            raise InputError(f"{source_name} has no column {missing[0]!r}; its columns are: {', '.join(available)}")
        return Chosen(text, ())
    tagging = text in _WORDS if task is None else task.kind is Kind.TAGS
    for guess in _SUMMARIES if writing else (*_TAGS, *_LABELS) if tagging else _LABELS:
        if guess in available and guess not in text:
            return Chosen(text, (guess,), labels_are_texts=writing)
    if writing and labelled:
        raise InputError(
            f"{source_name} has no column of summaries ({', '.join(_SUMMARIES)}); "
            f"name it with --label-column (Python: Columns(label=...)), one of: {', '.join(available)}"
        )
    rest = tuple(name for name in available if name not in text and name not in _NEVER_LABELS)
    if task is None and labelled and len(rest) > 1:
        return Chosen(text, rest, guessed_labels=True)
    if labelled:
        raise no_label_column(source_name, available)
    return Chosen(text, ())


def no_label_column(source_name: str, available: Sequence[str]) -> InputError:
    """Return the error for a file in which no column looks like labels."""
    return InputError(
        f"{source_name} has no column 'label' or 'score' and no set of columns of only 0 and 1; "
        f"name the label column with --label-column (Python: Columns(label=...)), one of: {', '.join(available)}"
        + ("; for summaries pass --kind summarization" if set(_SUMMARIES) & set(available) else "")
    )


def _named_labels(wanted: Columns) -> tuple[str, ...]:
    if wanted.label is None:
        return ()
    return (wanted.label,) if isinstance(wanted.label, str) else tuple(wanted.label)


def _text_columns(source_name: str, available: Sequence[str], wanted: Columns, task: Task | None) -> tuple[str, ...]:
    if wanted.text is not None:
        named = (wanted.text,) if wanted.pair is None else (wanted.text, wanted.pair)
        for name in named:
            if name not in available:
                raise InputError(f"{source_name} has no column {name!r}; its columns are: {', '.join(available)}")
        return named
    for guess in _guesses(available, task):
        if all(name in available for name in guess):
            return guess
    what = "two columns that look like a pair of texts" if task and task.pair else "a column that looks like text"
    raise InputError(f"{source_name} lacks {what}; {NAME_TEXTS}, out of: {', '.join(available)}")


def _guesses(available: Sequence[str], task: Task | None) -> tuple[tuple[str, ...], ...]:
    if task is None:
        # A file may hold its texts twice, whole and as words; a column of tags says that the words count.
        return (*_WORDS, *_TEXTS) if {"tags", "ner_tags"} & set(available) else (*_TEXTS, *_WORDS)
    if task.kind is Kind.TAGS:
        return _WORDS
    if task.kind is Kind.SUMMARIES:
        return _DOCUMENTS
    return tuple(guess for guess in _TEXTS if len(guess) == (2 if task.pair else 1))


def _refuse_odd_columns(source_name: str, available: Sequence[str]) -> None:
    if len(available) == 1:
        for separator, plural in _OTHER_SEPARATORS.items():
            if separator in available[0]:
                raise InputError(
                    f"{source_name} has a single column, {available[0]!r}, which looks like several separated by "
                    f"{plural}; save it as .csv with commas or as .tsv with tabs"
                )
    repeated = sorted({name for name in available if list(available).count(name) > 1})
    if repeated:
        raise InputError(f"{source_name} has two columns named {repeated[0]!r}; rename one of them")
