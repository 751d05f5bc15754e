"""A cascade of complete models of rising size: each text stops at the first model that is sure enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hashee.cost.macs import Costs
from hashee.data.tokenized import Tokenized
from hashee.errors import CheckpointError, InputError
from hashee.export.loading import load
from hashee.files import read_json, write_json
from hashee.hf.flops import costs_of
from hashee.study.exit_rules import confidence
from hashee.study.multi_exit import head_of
from hashee.training.outputs import Batch, Need, Outputs

MODELS = "cascade.json"
"""File that names the folders of a cascade's models, which lie beside its own."""


class CascadeModel(nn.Module):
    """Converted classifiers with the same labels and tokenizer, the cheapest first."""

    def __init__(self, models: Sequence[Any]) -> None:
        super().__init__()
        if len({model.config.num_labels for model in models}) != 1:
            raise InputError(f"the models of a cascade need the same labels; {len(models)} were given that differ")
        self.models: Any = nn.ModuleList(models)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.models[0].device
        return device

    @property
    def exit_table(self) -> Any:
        """By which no token exits; batches are made by it."""
        return self.models[0].exit_table

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return what every model says of a batch: (batch, models, labels)."""
        return torch.stack([model(**inputs).logits for model in self.models], dim=1)

    def leave(self, inputs: Mapping[str, Tensor], threshold: float) -> tuple[Tensor, Tensor]:
        """Run each model on the texts of a batch that no model before was sure enough of.

        Returns logits (batch, labels) and how many models each text passed (batch,).
        """
        batch = len(inputs["input_ids"])
        left = torch.arange(batch, device=self.device)
        passed = torch.zeros(batch, dtype=torch.long)
        logits = None
        for number, model in enumerate(self.models, start=1):
            found = model(**{name: tensor.index_select(0, left) for name, tensor in inputs.items()}).logits
            logits = found.new_zeros(batch, found.shape[-1]) if logits is None else logits
            stays = confidence(found) >= threshold
            if number == len(self.models):
                stays = torch.ones_like(stays)
            rows = left[stays]
            logits[rows], passed[rows.cpu()] = found[stays], number
            left = left[~stays]
            if not len(left):
                break
        assert logits is not None  # a cascade has at least one model
        return logits, passed

    def costs(self, tokenized: Tokenized) -> Costs:
        """Count what each example costs that stops at each model: (examples, models).

        The head of a model that sends a text on has decided that and counts; the last head that runs is free, as it is
        in all counts of the project.
        """
        ids = [row.tolist() for row in tokenized.ids]
        each = [costs_of(m.config, m.exit_table, ids, bool(m.hashed_encoder.reads_first_row)) for m in self.models]
        deciding = np.cumsum([0, *(head_macs(model) for model in self.models[:-1])])
        return Costs(
            np.stack([costs.executed for costs in each], axis=1).cumsum(axis=1) + deciding,
            np.stack([costs.paper for costs in each], axis=1).cumsum(axis=1) + deciding,
        )

    @classmethod
    def from_folder(cls, folder: Path) -> CascadeModel:
        """Open the models that `write_cascade` names, in eval mode."""
        names = (read_json(folder / MODELS) or {}).get("models")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{folder} holds no cascade ({MODELS} names no models); fit it again")
        return cls([load(folder.parent / name) for name in names]).eval()


def write_cascade(folder: Path, models: Sequence[Path]) -> None:
    """Name the models of a cascade, cheapest first, which lie in folders beside its own."""
    if any(model.parent != folder.parent for model in models):
        raise InputError(f"the models of the cascade {folder} must lie beside it, in {folder.parent}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MODELS, {"models": [model.name for model in models]})


def head_macs(model: Any) -> int:
    """Return the multiply-accumulates of a classifier's head for one text."""
    return sum(step.weight.numel() for step in head_of(model) if isinstance(step, nn.Linear))


def models_passed(logits: Tensor, threshold: float) -> Tensor:
    """Return how many models each text passes, from what all of them say of it: (examples,).

    logits: (examples, models, labels).
    """
    sure = confidence(logits) >= threshold
    sure[:, -1] = True
    return sure.int().argmax(dim=1) + 1


@dataclass(frozen=True)
class DifficultyMargin:
    """CascadeBERT's regularisation: be surer of easy examples, which the large model gets right, than of hard ones."""

    margin: float

    @property
    def needs(self) -> Need:
        """The labels, and the large model's logits, which tell easy examples from hard ones."""
        return Need.LABELS | Need.TEACHER

    def __call__(self, outputs: Outputs, batch: Batch, teacher_outputs: Outputs | None = None) -> Tensor:
        """Return the mean over pairs of what an easy example lacks to the margin over a hard one, for each example."""
        assert teacher_outputs is not None and batch.targets is not None  # they are needed
        sure = confidence(outputs.logits)
        easy = teacher_outputs.logits.argmax(-1) == batch.targets
        gaps = sure[easy][:, None] - sure[~easy][None]
        if not gaps.numel():
            return sure.sum() * 0  # nothing to compare
        return torch.relu(self.margin - gaps).mean() * len(sure)
