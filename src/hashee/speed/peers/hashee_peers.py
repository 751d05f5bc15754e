"""hashee's packed engine: with exits, at full depth, and in training."""

from pathlib import Path
from typing import Any

from hashee.convert import convert
from hashee.speed.peers import Run
from hashee.speed.peers.transformers_peers import dense_model, runner, training_runner
from hashee.speed.protocol import Job
from hashee.table import ExitTable


def converted_model(job: Job, exits: bool = True) -> Any:
    """Return the model under test on the packed engine, with the workload's exit table or none."""
    dense = dense_model(job)
    table = ExitTable.load(Path(job.table)) if exits else ExitTable.never(dense.config.vocab_size, job.depth)
    return convert(dense, table)


def load(job: Job, exits: bool = True) -> Run:
    """Return the converted model as a function of padded batches."""
    return runner(converted_model(job, exits))


def load_training(job: Job) -> Run:
    """Return one forward and backward pass of the converted model as a function of padded batches."""
    return training_runner(converted_model(job))
