"""What a table or a figure shows, where there is a choice."""

from dataclasses import dataclass, replace
from pathlib import Path

from hashee.data.registry import registered
from hashee.errors import InputError
from hashee.study.results import RunResult


@dataclass(frozen=True)
class ReportOptions:
    """Which results are shown, and where the files lie that are no results of runs."""

    task: str | None = None
    """Only this task; figures and counts of one task take SST-2, or the only one there is."""
    backbone: str | None = None
    """Only this backbone."""
    clocks: Path = Path("results/study/clocks.json")
    """Measured times, see `hashee.study.clocks`."""
    flops: Path = Path("results/study/flops.json")
    """Counted FLOPs, see `hashee.study.flops_table`; counted anew if the file is not there."""

    difficulty: Path = Path("results/study/difficulty")
    """Folder of what predictors of difficulty reach, see `hashee.study.difficulty`."""

    def __post_init__(self) -> None:
        # Results carry the name of the registry, however a user writes it (SST-2, sst2).
        if self.task is not None:
            object.__setattr__(self, "task", registered(self.task) or self.task)

    def select(self, results: list[RunResult]) -> list[RunResult]:
        """Return the results of the task and the backbone that were asked for, each under its method's label.

        Runs of a method with texts without labels, say, are no more seeds of those without.
        """
        return [
            replace(result, method=result.label)
            for result in results
            if self.task in (None, result.task) and self.backbone in (None, result.backbone)
        ]

    def one_task(self, results: list[RunResult], default: str = "sst2") -> str:
        """Return the task that was asked for, or the default if it has results, or the only one that has."""
        if self.task is not None:
            return self.task
        tasks = sorted({result.task for result in results})
        if default in tasks or not tasks:
            return default
        if len(tasks) > 1:
            raise InputError(f"there are results of {', '.join(tasks)}; say which task is meant")
        return tasks[0]
