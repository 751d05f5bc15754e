"""Running out of disk space or memory: noticed before training where it can be, said in one line where it cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from hashee.errors import HasheeError
from hashee.files import free_megabytes, is_full_disk


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turn the many ways in which a full disk shows itself into one line."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:
        if is_full_disk(error):
            raise HasheeError(
                f"no space to write to {folder} ({free_megabytes(folder):,.0f} MB free); make room and go on with "
                f"--resume, nothing that was trained up to the last checkpoint is lost"
            ) from error
        raise


@contextmanager
def running_at_once(tokens: int) -> Iterator[None]:
    """Say what to do when a batch of so many tokens does not fit into memory."""
    try:
        yield
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise HasheeError(
                f"{tokens:,} tokens at once do not fit into memory; use fewer (--tokens {max(1, tokens // 2)}), which "
                f"takes the same steps"
            ) from error
        raise


def check_space(folder: Path, model: Any) -> None:
    """Raise if the checkpoints of a training would not fit.

    Two are kept while a third is written, each with the weights and two moments of AdamW, and the model at the end.
    """
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    needed = (3 * 3 + 2) * weights / 1e6
    if free_megabytes(folder) < needed:
        raise HasheeError(
            f"checkpoints in {folder} take about {needed:,.0f} MB but {free_megabytes(folder):,.0f} MB are free; "
            f"make room, or name another --output"
        )
