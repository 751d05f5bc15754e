"""HeadPrune (Michel et al., NeurIPS 2019): the heads that matter least to the loss are removed, the rest fine-tuned."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from hashee.data import Task
from hashee.data.task_types import type_of
from hashee.data.tokenized import Tokenized
from hashee.files import read_json, sha256_of_json, write_json
from hashee.study.head_pruning import Heads, PrunedModel, all_heads, head_importance, pruned_stepwise
from hashee.study.refusals import refuse_writing
from hashee.training.backbone import weights_fingerprint
from hashee.training.evaluation import Predictions, logits_for
from hashee.training.method import register_method
from hashee.training.objective import TargetLoss
from hashee.training.processes import Processes
from hashee.training.stages import WORK, Candidate, Choice, Dense, Fit

SHARES = (0.8, 0.6, 0.4, 0.25)
"""Of the heads that are left."""


class HeadPrune:
    """Fewer attention heads in every layer, chosen by the gradient of the loss on dev."""

    name = "head-prune"
    knob = "heads"

    def refusal(self, task: Task) -> str | None:
        """Refuse models that write text; elsewhere any loss has a gradient."""
        return refuse_writing(self.name, task)

    def train(self, fit: Fit) -> Choice:
        """Fine-tune the dense model; then remove heads step by step, and fine-tune again at each share of them."""
        dense = fit.dense()
        candidates = []
        for share, (heads, seconds) in zip(SHARES, chosen_heads(fit, dense), strict=True):
            model = PrunedModel(fit.backbone.packed(dense.backbone.load(fit.settings.seed)), heads)
            folder = fit.folder / WORK / f"{self.name}-{share:g}"
            job = fit.job(f"{share:.0%} of the heads", model)
            record = fit.train_into(folder, job, {"heads": heads})
            passes = fit.passes_after(dense)
            candidates.append(Candidate(f"{share:.0%} of the heads", folder, None, record, seconds, passes))
        return Choice(fit, candidates, dense=dense)

    def open(self, folder: Path) -> PrunedModel:
        """Return the model with the heads that are left."""
        return PrunedModel.from_folder(folder)

    def knobs(self, model: PrunedModel) -> Sequence[float]:
        """Return the share of the heads that are left."""
        return (model.share,)

    def run(self, model: PrunedModel, inputs: Mapping[str, Tensor], knob: float) -> Tensor:
        """Run all layers with the heads that are left."""
        logits: Tensor = model(**inputs).logits
        return logits

    def predict(self, model: PrunedModel, tokenized: Tokenized, processes: Processes, knob: float) -> Predictions:
        """Run all layers with the heads that are left, without padding."""
        return Predictions(logits_for(model, tokenized, processes), model.costs(tokenized))

    def sweep(
        self, model: PrunedModel, tokenized: Tokenized, processes: Processes, knobs: Sequence[float]
    ) -> list[Predictions]:
        """Predict once: a pruned model is one operating point."""
        return [self.predict(model, tokenized, processes, knob) for knob in knobs]


def chosen_heads(fit: Fit, dense: Dense) -> list[tuple[Heads, float]]:
    """Return the heads that are left at each share, and the seconds that it took to choose them after the share before.

    They are kept in the work folder, so that all processes and a resumed run have the same.
    """
    path = fit.folder / WORK / "heads.json"

    def choose() -> list[tuple[Heads, float]]:
        model = dense.backbone.load(fit.settings.seed).to(fit.processes.device)
        depends = {"weights": weights_fingerprint(model), "data": fit.data.fingerprint, "shares": SHARES}
        fingerprint = sha256_of_json(depends | {"max_length": fit.encoder.max_length})
        made = read_json(path)
        if made is None or made.get("fingerprint") != fingerprint:
            whole = all_heads(model)
            total = sum(map(len, whole))
            objective = TargetLoss(type_of(fit.data.task))
            began = time.monotonic()
            chosen = []
            steps = pruned_stepwise(
                lambda kept: head_importance(model, fit.dev, objective, kept),
                whole,
                [round(share * total) for share in SHARES],
            )
            for kept in steps:
                chosen.append({"kept": kept, "seconds": time.monotonic() - began})
                began = time.monotonic()
            made = {"fingerprint": fingerprint, "chosen": chosen}
            write_json(path, made)
        return [(tuple(map(tuple, each["kept"])), float(each["seconds"])) for each in made["chosen"]]

    return fit.processes.main_only(choose)


register_method(HeadPrune())
