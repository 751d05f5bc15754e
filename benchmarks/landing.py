"""How far a table lands from the speed-up that was asked for, on texts that it was not made from.

Makes tables as `hashee fit --speedup` does, from the training texts, and counts them on the test texts. Nothing is
trained; importance is measured on the dense models that benchmarks/quality.py left in its work folder.

    HASHEE_DATA=... python benchmarks/landing.py --work out/quality --output results/quality/landing.json
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quality import Run, data_of, settings_of

from hashee.fitting.processes import current_processes
from hashee.fitting.settings import FitSettings
from hashee.fitting.stages import Fit
from hashee.fitting.tables import TableInputs, table_for
from hashee.flops import count_flops

TASKS = ("sst2", "mrpc", "stsb", "scitail", "snli", "imdb")
SPEEDUPS = (2.0, 3.0, 5.0)
HASHES = ("frequency", "mi", "clustered", "random", "importance")


def main() -> None:
    """Write a row for every task, hash and speed-up as they come."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--tasks", nargs="*", default=TASKS)
    arguments.add_argument("--work", type=Path, default=Path("out/quality"))
    arguments.add_argument("--output", type=Path, default=Path("results/quality/landing.json"))
    options = arguments.parse_args()
    rows: list[dict[str, Any]] = []
    for task in options.tasks:
        for row in landings(Run(task, "dense"), options.work):
            rows.append(row)
            print(row, flush=True)
            options.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def landings(run: Run, work: Path) -> Iterator[dict[str, Any]]:
    """Yield what the tables of a task reach on its test texts."""
    dense = work / run.label / "dense"
    fit = Fit(
        FitSettings(output=work / "unused", dense=dense, **settings_of(run)), data_of(run.task), current_processes()
    )
    model = fit.backbone.load()
    inputs = TableInputs(fit.data, fit.train, fit.dev, fit.backbone, cache=dense)
    assert fit.data.test is not None
    test = [row.tolist() for row in fit.encoder(fit.data.test).ids]
    for kind in HASHES:
        for speedup in SPEEDUPS:
            settings = FitSettings(output=work / "unused", speedup=speedup, **settings_of(run))
            table = table_for(kind, settings, inputs, model)
            reached = count_flops(model.config, test, table, reads_first_row=True).executed_speedup
            yield {
                "task": run.task,
                "hash": kind,
                "asked": speedup,
                "reached": reached,
                "off_percent": 100 * (reached / speedup - 1),
                "exits_from": int(table.exit_layers.min()),
            }


if __name__ == "__main__":
    main()
