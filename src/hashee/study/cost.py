"""What a prediction costs that may stop after any layer: multiply-accumulates of each example up to each exit."""

from typing import Any

import numpy as np

from hashee.cost.macs import Costs, executed_by_layer, paper_by_layer
from hashee.data.tokenized import Tokenized
from hashee.families.adapters import adapter_for
from hashee.hf.flops import lengths_and_active
from hashee.study.multi_exit import MultiExitModel


def costs_by_exit(model: MultiExitModel, tokenized: Tokenized) -> Costs:
    """Count what each example costs if it leaves after each layer, internal classifiers included: (examples, layers).

    Whether a sequence stays is only known once the classifier after a layer has run, so all classifiers up to the exit
    count; the model's own head, which every method ends with, is free as in all counts of the project.
    """
    shape = adapter_for(model.config).shape(model.config)
    lengths, active = lengths_and_active(model.exit_table, [row.tolist() for row in tokenized.ids])
    deciding = np.zeros((len(lengths), model.layers), dtype=np.int64)
    classifiers: Any = model.classifiers
    for number, classifier in enumerate(classifiers):
        known = {length: classifier.macs(length) for length in np.unique(lengths).tolist()}
        deciding[:, number] = [known[length] for length in lengths.tolist()]
    if model.certainty is not None:
        deciding[:, : len(classifiers)] += model.certainty.in_features
    deciding = deciding.cumsum(axis=1)
    executed = executed_by_layer(shape, lengths, active, model.reads == "first").cumsum(axis=1)
    return Costs(executed + deciding, paper_by_layer(shape, lengths, active).cumsum(axis=1) + deciding)
