"""How far a table lands from the speed-up that was asked for, on texts that it was not made from.

Makes tables as `hashee fit --speedup` does, from the training texts, and counts them on the test texts. Importance is
measured on a dense MiniLM that is fitted for it once, in the work folder; nothing else is trained.

    HASHEE_DATA=... python benchmarks/landing.py --work out/landing

With `--shuffles 4` the examples of all splits are put together, shuffled and split again, four times, so that train,
dev and test have one distribution: what is then left is the error of the method, without a shift between splits.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from hashee.data import TaskData
from hashee.data.fingerprint import fingerprint_of
from hashee.data.splits import part_of, shuffled
from hashee.data.task import Examples
from hashee.hf.flops import count_flops
from hashee.study.data import Limits, study_data
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit
from hashee.training.tables import TableInputs, table_for

TASKS = ("sst2", "mrpc", "stsb", "scitail", "snli", "imdb")
SPEEDUPS = (2.0, 3.0, 5.0)
LIMITS: dict[str, Limits] = {"snli": (4_000, 1_000, 3_000), "imdb": (800, 500, 1_500)}
"""Examples of train, dev and test where all of them would take hours."""
TOKENS = {"imdb": 256}
"""Tokens of a text at the most."""
HASHES = ("frequency", "mi", "clustered", "random", "importance")


def main() -> None:
    """Write a row for every task, hash and speed-up as they come."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--tasks", nargs="*", default=TASKS)
    arguments.add_argument("--work", type=Path, default=Path("out/landing"))
    arguments.add_argument("--hashes", nargs="*", default=HASHES)
    arguments.add_argument("--shuffles", type=int, default=0, help="shuffle the examples of all splits so many times")
    arguments.add_argument(
        "--output", type=Path, help="default: landing.json or landing-reshuffled.json of the results"
    )
    options = arguments.parse_args()
    output = options.output or Path(f"results/quality/landing{'-reshuffled' if options.shuffles else ''}.json")
    rows: list[dict[str, Any]] = []
    for task in options.tasks:
        for shuffle in range(options.shuffles) if options.shuffles else (None,):
            for row in landings(task, options.work, options.hashes, shuffle):
                rows.append(row)
                print(row, flush=True)
                output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def reshuffled(data: TaskData, seed: int) -> TaskData:
    """Return splits of the same sizes in which every example may be in any of them."""
    assert data.test is not None
    splits = [data.train, data.dev, data.test]
    texts = [text for split in splits for text in split.texts]
    targets = [target for split in splits for target in split.targets or ()]
    order, everything = shuffled(len(texts), seed=seed), Examples(texts, targets)
    bounds = [0, *accumulate(map(len, splits))]
    train, dev, test = (part_of(everything, order[start:end]) for start, end in pairwise(bounds))
    return TaskData(data.task, train, dev, test, fingerprint_of(data.task, train, dev, test), data.notes)


def landings(task: str, work: Path, hashes: Sequence[str], shuffle: int | None) -> Iterator[dict[str, Any]]:
    """Yield what the tables of a task reach on its test texts, or on those of shuffled splits."""
    own = study_data(task, LIMITS.get(task, (None, None, None)))
    data = own if shuffle is None else reshuffled(own, shuffle)
    settings: dict[str, Any] = {"epochs": 2, "max_length": TOKENS.get(task), "quiet": True}
    fitted = Fit(FitSettings(task=own, output=work / task, **settings), own, current_processes()).dense()
    dense = Path(fitted.backbone.source)
    fit = Fit(FitSettings(task=data, output=work / "unused", dense=dense, **settings), data, current_processes())
    model = fit.backbone.load()
    # What is measured on other examples must not replace what the model's own cache holds.
    cache = dense if shuffle is None else work / "reshuffled" / f"{task}-{shuffle}"
    inputs = TableInputs(fit.data, fit.train, fit.dev, fit.backbone, cache=cache)
    assert fit.data.test is not None
    test = [row.tolist() for row in fit.encoder(fit.data.test).ids]
    for kind in hashes:
        for speedup in SPEEDUPS:
            asked = FitSettings(task=data, output=work / "unused", speedup=speedup, **settings)
            table = table_for(kind, asked, inputs, model)
            reached = count_flops(model.config, test, table, reads_first_row=True).speedup
            yield {
                "task": task,
                "hash": kind,
                "asked": speedup,
                "reached": reached,
                "off_percent": 100 * (reached / speedup - 1),
                "exits_from": int(table.exit_layers.min()),
            } | ({} if shuffle is None else {"shuffle": shuffle})


if __name__ == "__main__":
    main()
