"""Choosing exit tables: everything that a fit knows of how they are made."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashee.data import Examples, Task, TaskData
from hashee.data.batching import Batching, make_batches
from hashee.data.task_types import type_of
from hashee.data.texts import Text
from hashee.data.tokenized import Array, Tokenized
from hashee.errors import InputError, TableError
from hashee.hf.opening import read_table
from hashee.tables.budget import Budget, Seen, enough_held_out
from hashee.tables.budgeted import Scale, check_possible
from hashee.tables.labelled import groups_of
from hashee.tables.measuring import GROUPS, Importance, Movement, Prior, Shrinkage, measure_importance, measure_movement
from hashee.tables.reliability import PARTS
from hashee.tables.table import ExitTable
from hashee.tables.vocabulary import Vocabulary
from hashee.training.backbone import Backbone, weights_fingerprint
from hashee.training.clocked import Clock, table_for_time
from hashee.training.json_files import fingerprint_of, read_json, write_json
from hashee.training.settings import MACS, TIME, FitSettings

_MEASURED = 20_000
"""Training examples at the most that importance is measured on, and that speed-ups are counted on."""
_MADE = "made.json"
_SHARES = (1.0, 0.99, 0.97, 0.95, 0.9, 0.8)
"""Of the frequency table's speed-up, tried in turn for importance."""
_OF_WHOLE_VOCABULARY = ("random", "clustered")
"""Tables in which tokens that no text showed exit too."""
_IGNORED = -100
"""What transformers' losses take for 'no target here'."""


@dataclass(frozen=True)
class TableInputs:
    """What tables are made from."""

    data: TaskData
    train: Tokenized
    dev: Tokenized
    backbone: Backbone
    cache: Path | None = None
    """Folder, the dense model's, for what was measured on it: other tables need not measure again."""

    def measured(self, signal: str, dense: Any) -> Importance:
        """Return what updates are worth to a dense model, from the cache if that is of these weights and examples."""
        folder = None if self.cache is None else self.cache / f"importance-{signal}"
        key = {"weights": weights_fingerprint(dense), "data": self.data.fingerprint, "most": _MEASURED, "parts": PARTS}
        fingerprint = fingerprint_of(key | {"tokens": int(self.train.lengths.sum())})
        if folder is not None and (read_json(folder / _MADE) or {}).get("fingerprint") == fingerprint:
            with suppress(TableError):  # damaged: measure again
                return Importance.load(folder)
        measure = measure_movement if signal in list(Movement) else measure_importance
        options = {"by" if signal in list(Movement) else "signal": signal, "tokenizer": self.backbone.tokenizer}
        found: Importance = measure(dense, _batches(self, dense), progress=False, **options)
        if folder is not None:
            with suppress(OSError):  # a model that was given may lie where nothing can be written
                folder.mkdir(parents=True, exist_ok=True)
                found.save(folder)
                write_json(folder / _MADE, {"fingerprint": fingerprint})
        return found


def refuse_impossible(settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Refuse labels and speed-ups that no table can be made for, before anything is trained for it."""
    if "mi" in settings.hashes:
        _labels(inputs.data)
    if settings.speedup is None:
        return
    refuse = _refuse_impossible_time if settings.speedup_by == TIME else _refuse_impossible_macs
    refuse(settings.speedup, settings, inputs, model)


def _refuse_impossible_macs(speedup: float, settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Count tables in which all tokens leave at once, and in which none does."""
    vocabulary = Vocabulary.of(inputs.backbone.tokenizer).padded(model.config.vocab_size)
    first, last = settings.min_exit or 0, inputs.backbone.depth
    for kind in settings.hashes:
        budget = _budget_for(kind, speedup, inputs, model)
        seen = None if kind in _OF_WHOLE_VOCABULARY else _seen_in(_corpus_of(kind, inputs), vocabulary)
        ids = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special_ids) if seen is None else seen.ids
        all_alike = partial(_all_at, len(ids), first, last)
        check_possible(Scale(ids, last, vocabulary.size, all_alike, ordered=False, seen=seen), budget)


def _seen_in(rows: Sequence[Array], vocabulary: Vocabulary) -> Seen:
    """Return what texts show of the token types that may exit."""
    ids, occurrences = np.unique(np.concatenate(rows), return_counts=True)
    exits = ~np.isin(ids, vocabulary.special_ids)
    return Seen(ids[exits], occurrences[exits], len(rows))


def _refuse_impossible_time(speedup: float, settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Time a model in which all tokens that may leave do so at once; no table is faster."""
    backbone = inputs.backbone
    first = settings.min_exit or 0
    cheapest = ExitTable.at_random(backbone.tokenizer, backbone.depth, num_buckets=1, min_exit=first)
    reached = _clock(inputs, model).speedup(cheapest)
    if reached < speedup:
        raise TableError(f"a measured speed-up of {speedup:g}x cannot be had here: at the most it is {reached:.2g}x")


def _all_at(types: int, first: int, last: int, place: float) -> NDArray[np.int64]:
    """Return one exit for all types, from the first at place 0 to the last at place 1. (types,)"""
    return np.full(types, round(first + place * (last - first)))


def table_for(kind: str, settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    """Return the exit table of a kind (`frequency`, ..., or `table` for one of the user's own).

    dense: a dense model of the table's depth, fitted if the kind is `importance`; it is not changed.
    """
    if kind == "table":
        return _own_table(settings, inputs)
    if settings.speedup is not None and settings.speedup_by == TIME:

        def build(counted: float) -> ExitTable:
            return table_for(kind, replace(settings, speedup=counted, speedup_by=MACS), inputs, dense)

        return table_for_time(settings.speedup, build, _clock(inputs, dense).speedup)
    if settings.min_exit is not None or kind == "importance":
        return _built(kind, settings, inputs, dense)
    try:
        return _built(kind, replace(settings, min_exit=1), inputs, dense)
    except TableError:
        if settings.speedup is None:
            raise
        # Only exits before layer 1 are as cheap as was asked for, if anything is.
        return _built(kind, replace(settings, min_exit=0), inputs, dense)


def _built(kind: str, settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    if kind == "importance":
        return _by_importance(settings, inputs, dense)
    tokenizer, depth = inputs.backbone.tokenizer, inputs.backbone.depth
    options: dict[str, Any] = {"num_layers": depth, "min_exit": settings.min_exit, "num_buckets": settings.num_buckets}
    if settings.speedup is not None:
        options["budget"] = _budget_for(kind, settings.speedup, inputs, dense)
    if kind == "random":
        return ExitTable.at_random(tokenizer, seed=settings.seed, **options)
    if kind == "clustered":
        return ExitTable.by_clusters(tokenizer, dense, seed=settings.seed, **options)
    if kind == "mi":
        texts, labels = _texts(inputs.data, with_dev=False), _labels(inputs.data)
        return ExitTable.by_mutual_information(tokenizer, texts, labels, progress=False, **options)
    return ExitTable.by_frequency(tokenizer, _texts(inputs.data), progress=False, **options)


def _by_importance(settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    tokenizer = inputs.backbone.tokenizer
    importance = inputs.measured(settings.signal, dense)
    shrinkage = Shrinkage(Prior(settings.prior), settings.pseudo_counts, settings.rarity)

    def table(budget: Budget) -> ExitTable:
        options: dict[str, Any] = {"signed": settings.signed, "shrinkage": shrinkage}
        if settings.min_exit is not None:
            options["min_exit"] = settings.min_exit
        return ExitTable.from_importance(tokenizer, importance, budget, model=dense, **options)

    if settings.speedup is not None:
        return table(_budget_for("importance", settings.speedup, inputs, dense))
    # Importance has no cost of its own: it spends as much as the frequency table does.
    peer = table_for("frequency", settings, inputs, dense)
    budget = _budget(1.0, inputs, dense, inputs.train.ids)
    reached = budget.speedup_of(peer.exit_layers.numpy(), peer.num_layers, counted=True)
    for share in _SHARES:
        try:
            return table(replace(budget, speedup=share * reached))
        except TableError as error:
            # Few buckets may send more tokens out early than importance knows.
            refused = error
    raise refused


def _clock(inputs: TableInputs, dense: Any) -> Clock:
    """Return a clock with texts of dev; a model that loses layers is timed against all of them."""
    backbone = inputs.backbone
    whole = dense if backbone.depth == backbone.layers else backbone.load(depth=backbone.layers).to(dense.device)
    return Clock.on(_texts_of(inputs.data.task, inputs.data.dev), whole, dense, backbone.tokenizer)


def _own_table(settings: FitSettings, inputs: TableInputs) -> ExitTable:
    if settings.table is None:
        raise InputError("no folder of an exit table was given; set table")
    table = read_table(settings.table, inputs.backbone.tokenizer)
    if table.num_layers != inputs.backbone.depth:
        raise InputError(
            f"the table in {settings.table} is for {table.num_layers} layers but the model keeps "
            f"{inputs.backbone.depth}; set depth to {table.num_layers}"
        )
    return table


def _corpus_of(kind: str, inputs: TableInputs) -> list[Array]:
    """Return the token ids of the texts that a kind of table is made from."""
    splits = (inputs.train, inputs.dev) if kind == "frequency" else (inputs.train,)
    return [row for split in splits for row in split.ids]


def _budget_for(kind: str, speedup: float, inputs: TableInputs, dense: Any) -> Budget:
    """Count on what the table is made from; for importance, which is made from train alone, on dev if that is large."""
    if kind == "importance" and enough_held_out(len(inputs.dev)):
        return _budget(speedup, inputs, dense, inputs.dev.ids, held_out=True)
    return _budget(speedup, inputs, dense, _corpus_of(kind, inputs))


def _budget(speedup: float, inputs: TableInputs, dense: Any, rows: Sequence[Array], held_out: bool = False) -> Budget:
    """Ask for a speed-up over the whole backbone, whatever is kept of it.

    rows: token ids of what the table is made from, or of texts held out from it; a sample of them is counted.
    """
    texts_with = np.zeros(dense.config.vocab_size, dtype=np.int64)
    for row in rows:
        texts_with[np.unique(row)] += 1
    ids = [rows[place].tolist() for place in _sample(len(rows))]
    counted: dict[str, Any] = {"held_out": held_out, "texts_with": texts_with, "full_layers": inputs.backbone.layers}
    return Budget.of(speedup, dense, ids, **counted)


def _texts(data: TaskData, with_dev: bool = True) -> list[Text]:
    """Return the texts that are counted: the paper's choice is train and dev; labels are not looked at."""
    splits = (data.train, data.dev) if with_dev else (data.train,)
    return [text for split in splits for text in _texts_of(data.task, split)]


def _texts_of(task: Task, examples: Examples) -> list[Text]:
    """Return the texts of a split; words that are tagged make one."""
    text = type_of(task).text
    return [text(example) for example in examples.texts]


def _labels(data: TaskData) -> list[Any]:
    labels = type_of(data.task).text_labels(data.train.targets or ())
    if labels is None:
        raise InputError("the hash mi needs a label for each text, not for each word; choose another hash")
    return labels


def _batches(inputs: TableInputs, dense: Any) -> Iterator[dict[str, Tensor]]:
    """Yield training examples with labels, as a dense model takes them."""
    train = inputs.train
    places = _sample(len(train))
    groups = groups_of(_texts(inputs.data, with_dev=False))
    for batch in make_batches([train.ids[place].tolist() for place in places], None, Batching()):
        chosen = [places[number] for number in batch]
        tensors = train.inputs(chosen)
        labels, words = train.batch_targets(chosen), train.word_rows(chosen)
        if words is not None:
            flat = torch.full((tensors["input_ids"].numel(),), _IGNORED)
            labels = flat.index_copy(0, words, labels).view_as(tensors["input_ids"])
        tensors |= {"labels": labels} | ({} if groups is None else {GROUPS: groups[chosen]})
        yield {name: tensor.to(dense.device) for name, tensor in tensors.items()}


def _sample(examples: int) -> list[int]:
    order = np.random.default_rng(0).permutation(examples)
    return sorted(order[:_MEASURED].tolist())
