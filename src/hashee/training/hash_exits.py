"""The paper's method: a dense model, an exit table for its vocabulary, and a model whose tokens exit by that table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.data.run_record import MacsRecord
from hashee.data.tokenized import Tokenized
from hashee.export.loading import load
from hashee.hf.flops import count_flops
from hashee.tables.table import ExitTable
from hashee.training.evaluation import Array, logits_for
from hashee.training.processes import Processes
from hashee.training.search import search_grid
from hashee.training.stages import WORK, Choice, Dense, Fit


class HashExits:
    """Every token of the vocabulary has a fixed exit layer."""

    name = "hash-exits"

    def train(self, fit: Fit) -> Choice:
        """Fit the dense model if it is needed, then one with exits for each hash, or for each point of a grid."""
        dense = fit.dense() if fit.settings.needs_dense else None
        choose = fit_each_hash if fit.settings.search is None else search_grid
        return replace(choose(fit, dense), dense=dense)

    def open(self, folder: Path) -> Any:
        """Return the converted model."""
        return load(folder)

    def predict(self, model: Any, encoded: Tokenized, processes: Processes) -> list[Array]:
        """Run batches of like cost on the packed engine."""
        return logits_for(model, encoded, processes)

    def macs(self, model: Any, encoded: Tokenized) -> NDArray[np.int64]:
        """Count each text as the engine executes it, which is known before it runs: (examples,)."""
        reads_first_row = model.hashed_encoder.reads_first_row
        table = model.exit_table
        counts = (
            count_flops(model.config, [row.tolist()], table, reads_first_row=reads_first_row) for row in encoded.ids
        )
        return np.array([count.executed_macs for count in counts], dtype=np.int64)

    def cost(self, choice: Choice, model: Any, split: str, encoded: Tokenized) -> MacsRecord:
        """Count the split with the table, against the whole backbone."""
        config, reads_first_row = choice.fit.backbone.config, model.hashed_encoder.reads_first_row
        return macs_of(config, model.exit_table, encoded, split, reads_first_row)


def fit_each_hash(fit: Fit, dense: Dense | None) -> Choice:
    """Fit a candidate for each hash in the settings."""
    return Choice(fit, [fit.hashed(hash, dense, fit.folder / WORK / hash) for hash in fit.settings.hashes])


def macs_of(config: Any, table: ExitTable, encoded: Tokenized, split: str, reads_first_row: bool) -> MacsRecord:
    """Count what the texts of a split cost, per text: the whole backbone, the paper's count, and as executed.

    config: the backbone's at its full depth.
    """
    ids = [row.tolist() for row in encoded.ids]
    count = count_flops(config, ids, table, reads_first_row=reads_first_row)
    texts = max(count.texts, 1)
    return MacsRecord(
        split=split,
        texts=count.texts,
        tokens=count.tokens,
        dense_per_text=count.full_depth_macs / texts,
        paper_per_text=count.paper_macs / texts,
        executed_per_text=count.executed_macs / texts,
        speedup=count.speedup,
        paper_speedup=count.paper_speedup,
        speedup_vs_bert_base=count.speedup_vs_bert_base,
    )
