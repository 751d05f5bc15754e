"""How deep a faster model is, and which of the dense model's layers it keeps: a third knob beside table and training.

Layers spread from the first to the last, of which most tokens pass many, come closer to the dense model than all of
its layers, of which few tokens pass any: answers are read from the last layers, and what is left out between is soon
learnt.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hashee.errors import InputError, UnsupportedModel
from hashee.families.adapters import adapter_for
from hashee.families.layers import copy_layers, refuse_unlike_layers, spread_layers
from hashee.hf.text_models import TextModel
from hashee.tables.measuring import Importance
from hashee.tables.table import ExitTable

DEEPER = 2.0
"""Times as many layers as would reach a speed-up without exits."""


def depths_to_try(model: TextModel, speedup: float, depth: int | None) -> list[int]:
    """Return numbers of layers for a faster model, the best first; later ones are for where a table is impossible.

    depth: what the user wants; None: twice as many layers as would reach the speed-up without exits.
    """
    layers = _layers(model)
    if depth is not None and depth > layers:
        raise InputError(f"depth is {depth}, but the model has {layers} layers")
    try:
        refuse_unlike_layers(model.config, type(model.transformer).__name__)
    except UnsupportedModel:
        if depth not in (None, layers):
            raise
        return [layers]
    if depth is not None:
        return [depth]
    return list(range(min(layers, math.ceil(DEEPER * layers / speedup)), layers + 1))


def grouped(importance: Importance, depth: int) -> Importance:
    """Return what updates are worth if only so many layers are kept, each for those before it that are not, too."""
    *kept, _ = spread_layers(depth, importance.num_layers)
    bounds = [0, *kept, importance.num_layers]
    sums = [importance.absolute[:, first:last].sum(axis=1) for first, last in pairwise(bounds)]
    return replace(importance, absolute=np.stack(sums, axis=1), signed=None)


def with_table(model: TextModel, table: ExitTable) -> TextModel:
    """Return a copy of a dense model with as many of its layers as a table has, in which tokens exit."""
    made, layers = model.copied(), _layers(model)
    if table.num_layers < layers:
        copy_layers(made.transformer, model.transformer, spread_layers(table.num_layers, layers))
    return made.converted(table)


def _layers(model: TextModel) -> int:
    return adapter_for(model.config).shape(model.config).layers
