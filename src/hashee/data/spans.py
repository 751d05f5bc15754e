"""Spans in BIO tags, and how many of them were found."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Span: TypeAlias = tuple[int, int, str]
"""First word, word after the last one, name."""


def spans_of(tags: Sequence[str]) -> set[Span]:
    """Return the spans in the tags of one text; as in CoNLL's own count, an I that continues nothing begins one."""
    found: set[Span] = set()
    start, open_name = 0, None
    for position, tag in enumerate((*tags, "O")):
        part, _, name = tag.partition("-")
        if part == "I" and name == open_name:
            continue
        if open_name is not None:
            found.add((start, position, open_name))
        start, open_name = position, name if part in ("B", "I") else None
    return found


def span_counts(predicted: Iterable[Sequence[str]], correct: Iterable[Sequence[str]]) -> tuple[int, int, int]:
    """Return how many spans were found rightly, how many were predicted and how many there are."""
    hits = num_predicted = num_correct = 0
    for predicted_tags, correct_tags in zip(predicted, correct, strict=True):
        predicted_spans, correct_spans = spans_of(predicted_tags), spans_of(correct_tags)
        hits += len(predicted_spans & correct_spans)
        num_predicted += len(predicted_spans)
        num_correct += len(correct_spans)
    return hits, num_predicted, num_correct


def is_bio(tags: Iterable[str]) -> bool:
    """Tell whether tags are BIO tags, some of which begin or continue a span."""
    parts = {tag.partition("-")[0] for tag in tags}
    return parts <= {"B", "I", "O"} and bool(parts & {"B", "I"})
