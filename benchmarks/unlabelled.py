"""Texts without labels for `hashee fit --unlabelled`: like a task's own, and never one of its dev or test texts.

For SST-2 they are sentences of unlabelled IMDb reviews, for IMDb whole reviews, and for the tasks of pairs sentences of
other data sets, paired with their most similar other one, with the next one of the same document, and at random.

    HASHEE_DATA=... python benchmarks/unlabelled.py sst2 sst2-unlabelled.jsonl --number 20000 --seed 0
"""

import argparse
import json
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from hashee.data import TaskData, load_task
from hashee.data.registry import registered
from hashee.data.texts import Text, read_texts
from hashee.files import replaced_atomically

T = TypeVar("T")

COLUMNS: dict[str, tuple[str, ...]] = {
    "sst2": ("text",),
    "imdb": ("text",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "scitail": ("premise", "hypothesis"),
    "snli": ("premise", "hypothesis"),
}
"""Of each task's own files."""
NEWS = ("CNN-DailyMail/train", "CNN-DailyMail/dev", "XSum/train")
WIKIPEDIA = ("WikiText-2/dev", "WikiText-2/test")
SOURCES: dict[str, tuple[str, ...]] = {
    "mrpc": (*NEWS, *WIKIPEDIA),
    "stsb": ("SNLI/train", *NEWS, "AESLC/train"),
    "scitail": (*WIKIPEDIA, "SciTLDR-A/train", "Cranfield/corpus"),
    "snli": ("SNLI/train",),
}
"""Data sets that sentences of pairs are taken from; those that are missing are left out."""
REVIEWS = "IMDb-unsup-text/all"
TREEBANK = ("sst2", "mrpc")
"""Tasks whose sentences have marks and clitics set apart; all keep their capitals."""
WORDS = (4, 60)
"""Fewest and most words of a sentence."""
POOL = 20_000
"""Sentences at the most among which the most similar is looked for."""
SIMILAR, NEIGHBOURING = 0.6, 0.2
"""Shares of the pairs; the others are random."""
ROWS = 500
"""Sentences whose similarities to all others are in memory at once."""

_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
_WORD = re.compile(r"\w+")
_WIKITEXT = re.compile(r" @([-.,])@ ")
"""How WikiText writes marks within a word."""
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_CLITIC = re.compile(r"(?<=\w)(n't|'(?:s|re|ve|ll|d|m))\b", re.IGNORECASE)
_MARK = re.compile(r"\s*(\.\.\.|--|[,;:!?()]|\.$)\s*")


def main() -> None:
    """Write a seeded sample of texts for a task, as lines of JSON with the columns of the task's own files."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("task", choices=sorted(COLUMNS), type=lambda name: registered(name) or name)
    arguments.add_argument("output", type=Path)
    arguments.add_argument("--number", type=int, default=20_000, help="texts or pairs at the most")
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    folder = Path(os.environ["HASHEE_DATA"])
    texts = unlabelled(given.task, load_task(given.task), folder, given.number, given.seed)
    write(given.output, COLUMNS[given.task], texts)
    print(f"{len(texts):,} of {given.number:,} written to {given.output}")


def unlabelled(task: str, data: TaskData, folder: Path, number: int, seed: int) -> list[Text]:
    """Return a seeded sample of texts or pairs for a task from data sets in a folder."""
    draws = random.Random(seed)
    excluded = held_out(data)
    if task in SOURCES:
        documents = documents_of(folder, SOURCES[task])
        return list(pairs_of([sentences_of(text, task) for text in documents], excluded, number, draws))
    reviews = (_BREAK.sub(" ", text) for text in documents_of(folder, (REVIEWS,)))
    found = reviews if task == "imdb" else (each for text in reviews for each in sentences_of(text, task))
    return sample(list(new_ones(found, excluded)), number, draws)


def held_out(data: TaskData) -> set[str]:
    """Return the keys of all texts of dev and test, both texts of pairs."""
    splits = [data.dev] if data.test is None else [data.dev, data.test]
    texts = (text for split in splits for text in split.texts)
    return {key(part) for text in texts for part in ([text] if isinstance(text, str) else text)}


def key(text: str) -> str:
    """Return the letters of a text, by which it is recognised however it is spaced, punctuated and capitalised."""
    return "".join(_WORD.findall(text.lower()))


def new_ones(texts: Iterable[str], excluded: set[str]) -> Iterator[str]:
    """Yield each text once, without those that are excluded."""
    seen = set(excluded)
    for text in texts:
        name = key(text)
        if name and name not in seen:
            seen.add(name)
            yield text


def documents_of(folder: Path, sources: Sequence[str]) -> list[str]:
    """Return the texts of data sets; of pairs the first text."""
    paths = [path for name in sources if (path := folder / f"{name}.jsonl.gz").exists()]
    if not paths:
        raise SystemExit(f"{folder} has none of {', '.join(sources)}")
    texts = [text if isinstance(text, str) else text[0] for text in read_texts(paths)]
    # A premise is there once for each of its hypotheses.
    return list(dict.fromkeys(texts))


def sentences_of(text: str, task: str) -> list[str]:
    """Return the sentences of a text, written as the task's, without very short, very long and incomplete ones."""
    parts = (" ".join(part.split()) for part in _ENDS.split(_WIKITEXT.sub(r"\1", text)))
    whole = [part for part in parts if WORDS[0] <= len(_WORD.findall(part)) <= WORDS[1] and "<unk>" not in part]
    return [treebank_style(part) for part in whole] if task in TREEBANK else whole


def treebank_style(sentence: str) -> str:
    """Return a sentence with its marks and clitics set apart: it does n't , and that 's it ."""
    apart = _MARK.sub(r" \1 ", _CLITIC.sub(r" \1", sentence))
    return " ".join(apart.split())


def pairs_of(
    documents: Sequence[Sequence[str]], excluded: set[str], number: int, draws: random.Random
) -> Iterator[tuple[str, str]]:
    """Yield pairs of sentences: similar ones, neighbouring ones and random ones, shuffled, each pair once."""
    allowed = set(new_ones((sentence for document in documents for sentence in document), excluded))
    neighbours = [
        (first, second)
        for document in documents
        for first, second in pairwise(document)
        if first in allowed and second in allowed
    ]
    # Sets of strings come in another order in every process.
    pool = sample(sorted(allowed), POOL, draws)
    similar = similar_pairs(pool, sample(list(range(len(pool))), round(SIMILAR * number), draws))
    found = [*similar, *sample(neighbours, round(NEIGHBOURING * number), draws)]
    while len(pool) > 1 and len(found) < number:
        first, second = draws.sample(pool, 2)
        found.append((first, second))
    draws.shuffle(found)
    yield from dict.fromkeys(found)


def similar_pairs(sentences: Sequence[str], chosen: Sequence[int]) -> list[tuple[str, str]]:
    """Pair some sentences, by their index, with the other one whose TF-IDF vector is most similar."""
    if len(sentences) < 2 or not chosen:
        return []
    vectors = TfidfVectorizer(sublinear_tf=True).fit_transform(sentences)
    found = []
    for start in range(0, len(chosen), ROWS):
        part = list(chosen[start : start + ROWS])
        likeness = (vectors[part] @ vectors.T).toarray()
        likeness[np.arange(len(part)), part] = -1.0
        found += [(sentences[own], sentences[int(other)]) for own, other in zip(part, likeness.argmax(1), strict=True)]
    return found


def sample(items: list[T], number: int, draws: random.Random) -> list[T]:
    """Return so many items drawn without repetition, or all of them, shuffled."""
    return draws.sample(items, min(number, len(items)))


def write(path: Path, columns: Sequence[str], texts: Iterable[Text]) -> None:
    """Write texts or pairs as lines of JSON, whole or not at all."""
    rows = (dict(zip(columns, [text] if isinstance(text, str) else text, strict=True)) for text in texts)
    with replaced_atomically(path) as unfinished:
        unfinished.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
