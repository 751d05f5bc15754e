"""transformers as it comes: a padded batch through SDPA, plain, compiled or in training."""

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from hashee.bench.baselines import Outputs, RunBatch
from hashee.bench.batches import Padded
from hashee.bench.protocol import ClockJob


def dense_model(job: ClockJob) -> Any:
    """Return the first layers of the model under test with its classifier."""
    return AutoModelForSequenceClassification.from_pretrained(
        job.model, num_hidden_layers=job.depth, attn_implementation="sdpa", dtype=torch.float32
    ).eval()


def tensors(batch: Padded) -> dict[str, torch.Tensor]:
    """Return a batch as tensors that share its memory; each (batch, length)."""
    return {name: torch.from_numpy(array) for name, array in batch.named().items()}


def load(job: ClockJob, compiled: bool = False) -> RunBatch:
    """Return the model as a function of padded batches."""
    model = dense_model(job)
    # One graph for all shapes: a batch's length is not known beforehand.
    return runner(torch.compile(model, dynamic=True) if compiled else model)


def runner(model: Any) -> RunBatch:
    """Return the inference function of any model that is called as transformers' are."""

    def run(batch: Padded) -> Outputs:
        with torch.inference_mode():
            logits: Outputs = model(**tensors(batch)).logits.numpy()
        return logits

    return run


def load_training(job: ClockJob) -> RunBatch:
    """Return one forward and backward pass of the model as a function of padded batches."""
    return training_runner(dense_model(job))


def training_runner(model: Any) -> RunBatch:
    """Return forward, loss and backward of any such model; gradients are dropped, no optimizer runs."""
    model.train()

    def run(batch: Padded) -> Outputs:
        inputs = tensors(batch)
        labels = torch.zeros(len(batch.input_ids), dtype=torch.long)
        output = model(**inputs, labels=labels)
        output.loss.backward()
        model.zero_grad(set_to_none=True)
        logits: Outputs = output.logits.detach().numpy()
        return logits

    return run
