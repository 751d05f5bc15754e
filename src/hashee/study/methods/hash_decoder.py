"""Exits by hash on both sides: a token of the document by one table, a token of the summary so far by another.

Where a position of the decoder exits is known from the token that it reads, before the step runs, so nothing has to
score the vocabulary to decide it.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hashee.data import Task
from hashee.data.summaries import TokenizedSummaries
from hashee.files import sha256_of_json
from hashee.hf.convert import convert
from hashee.study.methods.tables import HashTable
from hashee.study.refusals import refuse_without_writing
from hashee.tables.counting import TokenCounts
from hashee.tables.table import ExitTable, tokenizer_fingerprint
from hashee.training.backbone import Seq2SeqBackbone
from hashee.training.method import register_method
from hashee.training.stages import Candidate, Dense, Fit


@dataclass(frozen=True)
class HashDecoder(HashTable):
    """A model with a frequency table for its encoder and one for its decoder, trained with the exits of both."""

    decoder_min_exit: int = 1
    """0 lets the most frequent tokens of summaries exit before the decoder's first layer."""

    def refusal(self, task: Task) -> str | None:
        """Refuse models without a decoder."""
        return refuse_without_writing(self.name, task)

    def fitted(self, fit: Fit, dense: Dense, folder: Path, teacher: Any) -> Candidate:
        """Train the dense model with a table on each side; the decoder reads the summaries, and its tokens exit."""
        made = fit.converted(self.hash, dense, folder, teacher)
        table = decoder_table(fit, self.decoder_min_exit)
        model = dense.backbone.load(fit.settings.seed)
        model = convert(model, made.table, fit.backbone.tokenizer, decoder_table=table)
        lesson = replace(made.lesson, depends=made.lesson.depends | {"decoder_table": table.fingerprint})
        job = fit.job("hashed on both sides", model, lesson)
        record = fit.train_into(folder, job, lesson.depends)
        return Candidate(self.name, folder, made.table, record, made.seconds, fit.passes_after(dense))


def decoder_table(fit: Fit, min_exit: int) -> ExitTable:
    """Return a table by the frequency of the tokens that the decoder reads while it learns the training summaries."""
    train, tokenizer, backbone = fit.train, fit.backbone.tokenizer, fit.backbone
    assert isinstance(train, TokenizedSummaries) and isinstance(backbone, Seq2SeqBackbone)
    # The last token of a summary is predicted, but nothing is read after it.
    rows = [row[:-1] for row in train.targets or ()]
    occurrences = np.bincount(np.concatenate(rows), minlength=len(tokenizer)).astype(np.int64)
    corpus = sha256_of_json({"summaries": [row.tolist() for row in rows]})
    counts = TokenCounts(occurrences, len(rows), corpus, tokenizer_fingerprint(tokenizer))
    return ExitTable.by_frequency(tokenizer, counts, backbone.decoder_layers, min_exit=min_exit, progress=False)


register_method(HashDecoder("hash-decoder", "frequency"))
