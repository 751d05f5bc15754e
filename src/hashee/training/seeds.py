"""The same fit with several seeds: the best on dev is kept, mean and deviation are reported."""

from dataclasses import astuple, replace

from hashee.data import TaskData
from hashee.data.run_record import RunRecord, Seconds, dev_score
from hashee.training.method import Method
from hashee.training.outcome import finished_run, fit_once, put_in_place
from hashee.training.processes import Processes
from hashee.training.record import spread
from hashee.training.resources import writing_to
from hashee.training.settings import FitSettings


def fit_seeds(
    settings: FitSettings, each: FitSettings, data: TaskData, processes: Processes, method: Method
) -> RunRecord:
    """Fit once per seed, in OUTPUT/seed-N, and put the best on dev in OUTPUT; seeds that are finished are reused.

    settings: as the user gave them; each: what one seed is fitted with.
    """
    done = processes.main_only(lambda: finished_run(settings, data))
    if done is not None:
        return done
    runs = []
    for seed in range(settings.seed, settings.seed + settings.seeds):
        output = settings.output / f"seed-{seed}"
        runs.append(fit_once(replace(each, seed=seed, seeds=1, output=output), data, processes, method))
    best = max(runs, key=lambda run: dev_score(run.metrics))
    summary = {
        split: spread([run.metrics[split] or {} for run in runs]) if best.metrics[split] else None
        for split in ("dev", "test")
    }
    run = replace(
        best,
        settings=settings.to_dict(),
        best_seed=best.settings["seed"],
        seeds=[{"seed": run.settings["seed"], "metrics": run.metrics} for run in runs],
        summary=summary,
        seconds=Seconds(*(sum(each) for each in zip(*(astuple(run.seconds) for run in runs), strict=True))),
    )
    source = settings.output / f"seed-{run.best_seed}"
    with writing_to(settings.output):
        processes.main_only(lambda: put_in_place(source, settings.output, run))
    return run
