"""The lead baseline: the beginning of a document is its summary; how much of it is chosen on dev."""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hashee.cost.generation import GenerationCosts
from hashee.cost.macs import Costs
from hashee.data import Task
from hashee.data.predictions import scores
from hashee.data.summaries import TokenizedSummaries
from hashee.data.tokenized import Tokenized
from hashee.errors import CheckpointError, InputError
from hashee.files import read_json, sha256_of_json, write_json
from hashee.hf.writing import text_of
from hashee.study.refusals import refuse_without_writing
from hashee.training.evaluation import Predictions, WritingCosts
from hashee.training.method import register_method
from hashee.training.processes import Processes
from hashee.training.stage import StageRecord
from hashee.training.stages import WORK, Candidate, Choice, Fit

FIRST_SENTENCE = 0
"""In place of a number of tokens."""
TOKENS = (FIRST_SENTENCE, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Full stops, exclamation and question marks, those of Chinese last.
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|[\u3002\uff01\uff1f])", re.DOTALL)
_FILE = "lead.json"


@dataclass(frozen=True)
class LeadWriter:
    """Copies the first tokens of a document, or its first sentence; it has no weights."""

    tokens: int

    def to(self, device: Any) -> "LeadWriter":
        """Return itself: there is nothing to move."""
        return self

    @property
    def config(self) -> Any:
        """Refuse to be a model: there is none."""
        raise InputError(
            "lead copies text and leaves no model behind; compare it with `hashee study run --method lead`"
        )

    def write(self, ids: Sequence[int], tokenizer: Any) -> str:
        """Return the beginning of a document. ids: its tokens, special ones included."""
        if self.tokens == FIRST_SENTENCE:
            text = text_of(list(ids), tokenizer)
            found = _SENTENCE.match(text)
            return text if found is None else found.group()
        special = set(tokenizer.all_special_ids)
        return text_of([token for token in ids if token not in special][: self.tokens], tokenizer)


class Lead:
    """Nothing is learnt: what a document begins with is what it is about."""

    name = "lead"
    knob = "tokens"

    def refusal(self, task: Task) -> str | None:
        """Refuse tasks whose models write nothing."""
        return refuse_without_writing(self.name, task)

    def train(self, fit: Fit) -> Choice:
        """Choose on dev how much is copied."""
        began = time.monotonic()
        tokenized, examples = fit.judged_dev
        found = {
            tokens: scores(fit.data.task, _write(LeadWriter(tokens), tokenized), examples.targets or ())
            for tokens in TOKENS
        }
        best = max(TOKENS, key=lambda tokens: found[tokens]["score"])
        folder = fit.folder / WORK / self.name
        fit.processes.main_only(lambda: write_json(folder / _FILE, {"tokens": best}))
        fingerprint = sha256_of_json({"data": fit.data.fingerprint, "tokens": TOKENS})
        record = StageRecord(fingerprint, found[best], 0, 0, time.monotonic() - began, [])
        title = "first sentence" if best == FIRST_SENTENCE else f"first {best} tokens"
        return Choice(fit, [Candidate(title, folder, None, record, 0.0, 0.0)])

    def open(self, folder: Path) -> LeadWriter:
        """Return what copies as much as was chosen."""
        stored = read_json(folder / _FILE)
        if stored is None or stored.get("tokens") not in TOKENS:
            raise CheckpointError(f"{folder} does not say how much of a document to copy; run the method again")
        return LeadWriter(stored["tokens"])

    def knobs(self, model: LeadWriter) -> Sequence[float]:
        """Return the tokens that are copied, 0 for a sentence."""
        return (float(model.tokens),)

    def run(self, model: LeadWriter, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Refuse: there are no logits."""
        raise InputError("lead has no logits; it copies text")

    def predict(self, model: LeadWriter, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Copy the beginning of every document, which costs no operations."""
        began = time.perf_counter()
        texts = _write(model, tokenized)
        seconds = time.perf_counter() - began
        nothing = np.zeros(len(tokenized), dtype=np.int64)
        costs = GenerationCosts(Costs(nothing, nothing), Costs(nothing, nothing), nothing)
        return Predictions(texts, costs.total, WritingCosts(costs, costs, [[] for _ in texts], 0.0, seconds))

    def sweep(
        self, model: LeadWriter, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Copy once: dev has chosen how much."""
        return [self.predict(model, tokenized, processes, knob) for knob in knobs]


def _write(model: LeadWriter, tokenized: Tokenized) -> list[Any]:
    assert isinstance(tokenized, TokenizedSummaries)  # other tasks are refused
    return [model.write(row.tolist(), tokenized.tokenizer) for row in tokenized.ids]


register_method(Lead())
