"""What `run.json` says of a fit: versions, hardware, cost, and the spread over seeds."""

import platform
import statistics
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch

from hashee.cost.threads import usable_cores
from hashee.data.run_record import MacsRecord
from hashee.data.tokenized import Tokenized
from hashee.hf.flops import count_flops
from hashee.tables.table import ExitTable
from hashee.training.processes import Processes

_PACKAGES = ("hashee", "torch", "transformers", "accelerate", "tokenizers", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def hardware(processes: Processes) -> dict[str, Any]:
    """Return what the fit ran on."""
    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
        "processes": processes.count,
    }


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


def spread(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation (of the sample) of each measure."""
    return {
        name: {
            "mean": statistics.fmean(row[name] for row in rows),
            "std": statistics.stdev([row[name] for row in rows]) if len(rows) > 1 else 0.0,
        }
        for name in rows[0]
    }
