"""The process of one peer: reads requests as JSON lines, answers each with one line, computes only when asked.

Run as a script. With `--light`, hashee's own package is not imported as a whole, so that peers that need neither torch
nor transformers do not carry their memory.
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
    """Holds the loaded peer between requests."""

    def __init__(self) -> None:
        self.run: Any = None
        self.tokens: Any = None
        self.batches: list[list[int]] = []

    def load(self, job: dict[str, Any]) -> dict[str, Any]:
        """Load the peer and the texts."""
        from hashee.bench.batches import Tokens, cut  # noqa: PLC0415  # after the package was set up

        task, peer = _task_of(job)
        self.tokens = Tokens.load(Path(task.texts))
        self.batches = cut(self.tokens, task.batch_size, task.order)
        self.run = _function(peer.load)(task, **peer.options)
        return {}

    def prepare(self, job: dict[str, Any]) -> dict[str, Any]:
        """Make the files that several workers share."""
        task, peer = _task_of(job)
        _function(peer.prepare)(task)
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

        answers: list[Any] = []
        start = time.perf_counter()
        for places in self.batches:
            answers.append(self.run(pad(self.tokens, places)))
        seconds = time.perf_counter() - start
        if not outputs:
            return {"seconds": seconds}
        by_place = {
            place: [float(value) for value in row]
            for places, rows in zip(self.batches, answers, strict=True)
            for place, row in zip(places, rows, strict=True)
        }
        return {"seconds": seconds, "outputs": [by_place[place] for place in sorted(by_place)]}

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


def _task_of(fields: dict[str, Any]) -> tuple[Any, Any]:
    """Return the job and its peer, after the modules that register further peers."""
    from hashee.bench.peers import PEERS  # noqa: PLC0415
    from hashee.bench.protocol import Job  # noqa: PLC0415

    job = Job.from_dict(fields)
    for module in job.modules:
        importlib.import_module(module)
    return job, PEERS[job.peer]


def _function(path: str) -> Callable[..., Any]:
    from hashee.bench.peers import function  # noqa: PLC0415

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


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    worker = Worker()
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {reason}"[:500]}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Keep standard output for answers; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _set_up(light="--light" in sys.argv)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
