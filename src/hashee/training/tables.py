"""The exit table of a fit: built by the hash in the settings, from the fit's data and dense model, for its speed-up."""

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
from hashee.files import read_json, sha256_of_json, write_json
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
from hashee.training.settings import MACS, TIME, FitSettings

_MEASURED = 20_000
"""Most examples that importance is measured on, and that speed-ups are counted on."""
_MADE = "made.json"
_SHARES = (1.0, 0.99, 0.97, 0.95, 0.9, 0.8)
"""Shares of the frequency table's speed-up, tried in turn for importance."""
_OF_WHOLE_VOCABULARY = ("random", "clustered")
"""Hashes by which tokens that are in no text exit too."""
_IGNORED = -100
"""Target that transformers' losses ignore."""


@dataclass(frozen=True)
class TableInputs:
    """What tables are built from."""

    data: TaskData
    train: Tokenized
    dev: Tokenized
    backbone: Backbone
    cache: Path | None = None
    """Folder, the dense model's, for importance that was measured on it, which other tables reuse."""
    bf16: bool = False
    """Measure importance in bfloat16 mixed precision, as models are trained: states stay in float32."""

    def importance(self, signal: str, dense: Any) -> Importance:
        """Return the importance of updates to a dense model, from the cache if it is of these weights and examples."""
        folder = None if self.cache is None else self.cache / f"importance-{signal}"
        key = {"weights": weights_fingerprint(dense), "data": self.data.fingerprint, "most": _MEASURED, "parts": PARTS}
        key |= {"tokens": int(self.train.lengths.sum())} | ({"bf16": True} if self.bf16 else {})
        fingerprint = sha256_of_json(key)
        if folder is not None and (read_json(folder / _MADE) or {}).get("fingerprint") == fingerprint:
            with suppress(TableError):  # damaged: measure again
                return Importance.load(folder)
        measure = measure_movement if signal in list(Movement) else measure_importance
        options = {"by" if signal in list(Movement) else "signal": signal, "tokenizer": self.backbone.tokenizer}
        with torch.autocast(dense.device.type, torch.bfloat16, enabled=self.bf16):
            found: Importance = measure(dense, _batches(self, dense), progress=False, **options)
        if folder is not None:
            with suppress(OSError):  # a model that was given may lie where nothing can be written
                folder.mkdir(parents=True, exist_ok=True)
                found.save(folder)
                write_json(folder / _MADE, {"fingerprint": fingerprint})
        return found


def refuse_impossible(settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Refuse labels and speed-ups that no table can be built for, before anything is trained."""
    if "mi" in settings.hashes:
        _labels(inputs.data)
    if settings.speedup is None:
        return
    if settings.speedup_by == TIME and type_of(inputs.data.task).writes_text:
        raise InputError("models that write text are not timed while tables are made; use --speedup-by macs")
    refuse = _refuse_impossible_time if settings.speedup_by == TIME else _refuse_impossible_macs
    refuse(settings.speedup, settings, inputs, model)


def _refuse_impossible_macs(speedup: float, settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Count the cost of tables by which all tokens exit first, and by which none does."""
    vocabulary = Vocabulary.of(inputs.backbone.tokenizer).padded(model.config.vocab_size)
    first, last = settings.min_exit or 0, inputs.backbone.depth
    for hash in settings.hashes:
        budget = _budget_for(hash, speedup, inputs, model)
        seen = None if hash in _OF_WHOLE_VOCABULARY else _seen_in(_corpus_of(hash, inputs), vocabulary)
        ids = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special_ids) if seen is None else seen.ids
        all_alike = partial(_all_at, len(ids), first, last)
        check_possible(Scale(ids, last, vocabulary.size, all_alike, ordered=False, seen=seen), budget)


def _seen_in(rows: Sequence[Array], vocabulary: Vocabulary) -> Seen:
    """Return how often texts have the token types that may exit."""
    ids, occurrences = np.unique(np.concatenate(rows), return_counts=True)
    exits = ~np.isin(ids, vocabulary.special_ids)
    return Seen(ids[exits], occurrences[exits], len(rows))


def _refuse_impossible_time(speedup: float, settings: FitSettings, inputs: TableInputs, model: Any) -> None:
    """Time a model in which all tokens that may exit do so first; no table is faster."""
    backbone = inputs.backbone
    first = settings.min_exit or 0
    cheapest = ExitTable.at_random(backbone.tokenizer, backbone.depth, num_buckets=1, min_exit=first)
    reached = _clock(inputs, model).speedup(cheapest)
    if reached < speedup:
        raise TableError(f"a measured speed-up of {speedup:g}x cannot be had here: at the most it is {reached:.2g}x")


def _all_at(types: int, first: int, last: int, share: float) -> NDArray[np.int64]:
    """Return the same exit for all types: the first layer for share 0, the last for share 1. (types,)"""
    return np.full(types, round(first + share * (last - first)))


def table_for(hash: str, settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    """Return the exit table by a hash (`frequency`, ..., or `table` for one of the user's own).

    dense: a dense model of the table's depth, fitted if the hash is `importance`; it is not changed.
    """
    if hash == "table":
        return _own_table(settings, inputs)
    if hash == "never":
        return ExitTable.never(inputs.backbone.tokenizer, inputs.backbone.depth, vocab_size=dense.config.vocab_size)
    if settings.speedup is not None and settings.speedup_by == TIME:

        def build(counted: float) -> ExitTable:
            return table_for(hash, replace(settings, speedup=counted, speedup_by=MACS), inputs, dense)

        return table_for_time(settings.speedup, build, _clock(inputs, dense).speedup)
    if settings.min_exit is not None or hash == "importance":
        return _built(hash, settings, inputs, dense)
    try:
        return _built(hash, replace(settings, min_exit=1), inputs, dense)
    except TableError:
        if settings.speedup is None:
            raise
        # Exits before layer 1 may be cheap enough.
        return _built(hash, replace(settings, min_exit=0), inputs, dense)


def _built(hash: str, settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    if hash == "importance":
        return _by_importance(settings, inputs, dense)
    tokenizer, depth = inputs.backbone.tokenizer, inputs.backbone.depth
    options: dict[str, Any] = {"num_layers": depth, "min_exit": settings.min_exit, "num_buckets": settings.num_buckets}
    if settings.speedup is not None:
        options["budget"] = _budget_for(hash, settings.speedup, inputs, dense)
    if hash == "random":
        return ExitTable.at_random(tokenizer, seed=settings.seed, **options)
    if hash == "clustered":
        return ExitTable.by_clusters(tokenizer, dense, seed=settings.seed, **options)
    if hash == "mi":
        texts, labels = _texts(inputs.data, with_dev=False), _labels(inputs.data)
        return ExitTable.by_mutual_information(tokenizer, texts, labels, progress=False, **options)
    return ExitTable.by_frequency(tokenizer, _texts(inputs.data), progress=False, **options)


def _by_importance(settings: FitSettings, inputs: TableInputs, dense: Any) -> ExitTable:
    tokenizer = inputs.backbone.tokenizer
    importance = inputs.importance(settings.signal, dense)
    shrinkage = Shrinkage(Prior(settings.prior), settings.pseudo_counts, settings.rarity)

    def table(budget: Budget) -> ExitTable:
        options: dict[str, Any] = {"signed": settings.signed, "shrinkage": shrinkage}
        if settings.min_exit is not None:
            options["min_exit"] = settings.min_exit
        return ExitTable.from_importance(tokenizer, importance, budget, model=dense, **options)

    if settings.speedup is not None:
        return table(_budget_for("importance", settings.speedup, inputs, dense))
    # Importance alone gives no budget: it spends as much as the frequency table does.
    frequency = table_for("frequency", settings, inputs, dense)
    budget = _budget(1.0, inputs, dense, inputs.train.ids)
    reached = budget.speedup_of(frequency.exit_layers.numpy(), frequency.num_layers, counted=True)
    for share in _SHARES:
        try:
            return table(replace(budget, speedup=share * reached))
        except TableError as error:
            # With few buckets, more tokens may exit early than importance was measured for.
            refused = error
    raise refused


def _clock(inputs: TableInputs, dense: Any) -> Clock:
    """Return a clock with texts of dev; a model that keeps some layers is timed against all of them."""
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


def _corpus_of(hash: str, inputs: TableInputs) -> list[Array]:
    """Return the token ids of the texts that a hash builds its table from."""
    splits = (inputs.train, inputs.dev) if hash == "frequency" else (inputs.train,)
    return [row for split in splits for row in split.ids]


def _budget_for(hash: str, speedup: float, inputs: TableInputs, dense: Any) -> Budget:
    """Count on the texts that the table is built from; importance uses train alone, so on dev if that is large."""
    if hash == "importance" and enough_held_out(len(inputs.dev)):
        return _budget(speedup, inputs, dense, inputs.dev.ids, held_out=True)
    return _budget(speedup, inputs, dense, _corpus_of(hash, inputs))


def _budget(speedup: float, inputs: TableInputs, dense: Any, rows: Sequence[Array], held_out: bool = False) -> Budget:
    return budget_on(rows, speedup, dense, held_out=held_out, full_layers=inputs.backbone.layers)


def budget_on(
    rows: Sequence[Array], speedup: float, dense: Any, *, held_out: bool, full_layers: int | None = None
) -> Budget:
    """Return a budget for a speed-up over the whole backbone, whatever depth is kept.

    rows: token ids of the texts that the table is built from, or held out from it; a sample of them is counted.
    full_layers: of the backbone, by default those of `dense`.
    """
    texts_with = np.zeros(dense.config.vocab_size, dtype=np.int64)
    for row in rows:
        texts_with[np.unique(row)] += 1
    ids = [rows[index].tolist() for index in _sample(len(rows))]
    counted: dict[str, Any] = {"held_out": held_out, "texts_with": texts_with, "full_layers": full_layers}
    return Budget.of(speedup, dense, ids, **counted)


def _texts(data: TaskData, with_dev: bool = True) -> list[Text]:
    """Return the texts that tokens are counted in: train and dev, as in the paper; labels are not used."""
    splits = (data.train, data.dev) if with_dev else (data.train,)
    return [text for split in splits for text in _texts_of(data.task, split)]


def _texts_of(task: Task, examples: Examples) -> list[Text]:
    """Return the texts of a split; the tagged words of an example are joined to one."""
    text = type_of(task).text
    return [text(example) for example in examples.texts]


def _labels(data: TaskData) -> list[Any]:
    labels = type_of(data.task).text_labels(data.train.targets or ())
    if labels is None:
        raise InputError("the hash mi needs a label for each text, not words or summaries; choose another hash")
    return labels


def _batches(inputs: TableInputs, dense: Any) -> Iterator[dict[str, Tensor]]:
    """Yield batches of training examples with labels, as a dense model takes them."""
    train = inputs.train
    sample = _sample(len(train))
    groups = groups_of(_texts(inputs.data, with_dev=False))
    for batch in make_batches([train.ids[index].tolist() for index in sample], None, Batching()):
        indices = [sample[number] for number in batch]
        tensors = train.training_inputs(indices)
        labels, words = train.batch_targets(indices), train.word_rows(indices)
        if words is not None:
            positions = tensors.get("decoder_input_ids", tensors["input_ids"])
            flat = torch.full((positions.numel(),), _IGNORED)
            labels = flat.index_copy(0, words, labels).view_as(positions)
        tensors |= {"labels": labels} | ({} if groups is None else {GROUPS: groups[indices]})
        yield {name: tensor.to(dense.device) for name, tensor in tensors.items()}


def _sample(examples: int) -> list[int]:
    order = np.random.default_rng(0).permutation(examples)
    return sorted(order[:_MEASURED].tolist())
