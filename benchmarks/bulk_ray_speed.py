"""Two Ray actors with a thread each against one, over the same rows, in interleaved rounds.

    python benchmarks/bulk_ray_speed.py --rows 6000 --rounds 3

Actors are started, and the model is opened, before the clock runs: a job over a few parts comes first in each round,
and the time between the tenth part and the last is taken.
"""

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("RAY_worker_niceness", "0")  # other work on this machine must not starve the actors

from hashee.bulk.ray_engine import RayEngine
from hashee.bulk.run import run_job
from hashee.bulk.settings import BulkJob, ModelOptions, RowOptions
from hashee.study.ray_engine import connected, require_ray
from hashee.study.workers import Workers

WORDS = "the a of film story good bad plot actor never always house river market price energy light green small"
SKIPPED = 0.2
"""Part of the parts that are written before the clock starts."""


def seconds_of(job: BulkJob, actors: int) -> float:
    """Return the seconds between the first parts of a job and its last, by the times of the files."""
    run_job(job, RayEngine(actors=actors))
    times = sorted(path.stat().st_mtime for path in job.output.glob("part-*"))
    first = int(SKIPPED * len(times))
    return (times[-1] - times[first]) / (len(times) - 1 - first) * len(times)


def main() -> None:
    """Run the rounds and print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    for name, value in (("rows", 6000), ("rounds", 3), ("part-rows", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    place, chance = Path(tempfile.mkdtemp(prefix="bulk-speed-")), random.Random(0)
    lines = [" ".join(chance.choices(WORDS.split(), k=chance.randint(3, 40))) for _ in range(asked.rows)]
    (place / "rows.txt").write_text("\n".join(lines) + "\n")
    model = asked.model if asked.model == "minilm" else str(Path(asked.model).absolute())
    rates: dict[int, list[float]] = {1: [], 2: []}
    with connected(require_ray(), Workers("ray", jobs=2, threads=1)):
        for number in range(asked.rounds):
            for actors in (1, 2) if number % 2 == 0 else (2, 1):
                output = place / f"{number}-{actors}"
                rows = RowOptions(part_rows=asked.part_rows)
                start = time.perf_counter()
                seconds = seconds_of(BulkJob(ModelOptions(model), place / "rows.txt", output, rows, 1), actors)
                rates[actors].append(asked.rows / seconds)
                whole = asked.rows / (time.perf_counter() - start)
                print(
                    f"round {number}, {actors} actors: {rates[actors][-1]:,.0f} rows/s ({whole:,.0f} with start)",
                    flush=True,
                )
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    print(
        f"two actors against one: median {statistics.median(ratios):.2f}, {', '.join(f'{each:.2f}' for each in ratios)}"
    )
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
