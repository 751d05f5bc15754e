"""What exits cost in quality, on real weights and real data: every run writes one file as soon as it is finished.

Runs that have their file are not repeated, and several processes share the work, so the command can be started twice,
stopped and started again:

    HASHEE_DATA=... python benchmarks/quality.py --results results/quality --work out/quality sst2 mrpc stsb

Models with exits start from the dense model of the same seed (warm start); see `STUDIES` for what is run and
docs/results.md for what came out.
"""

import argparse
import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import hashee
from hashee.data import TaskData, load_task
from hashee.data.fingerprint import fingerprint_of
from hashee.data.splits import first_of_shuffled
from hashee.tables.table import ExitTable
from hashee.training.hash_exits import macs_of
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit

EPOCHS = {"mrpc": (3, 3), "stsb": (3, 3), "gte-small": (1, 1)}
"""Passes of the dense model, and of the ones with exits that start from it, by task or backbone where they are not
`USUAL_EPOCHS`."""
USUAL_EPOCHS = (2, 2)
NEVER = "never"
"""Of a model without exits: a shallower one, or the dense one trained for as long as those with exits."""
VOCABULARY = 30_522
"""Of BERT's uncased tokenizer, which all backbones here have."""
LIMITS = {"snli": (4_000, 1_000, 3_000), "scitail": (5_000, 1_304, 2_126), "imdb": (800, 500, 1_500)}
"""Examples of train, dev and test where all of them would take hours, drawn with seed 0."""
WHOLE = "-whole"
"""Ends the name of a task that is run with all examples after all."""
TOKENS = {"imdb": 256}
"""Tokens of a text at the most."""


COST = 3.0
"""Executed speed-up over the same depth at which most is compared: about 2.2x as the paper counts, so 4.4x against 12
layers. (Tables with equal buckets reach 2.4x as the paper counts; `hashes` compares at that cost.)"""
FEW = {"pseudo_counts": 20.0}
"""As many pseudo-counts on every task, the third way tried; runs with it are called `importance-few...`, or by what
else is tried with it."""
AT_ONE_COST = FEW | {"hash": "importance", "speedup": COST, "min_exit": 0}
PLAIN = FEW | {"rarity": 0.0}
"""Frequent types count as much as rare ones, the second way tried; runs with it are called `importance-plain...`."""
OVERALL = PLAIN | {"prior": "overall", "pseudo_counts": 5.0}
"""Rare types drawn towards the mean of all, the first way tried; runs with it are called `importance-overall...`."""
FEW_OF_NEIGHBOURS = PLAIN | {"prior": "neighbours", "pseudo_counts": 2.0}
"""What came closest to the dense model's predictions on dev before training with exits."""
RECIPES: dict[str, dict[str, Any]] = {
    "importance-of-neighbours": PLAIN | {"prior": "neighbours"},
    "importance-signed": {"signed": True},
    "importance-distilled": {"distill": 0.5},
    "frequency-distilled": {"hash": "frequency", "distill": 0.5},
}
"""Ways to build the table by importance, and to train, at one cost."""
WITHOUT_LABELS: dict[str, dict[str, Any]] = {
    "importance-sampled": {"signal": "sampled"},
    "importance-distance": {"signal": "distance"},
}


@dataclass(frozen=True)
class StudyRun:
    """A model that is fitted and measured."""

    task: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Those of `FitSettings` that it has of its own."""
    seed: int = 0
    backbone: str = "minilm"

    @property
    def label(self) -> str:
        """Name of its result file."""
        backbone = Path(self.backbone).name
        return f"{self.task}/{backbone}-{self.name}-seed{self.seed}"

    @property
    def dense(self) -> "StudyRun":
        """The dense model that it starts from."""
        depth = self.settings.get("depth")
        name = "dense" if depth is None or self.name.startswith("static") else f"dense{depth}"
        return replace(self, name=name, settings={} if depth is None or name == "dense" else {"depth": depth})


def at_cost(task: str, speedup: float, min_exit: int, kind: str = "importance", **more: Any) -> StudyRun:
    """Return a run with a table for a speed-up; see `StudyRun` for what more there is."""
    settings = {"hash": kind, "speedup": speedup, "min_exit": min_exit}
    return StudyRun(task, f"{kind}-{speedup:g}x-from{min_exit}", settings, **more)


def equal_cost(task: str, speedup: float, min_exit: int, **more: Any) -> list[StudyRun]:
    """Return importance and frequency at the same cost."""
    return [at_cost(task, speedup, min_exit, kind, **more) for kind in ("importance", "frequency")]


def variant(name: str, settings: dict[str, Any], run: StudyRun) -> StudyRun:
    """Return a run by importance in one of the ways tried besides the default."""
    return replace(run, name=run.name.replace("importance", f"importance-{name}"), settings=run.settings | settings)


overall = partial(variant, "overall", OVERALL)
plain = partial(variant, "plain", PLAIN)
few = partial(variant, "few", FEW)
many = partial(variant, "many", {"pseudo_counts": 100.0})
answer = partial(variant, "answer", FEW | {"signal": "answer"})


def studies(gte: str) -> dict[str, list[StudyRun]]:
    """Return what is run, the most telling first."""
    tasks = ("sst2", "mrpc", "stsb", "snli", "imdb", "scitail")
    first_layer = {"min_exit": 1}
    from_1 = [run for task in ("sst2", "mrpc", "stsb") for run in equal_cost(task, COST, 1)]
    by_importance = [StudyRun("sst2", "importance", {"hash": "importance"}, seed) for seed in (0, 1, 2)]
    on_gte = [
        StudyRun("sst2", f"{kind}{depth}", {"hash": kind, "depth": depth}, backbone=gte)
        for depth in (12, 6)
        for kind in ("frequency", "importance")
    ]
    return {
        **{task: equal_cost(task, COST, 0) for task in tasks},
        "hashes": [
            *by_importance[:1],
            *(StudyRun("sst2", kind, {"hash": kind}) for kind in ("frequency", "mi", "clustered", "random")),
            *(StudyRun("sst2", f"static{depth}", {"hash": NEVER, "depth": depth}) for depth in (3, 6)),
        ],
        "sst2-seeds": [
            *by_importance[1:],
            *(StudyRun("sst2", "frequency", {"hash": "frequency"}, seed) for seed in (1, 2)),
        ],
        "mrpc-seeds": [run for seed in (1, 2) for run in equal_cost("mrpc", COST, 0, seed=seed)],
        "scitail-seeds": [run for seed in (1, 2) for run in equal_cost("scitail", COST, 0, seed=seed)],
        "scitail-whole": equal_cost(f"scitail{WHOLE}", COST, 0),
        "gte": on_gte,
        # As the paper counts, 3.5x is what equal buckets by frequency cost: 2.4x, or 4.8x against 12 layers.
        "paper-cost": [at_cost("sst2", 3.5, 0, seed=seed) for seed in (0, 1, 2)],
        "costs": [*equal_cost("sst2", 2.4, 1), *equal_cost("sst2", 4, 0), *equal_cost("sst2", 6, 0)],
        "from1": [overall(run) if run.settings["hash"] == "importance" else run for run in from_1],
        "plain": [
            *map(plain, by_importance),
            *(plain(at_cost(task, COST, 0)) for task in tasks),
            *(plain(at_cost("mrpc", COST, 0, seed=seed)) for seed in (1, 2)),
            plain(at_cost("sst2", 2.4, 1)),
            plain(at_cost("sst2", 4, 0)),
            plain(StudyRun("sst2", "importance12", {"hash": "importance", "depth": 12}, backbone=gte)),
        ],
        "overall": [
            *map(overall, by_importance),
            *(overall(at_cost(task, COST, 0)) for task in tasks),
            overall(at_cost("mrpc", COST, 0, seed=1)),
            *(
                overall(StudyRun("sst2", "importance-from1", {"hash": "importance"} | first_layer, seed))
                for seed in (0, 1)
            ),
        ],
        **{
            f"{task}-recipes": [StudyRun(task, name, AT_ONE_COST | settings) for name, settings in recipes.items()]
            for task, recipes in (("mrpc", RECIPES), ("sst2", RECIPES | WITHOUT_LABELS))
        },
        "rarity": [
            StudyRun("scitail", f"importance-rarity{power:g}", AT_ONE_COST | {"rarity": power}) for power in (0.5, 2.0)
        ],
        "pseudo-counts": [
            *map(few, by_importance),
            *(few(at_cost(task, COST, 0)) for task in (*tasks, f"scitail{WHOLE}")),
            *(few(at_cost(task, COST, 0, seed=seed)) for task in ("mrpc", "scitail") for seed in (1, 2)),
            *(few(at_cost("sst2", cost, first)) for cost, first in ((2.4, 1), (4, 0), (6, 0))),
            *(few(run) for run in on_gte if run.settings["hash"] == "importance"),
            *(many(at_cost("scitail", COST, 0, seed=seed)) for seed in (0, 1, 2)),
            *(many(at_cost(task, COST, 0)) for task in ("stsb", "mrpc", "snli")),
            many(by_importance[1]),
        ],
        "answer": [answer(at_cost("scitail", COST, 0))],
        "by-band": [StudyRun("scitail", "importance-by-band", AT_ONE_COST | PLAIN | {"pseudo_counts": 500.0})],
        "neighbours": [StudyRun("sst2", "importance-of-neighbours-own", {"hash": "importance"} | FEW_OF_NEIGHBOURS)],
        "sst2-longer": [
            StudyRun("sst2", "importance-longer", {"hash": "importance", "epochs": 4}, seed) for seed in (0, 1)
        ],
        "longer": [overall(StudyRun("stsb", "importance-3x-from1-longer", AT_ONE_COST | first_layer | {"epochs": 9}))],
        "distilled": [
            overall(StudyRun("mrpc", "importance-from1-distilled", AT_ONE_COST | first_layer | {"distill": 0.5}))
        ],
    }


def main() -> None:
    """Run what is missing."""
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("studies", nargs="*", help="which studies; default: all")
    arguments.add_argument("--results", type=Path, default=Path("results/quality"))
    arguments.add_argument("--work", type=Path, default=Path("out/quality"), help="folder for models; large")
    arguments.add_argument("--gte", default="../shared/models/gte-small", help="folder of gte-small")
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    known = studies(options.gte)
    for name in options.studies or known:
        for run in known[name]:
            Study(options.results, options.work).run(run)


@dataclass(frozen=True)
class Study:
    """Where results and models go."""

    results: Path
    work: Path

    def run(self, run: StudyRun) -> None:
        """Fit a model and write its result, unless that is there or another process is at it."""
        with self._alone(run, wait=False) as mine:
            if not mine or self._result(run).exists():
                return
            print(f"{run.label} ...", flush=True)
            output = self.work / run.label
            settings = settings_of(run) | {"dense": self._dense(run.dense), "epochs": epochs_of(run)[1]}
            if settings.get("hash") == NEVER:
                ExitTable.never(VOCABULARY, settings["depth"]).save(output / NEVER)
                settings |= {"hash": "auto", "table": output / NEVER}
            fitted = hashee.fit(output=output, **settings, overwrite=True)
            self._write(run, fitted.run.to_dict())
            if run.name == "random":
                self._write_inconsistent(run, fitted)
            shutil.rmtree(output, ignore_errors=True)

    def _dense(self, run: StudyRun) -> Path:
        """Return the folder of a dense model, after fitting it if need be; others wait for it."""
        output = self.work / run.label
        with self._alone(run, wait=True):
            settings = FitSettings(output=output, epochs=epochs_of(run)[0], **settings_of(run))
            Fit(settings, data_of(run.task), current_processes()).dense()
        return output / "dense"

    def _write_inconsistent(self, run: StudyRun, fitted: hashee.FitResult) -> None:
        """Measure a model that was fitted with one random table and runs with another: the paper's Rand-incons."""
        fit = Fit(FitSettings(output=self.work / run.label, **settings_of(run)), data_of(run.task), current_processes())
        table = ExitTable.at_random(fit.backbone.tokenizer, fit.backbone.depth, seed=run.seed + 1000)
        model = fitted.model
        model.install_tables(table, None)
        test = fit.data.test
        assert test is not None
        metrics = {
            split: fit.metrics(model, fit.encoder(examples), examples)
            for split, examples in (("dev", fit.data.dev), ("test", test))
        }
        macs = macs_of(fit.backbone.config, table, fit.encoder(test), "test", reads_first_row=True)
        self._write(
            replace(run, name="random-inconsistent"), fitted.run.to_dict() | {"metrics": metrics, "macs": asdict(macs)}
        )

    def _write(self, run: StudyRun, found: dict[str, Any]) -> None:
        kept = {name: value for name, value in found.items() if name not in ("history", "settings", "candidates")}
        kept["dev_by_epoch"] = [row["score"] for row in found["history"] if "score" in row]
        kept["dense"] = {name: value for name, value in found["dense"].items() if name in ("layers", "metrics")}
        kept["backbone"] = found["backbone"] | {"name": Path(run.backbone).name}
        settings = {name: value for name, value in run.settings.items() if name != "dense"}
        result = {"name": run.name, "seed": run.seed, "settings": settings, "dense_epochs": epochs_of(run)[0]} | kept
        path = self._result(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        macs, metrics = found["macs"], found["metrics"]
        print(
            f"{run.label}: dev {metrics['dev']['score']:.4f} test {metrics['test']['score']:.4f} "
            f"dense {found['dense']['metrics']['dev']['score']:.4f} {found['dense']['metrics']['test']['score']:.4f} "
            f"executed {macs['speedup']:.3f}x paper {macs['paper_speedup']:.3f}x",
            flush=True,
        )

    def _result(self, run: StudyRun) -> Path:
        return self.results / f"{run.label}.json"

    @contextmanager
    def _alone(self, run: StudyRun, *, wait: bool) -> Iterator[bool]:
        """Keep other processes from the same run; the system ends the lock with the process."""
        path = self.work / f"{run.label}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def epochs_of(run: StudyRun) -> tuple[int, int]:
    """Return the passes of the dense model and of the one with exits."""
    dense, hashed = EPOCHS.get(Path(run.backbone).name) or EPOCHS.get(run.task, USUAL_EPOCHS)
    return dense, run.settings.get("epochs", hashed)


def settings_of(run: StudyRun) -> dict[str, Any]:
    """Return what a run tells `hashee.fit`, but for where it writes."""
    own = {"task": data_of(run.task), "backbone": run.backbone, "seed": run.seed, "max_length": TOKENS.get(run.task)}
    return own | {"quiet": True} | run.settings


@cache
def data_of(task: str) -> TaskData:
    """Load a task, or a part of it."""
    data = load_task(task.removesuffix(WHOLE))
    if task not in LIMITS:
        return data
    assert data.test is not None
    limits = LIMITS[task]
    train, dev = first_of_shuffled(data.train, limits[0], seed=0), first_of_shuffled(data.dev, limits[1], seed=0)
    test = first_of_shuffled(data.test, limits[2], seed=0)
    note = "train, dev and test are {:,}, {:,} and {:,} examples, drawn with seed 0".format(*limits)
    fingerprint = fingerprint_of(data.task, train, dev, test)
    return TaskData(data.task, train, dev, test, fingerprint, (*data.notes, note))


if __name__ == "__main__":
    main()
