"""The paper's speed-ups, which depend on token ids and tables but on no weights, counted at BERT-base's size."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from hashee.cost.macs import BERT_BASE, Counts, dense_macs, paper_by_layer
from hashee.data import Examples, Task, TaskData, load_task
from hashee.data.task_types import type_of
from hashee.data.tokenizing import token_ids
from hashee.embedded import minilm_folder
from hashee.errors import InputError
from hashee.files import replaced_atomically
from hashee.hf.pretrained import quiet_transformers
from hashee.study.paper import BUCKETS, ELUE, HASH_FUNCTIONS, HASHEE, HASHES, LAYERS_AND_BUCKETS, TASKS, THREE_TASKS
from hashee.tables.counting import TokenCounts, count_tokens
from hashee.tables.table import ExitTable
from hashee.tables.vocabulary import tokenizer_fingerprint

MAX_LENGTH = 512
"""Where texts are cut. The paper's 6.2x on IMDb comes out at 512 tokens (6.0x at 128, 6.1x at 256)."""
RANDOM_TABLES = 10
"""Over how many random tables the mean is taken."""
OTHER_SEED = 1000
"""First seed of the tables that take the place of those of training (Rand-incons)."""
TOLERANCE = 0.05
"""Deviations above this share of the paper's value are explained."""

_SNLI = (
    "the paper contradicts itself: its mean over SST-2, SNLI and MRPC is 4.9x (tab:hash, tab:bucket), with 4.8x for "
    "SST-2 and MRPC, which takes the 5.1x for SNLI that is counted here; that our train is a part of SNLI's is no "
    "reason, since more text makes it more (10,000 pairs: 4.96x, 40,000: 5.05x, all we have: 5.09x)"
)
_CLUSTERED = (
    "the embeddings are MiniLM's, for want of BERT-base's; clusters depend on them (gte-small's give 2.7x with 6 "
    "layers and 1.5x with 12), and the authors' code orders clusters by the sum of their norms, not by the mean that "
    "the paper names (2.5x and 1.4x with MiniLM's)"
)
EXPLANATIONS = {(ELUE.label, "snli", "frequency"): _SNLI, (HASHES.label, "three tasks", "clustered"): _CLUSTERED}
"""Why a count differs from the paper's, by table, task and hash."""


@dataclass(frozen=True)
class FlopsRow:
    """A speed-up over 12-layer BERT-base: the paper's and the one that is counted."""

    source: str
    """Label of the paper's table."""
    task: str
    hash: str
    layers: int
    buckets: int
    paper: float
    ours: float
    by_task: dict[str, float] = field(default_factory=dict)
    explanation: str = ""

    @property
    def deviation(self) -> float:
        """Ours relative to the paper's."""
        return self.ours / self.paper - 1


@dataclass(frozen=True)
class FlopsStudy:
    """All of the paper's speed-ups, and what they were counted on."""

    rows: tuple[FlopsRow, ...]
    data: dict[str, str]
    """Fingerprint of each task's examples."""
    notes: dict[str, list[str]]
    """What is peculiar about each task's examples."""
    tokenizer: str
    max_length: int = MAX_LENGTH

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = asdict(self) | {"rows": [asdict(row) | {"deviation": row.deviation} for row in self.rows]}
        with replaced_atomically(path) as unfinished:
            unfinished.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def read_flops(path: Path) -> FlopsStudy:
    """Read what `FlopsStudy.write` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = tuple(
            FlopsRow(**{name: value for name, value in row.items() if name != "deviation"})
            for row in values.pop("rows")
        )
        return FlopsStudy(rows, **values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no count of FLOPs ({error}); remove it, and it is counted anew") from None


# --- tokens of a task, counted once ------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskTokens:
    """What a table is made from, and the tokens of the texts whose cost is counted."""

    train: TokenCounts
    """With texts by label, for mutual information."""
    train_and_dev: TokenCounts
    flat: Counts
    """Token ids of all test texts in a row, special tokens included: (tokens,)."""
    lengths: Counts
    """Tokens of each text: (texts,)."""

    def active(self, exit_layers: Counts, layers: int) -> Counts:
        """Return how many tokens of each text each layer updates, entry 0 being all of them: (texts, layers + 1)."""
        texts = len(self.lengths)
        owner = np.repeat(np.arange(texts), self.lengths)
        exits = np.bincount(owner * (layers + 1) + exit_layers[self.flat], minlength=texts * (layers + 1))
        left = self.lengths[:, None] - exits.reshape(texts, layers + 1).cumsum(axis=1)
        return np.concatenate([self.lengths[:, None], left[:, :-1]], axis=1)

    def speedup(self, table: ExitTable) -> float:
        """Return how many times cheaper the first layers of BERT-base are with a table than all twelve without."""
        active = self.active(table.exit_layers.numpy(), table.num_layers)
        shape = replace(BERT_BASE, layers=table.num_layers)
        whole = dense_macs(BERT_BASE, BERT_BASE.layers, self.lengths)
        return whole / int(paper_by_layer(shape, self.lengths, active).sum())


def tokens_of(data: TaskData, tokenizer: Any) -> TaskTokens:
    """Tokenize a task: counts of train and dev without special tokens, ids of test with them."""
    if data.test is None:
        raise InputError(f"{data.task.name} has no test split to count FLOPs on")
    train = _counted(data.train, data.task, tokenizer)
    dev = _counted(data.dev, data.task, tokenizer)
    ids = list(token_ids(data.test.texts, tokenizer, MAX_LENGTH))
    lengths = np.array([len(row) for row in ids], dtype=np.int64)
    flat = np.fromiter((token for row in ids for token in row), np.int64, int(lengths.sum()))
    return TaskTokens(train, train + dev, flat, lengths)


def _counted(examples: Examples, task: Task, tokenizer: Any) -> TokenCounts:
    labels = examples.targets if type_of(task).one_decision else None
    return count_tokens(tokenizer, examples.texts, labels, progress=False)  # type: ignore[arg-type]


# --- the paper's tables ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Builders:
    """Makes the tables of the paper for a tokenizer; a random or clustered one is the same for every task."""

    tokenizer: Any
    embeddings: Any

    def tables(self, name: str, tokens: TaskTokens, layers: int, buckets: int) -> Iterable[ExitTable]:
        """Return the tables over which the mean is taken: several random ones, one of any other hash."""
        if name == "frequency":
            return [ExitTable.by_frequency(self.tokenizer, tokens.train_and_dev, layers, num_buckets=buckets)]
        if name == "mi":
            # From train alone, as in the authors' code.
            return [ExitTable.by_mutual_information(self.tokenizer, tokens.train, None, layers, num_buckets=buckets)]
        if name == "clustered":
            return [self._clustered(layers)]
        return self._random(layers, OTHER_SEED if name == "rand-incons" else 0)

    @cache  # noqa: B019  # lives as long as one count
    def _clustered(self, layers: int) -> ExitTable:
        return ExitTable.by_clusters(self.tokenizer, self.embeddings, layers)

    @cache  # noqa: B019
    def _random(self, layers: int, first: int) -> tuple[ExitTable, ...]:
        seeds = range(first, first + RANDOM_TABLES)
        return tuple(ExitTable.at_random(self.tokenizer, layers, seed=seed) for seed in seeds)

    def speedup(self, name: str, tokens: TaskTokens, layers: int, buckets: int) -> float:
        """Return the mean speed-up of a hash on a task."""
        return mean(tokens.speedup(table) for table in self.tables(name, tokens, layers, buckets))


def count_paper_flops(tasks: Sequence[str] = tuple(TASKS)) -> FlopsStudy:
    """Count every speed-up of the paper's tables on the tasks' test sets, with the tokenizer of BERT (uncased)."""
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
        embeddings = AutoModel.from_pretrained(minilm_folder()).get_input_embeddings().weight
    data = {task: load_task(task) for task in tasks}
    tokens = {task: tokens_of(each, tokenizer) for task, each in data.items()}
    builders = Builders(tokenizer, embeddings)
    return FlopsStudy(
        rows=tuple(rows_of(builders, tokens)),
        data={task: each.fingerprint for task, each in data.items()},
        notes={task: list(each.notes) for task, each in data.items()},
        tokenizer=tokenizer_fingerprint(tokenizer),
    )


def rows_of(builders: Builders, tokens: dict[str, TaskTokens]) -> list[FlopsRow]:
    """Return the rows of the paper's three tables that have a column of FLOPs."""
    rows = []
    for task, own in tokens.items():
        reported = HASHEE.reported[task]
        assert reported is not None
        ours = builders.speedup("frequency", own, 6, 6)
        rows.append(_explained(FlopsRow(ELUE.label, task, "frequency", 6, 6, reported.speedup, ours, {task: ours})))
    for label, papers in ((HASHES.label, HASH_FUNCTIONS), (BUCKETS.label, LAYERS_AND_BUCKETS)):
        for row in papers:
            by_task = {
                task: builders.speedup(row.hash, tokens[task], row.layers, row.buckets)
                for task in THREE_TASKS
                if task in tokens
            }
            if by_task:
                ours = mean(by_task.values())
                shape = (row.hash, row.layers, row.buckets)
                rows.append(_explained(FlopsRow(label, "three tasks", *shape, row.speedup, ours, by_task)))
    return rows


def _explained(row: FlopsRow) -> FlopsRow:
    if abs(row.deviation) <= TOLERANCE:
        return row
    reason = EXPLANATIONS.get((row.source, row.task, row.hash), "no explanation is known")
    return replace(row, explanation=reason)


Counting = Callable[[], FlopsStudy]


def paper_flops(path: Path, count: Counting = count_paper_flops) -> FlopsStudy:
    """Read the count from a file, or count and write the file."""
    if path.exists():
        return read_flops(path)
    study = count()
    study.write(path)
    return study
