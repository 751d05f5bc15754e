"""Semantic similarity: how the similarities of pairs of texts rank beside those that people gave."""

from pathlib import Path
from typing import Any

import numpy as np

from hashee.data.output_types import OutputType
from hashee.data.texts import read_labelled
from hashee.distillation.agreement import spearman
from hashee.errors import InputError
from hashee.hf.text_models import TextModel, as_text_model, open_text_model, with_prompts


def evaluate_sts(model: Any, file: str | Path, *, dense: Any = None) -> dict[str, Any]:
    """Return the rank correlation of a model with the scores in a file of pairs, and of a dense one as `dense`.

    model, dense: folders, Hub ids or objects. file: columns of two texts and a score.
    """
    rows = list(read_labelled(file))
    if len(rows) < 3:
        raise InputError(f"{file} holds {len(rows)} pairs; a rank correlation needs at least 3")
    pairs = [pair for pair, _ in rows]
    if not all(isinstance(pair, tuple) for pair in pairs):
        raise InputError(f"{file} holds single texts; give pairs of texts with their similarity")
    try:
        gold = np.array([float(score) for _, score in rows])
    except ValueError:
        raise InputError(f"{file} has labels that are no numbers; give the similarity of each pair") from None
    opened = [
        open_text_model(each) if isinstance(each, str | Path) else as_text_model(each)
        for each in (model, dense)
        if each is not None
    ]
    found = [{"spearman": spearman(_similarity(each, pairs), gold)} for each in opened]
    result: dict[str, Any] = {**found[0], "pairs": len(pairs)}
    return result if len(found) == 1 else result | {"dense": found[1]}


def _similarity(model: TextModel, pairs: list[Any]) -> Any:
    """Return the score of each pair, or the cosine of its embeddings. (pairs,)"""
    if model.output is OutputType.SCORE:
        return np.array([row[-1] for row in model.outputs(pairs)])
    if model.output is OutputType.STATES:
        raise InputError("states of tokens are no embedding to compare; choose a pooling")
    # Each text once: collections repeat them.
    texts = list(dict.fromkeys(part for pair in pairs for part in pair))
    found = np.stack(list(model.outputs(with_prompts(texts, [model.prompt()]))))
    found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    number = {text: index for index, text in enumerate(texts)}
    first, second = ([number[pair[side]] for pair in pairs] for side in (0, 1))
    return (found[first] * found[second]).sum(axis=1)
