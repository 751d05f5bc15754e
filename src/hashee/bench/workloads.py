"""The texts and the models of the benchmark: test sets with frequency tables from train + dev, and two dense models."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from hashee.bench.batches import TokenizedTexts
from hashee.data.texts import Text, read_texts
from hashee.data.tokenizing import TextTokenizer
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.errors import InputError
from hashee.tables.table import ExitTable

MAX_LENGTH = 512
# Enough to sort by length as a user would; tokenizing 25,000 long reviews to time a few is not.
POOL = 4000
HELD_OUT = 5
"""Without test sets, every fifth embedded sentence is timed and the others are counted."""


@dataclass(frozen=True)
class TextSource:
    """A dataset: its folder under HASHEE_DATA and how many texts a round takes."""

    name: str
    texts: int


SOURCES = {
    source.name.lower(): source
    for source in (
        TextSource("SST-2", texts=256),
        TextSource("SNLI", texts=256),
        TextSource("IMDb", texts=32),
    )
}


@dataclass(frozen=True)
class Workload:
    """Texts to draw from, and the table that a model with exits uses for them."""

    name: str
    tokens: TokenizedTexts
    table: ExitTable
    texts: int
    """How many a round takes if nothing else is said."""
    note: str = ""
    """What the reader of the numbers must know."""


def load_workload(name: str, num_layers: int) -> Workload:
    """Read a workload from HASHEE_DATA; SST-2 falls back to the embedded Rotten Tomatoes sentences."""
    source = SOURCES.get(name.lower())
    if source is None:
        raise InputError(f"no workload {name!r}; there are {', '.join(known.name for known in SOURCES.values())}")
    test, corpus, note = _texts_of(source)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    table = ExitTable.by_frequency(tokenizer, corpus, num_layers=num_layers, progress=False)
    tokens = tokenize(tokenizer, list(islice(test, POOL)))
    return Workload("Rotten Tomatoes" if note else source.name, tokens, table, source.texts, note)


def _texts_of(source: TextSource) -> tuple[Iterator[Text], Iterator[Text], str]:
    """Return the texts to time, those to count for the table, and a note if they are not what was asked for."""
    data = os.environ.get("HASHEE_DATA")
    folder = Path(data or "") / source.name
    if data and folder.is_dir():
        corpus = [path for path in (folder / "train.jsonl.gz", folder / "dev.jsonl.gz") if path.exists()]
        return read_texts(folder / "test.jsonl.gz"), read_texts(corpus), ""
    if source.name != "SST-2":
        raise InputError(f"{folder} is not there; set HASHEE_DATA to the folder of datasets that holds {source.name}")
    sentences = [text for text, _ in rotten_tomatoes()]
    others = (text for number, text in enumerate(sentences) if number % HELD_OUT)
    note = "HASHEE_DATA has no SST-2: the embedded Rotten Tomatoes sentences take its place"
    return iter(sentences[::HELD_OUT]), others, note


def tokenize(tokenizer: Any, texts: list[Text]) -> TokenizedTexts:
    """Turn texts or pairs into ids and types, cut at the models' length."""
    columns = TextTokenizer(tokenizer, MAX_LENGTH, token_types=True)(texts)
    return TokenizedTexts(tuple(map(tuple, columns["input_ids"])), tuple(map(tuple, columns["token_type_ids"])))


def save_bert_base(folder: Path) -> None:
    """Save BERT-base's shape with random weights; speed does not depend on them."""
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(BertConfig()).save_pretrained(folder)


def save_minilm(folder: Path, labels: int = 2) -> None:
    """Save real MiniLM with a new classifier, so that its outputs are logits like the others'."""
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=labels).save_pretrained(folder)


MODELS: dict[str, Callable[[Path], None]] = {"bert-base": save_bert_base, "minilm": save_minilm}
"""Models under test: functions that save the one set of weights that all baselines load."""


def save_model(name: str, folder: Path) -> Any:
    """Save a model under test once and return its config."""
    if name not in MODELS:
        raise InputError(f"no model {name!r}; there are {', '.join(MODELS)}")
    if not (folder / "config.json").exists():
        MODELS[name](folder)
    return AutoConfig.from_pretrained(folder)
