"""The process of one baseline: reads requests as JSON lines, replies to each with one line, computes only when asked.

Run as a script. With `--light`, hashee's own package is not imported as a whole, so that baselines that need neither
torch nor transformers do not carry their memory.
"""

import importlib
import json
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TextIO

PACKAGE = Path(__file__).resolve().parents[1]


class Worker:
    """Holds the loaded baseline between requests."""

    def __init__(self) -> None:
        self.run: Any = None
        self.tokens: Any = None
        self.batches: list[list[int]] = []

    def load(self, job: dict[str, Any]) -> dict[str, Any]:
        """Load the baseline and the texts."""
        from hashee.bench.batches import TokenizedTexts, cut  # noqa: PLC0415  # after the package was set up

        clock_job, baseline = _job_of(job)
        self.tokens = TokenizedTexts.load(Path(clock_job.texts))
        self.batches = cut(self.tokens, clock_job.batch_size, clock_job.order)
        self.run = _function(baseline.load)(clock_job, **baseline.options)
        return {}

    def prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        """Make the files that several workers share."""
        clock_job, baseline = _job_of(job)
        _function(baseline.prepare)(clock_job)
        return {}

    def first(self) -> dict[str, Any]:
        """Run the first batch, in which compilers do their work."""
        from hashee.bench.batches import pad  # noqa: PLC0415

        start = time.perf_counter()
        self.run(pad(self.tokens, self.batches[0]))
        return {"seconds": time.perf_counter() - start}

    def round(self, outputs: bool = False) -> dict[str, Any]:
        """Run every batch, padding included, and return the seconds; on request also the outputs in arrival order."""
        from hashee.bench.batches import pad  # noqa: PLC0415

        found: list[Any] = []
        start = time.perf_counter()
        for indices in self.batches:
            found.append(self.run(pad(self.tokens, indices)))
        seconds = time.perf_counter() - start
        if not outputs:
            return {"seconds": seconds}
        by_text = {
            index: [float(value) for value in row]
            for indices, rows in zip(self.batches, found, strict=True)
            for index, row in zip(indices, rows, strict=True)
        }
        return {"seconds": seconds, "outputs": [by_text[index] for index in sorted(by_text)]}

    def sgemm(self, size: int, repeats: int) -> dict[str, Any]:
        """Return the GFLOP/s of a square float32 matrix product, by torch or by numpy, whichever is faster."""
        import numpy as np  # noqa: PLC0415
        import torch  # noqa: PLC0415

        left, right = torch.rand(size, size), torch.rand(size, size)
        products: list[Callable[[], Any]] = [lambda: left @ right, lambda: np.matmul(left.numpy(), right.numpy())]
        best = min(median(_timed(product) for _ in range(repeats)) for product in products)
        return {"gflops": 2 * size**3 / best / 1e9}

    def memory(self) -> dict[str, Any]:
        """Return the most resident memory that this process has had."""
        from hashee.cost.machine import peak_memory_mb  # noqa: PLC0415

        return {"peak_memory_mb": peak_memory_mb()}


def _timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _job_of(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return the job and its baseline, after the modules that register further baselines."""
    from hashee.bench.baselines import BASELINES  # noqa: PLC0415
    from hashee.bench.protocol import ClockJob  # noqa: PLC0415

    job = ClockJob.from_dict(fields)
    for module in job.modules:
        importlib.import_module(module)
    return job, BASELINES[job.baseline]


def _function(path: str) -> Callable[..., Any]:
    from hashee.bench.baselines import function  # noqa: PLC0415

    return function(path)


def _set_up(light: bool) -> None:
    """Make `hashee` importable: as a whole, or as an empty package around its modules."""
    sys.path.append(str(PACKAGE.parent))
    if light:
        package = types.ModuleType("hashee")
        package.__path__ = [str(PACKAGE)]
        sys.modules["hashee"] = package
    else:
        import torch  # noqa: PLC0415

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def serve(requests: TextIO, replies: TextIO) -> None:
    """Reply to requests until there are no more."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        try:
            reply = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            reply = {"error": f"{type(error).__name__}: {reason}"[:500]}
        print(json.dumps(reply), file=replies, flush=True)


def main() -> None:
    """Keep standard output for replies; whatever libraries print goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _set_up(light="--light" in sys.argv)
    serve(sys.stdin, replies)


if __name__ == "__main__":
    main()
