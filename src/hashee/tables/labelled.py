"""From labelled texts to the importance and the budget that a table by importance is built from."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from hashee.data import TaskData
from hashee.data.batching import Batching, make_batches, padded_inputs
from hashee.data.task_types import type_of
from hashee.data.tokenizing import TextTokenizer
from hashee.errors import InputError
from hashee.families.adapters import adapter_for
from hashee.tables.budget import Budget, enough_held_out
from hashee.tables.measuring import GROUPS, Importance, Movement, Signal, measure_importance, measure_movement

_PROBLEMS = ("regression", "multi_label_classification")


@dataclass(frozen=True)
class Measured:
    """The arguments of `ExitTable.from_importance`."""

    tokenizer: Any
    importance: Importance
    budget: Budget


def measured_on(
    model: PreTrainedModel,
    data: Iterable[Any] | TaskData,
    speedup: float,
    *,
    signal: Signal | Movement | str = Signal.LOSS,
    tokenizer: Any = None,
    progress: bool = True,
) -> Measured:
    """Measure importance on texts, with a budget whose executed speed-up is counted on the same texts.

    data: (text, label) rows, where a text may be a pair, or plain texts for a signal that needs no labels; or a task's
    data: then importance is measured on train and the speed-up counted on dev, if that is large enough.
    tokenizer: by default the one in the folder that the model was loaded from.
    """
    tokenizer = tokenizer or _tokenizer_of(model)
    texts, labels = _columns(data, with_labels=signal == Signal.LOSS)
    columns = _tokenized(texts, model, tokenizer)
    ids = columns["input_ids"]
    targets = None if labels is None else _targets(labels, model.config)
    more = {"labels": targets, GROUPS: groups_of(texts)}
    batches = [
        _padded(columns, indices, tokenizer)
        | {name: values[indices] for name, values in more.items() if values is not None}
        for indices in make_batches(ids, None, Batching())
    ]
    if signal in list(Movement):
        importance = measure_movement(model, batches, by=signal, tokenizer=tokenizer, progress=progress)
    else:
        importance = measure_importance(model, batches, signal=signal, tokenizer=tokenizer, progress=progress)
    if isinstance(data, TaskData) and enough_held_out(len(data.dev.texts)):
        held_out = _tokenized(list(data.dev.texts), model, tokenizer)["input_ids"]
        return Measured(tokenizer, importance, Budget.of(speedup, model, held_out, held_out=True))
    return Measured(tokenizer, importance, Budget.of(speedup, model, ids))


def groups_of(texts: Sequence[Any]) -> Tensor | None:
    """Number the rows of pairs by the text that they share with others, on the side where texts repeat more; (rows,).

    Several premises of one hypothesis, or answers to one question, are not independent of each other. None for texts.
    """
    if isinstance(texts[0], str):
        return None
    sides = list(zip(*texts, strict=True))
    side = min(sides, key=lambda texts: len(set(texts)))
    numbers = {text: number for number, text in enumerate(dict.fromkeys(side))}
    return torch.tensor([numbers[text] for text in side])


def _tokenized(texts: list[Any], model: PreTrainedModel, tokenizer: Any) -> dict[str, list[list[int]]]:
    adapter = adapter_for(model.config)
    return TextTokenizer.within(tokenizer, adapter.max_length(model.config), adapter.token_types)(texts)


def _padded(columns: dict[str, list[list[int]]], indices: list[int], tokenizer: Any) -> dict[str, Tensor]:
    arrays = padded_inputs(columns, indices, tokenizer.pad_token_id)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _tokenizer_of(model: PreTrainedModel) -> Any:
    source = model.config.name_or_path
    if not source:
        raise InputError("this model knows no tokenizer; pass tokenizer=...")
    return AutoTokenizer.from_pretrained(source)


def _columns(data: Iterable[Any] | TaskData, *, with_labels: bool) -> tuple[list[Any], list[Any] | None]:
    """Return texts, or pairs, and their labels."""
    if isinstance(data, TaskData):
        if type_of(data.task).tags_words:
            raise InputError("tags are for words; measure with measure_importance(model, batches) and from_importance")
        return list(data.train.texts), list(data.train.targets or ()) if with_labels else None
    rows = list(data)
    if not rows:
        raise InputError("there is not a single text to measure on")
    # (text, text) looks like (text, label); where the signal needs labels, the second is taken for one.
    if with_labels and not all(
        isinstance(row, Sequence) and not isinstance(row, str) and len(row) == 2 for row in rows
    ):
        raise InputError("importance needs (text, label) rows; without labels use signal='sampled' or 'distance'")
    if with_labels:
        return [row[0] for row in rows], [row[1] for row in rows]
    return [row if isinstance(row, str) else tuple(row) for row in rows], None


def _targets(labels: Sequence[Any], config: Any) -> Tensor:
    """Return labels as the model's loss takes them: class ids, scores, or for each label whether it applies."""
    if config.problem_type in _PROBLEMS or config.num_labels == 1:
        return torch.tensor(labels, dtype=torch.float32)
    names = config.label2id or {}
    numbers = [names.get(label) if isinstance(label, str) else label for label in labels]
    wrong = next((label for label, number in zip(labels, numbers, strict=True) if not _is_class(number, config)), None)
    if wrong is not None or None in numbers:
        known = ", ".join(map(str, names)) or f"0 to {config.num_labels - 1}"
        raise InputError(f"the model knows no label {wrong!r}; its labels are {known}")
    return torch.tensor(numbers, dtype=torch.int64)


def _is_class(number: Any, config: Any) -> bool:
    return isinstance(number, int) and 0 <= number < config.num_labels
