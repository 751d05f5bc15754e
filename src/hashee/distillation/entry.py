"""`hashee.speedup`: a model and texts in, the same model several times cheaper out; no labels are needed."""

import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hashee.cost.threads import torch_threads
from hashee.data.texts import Text
from hashee.distillation.settings import SpeedupSettings
from hashee.errors import HasheeError, InputError, TableError
from hashee.files import CONFIG, free_megabytes, full_disk_told, read_json, replaced_model, sha256_of_json, write_json
from hashee.hf.pretrained import quiet_transformers
from hashee.packages import require

if TYPE_CHECKING:
    from hashee.distillation.corpus import Corpus
    from hashee.distillation.report import SpeedupReport
    from hashee.distillation.student import Lesson
    from hashee.hf.text_models import TextModel
    from hashee.tables.table import ExitTable
    from hashee.training.processes import Processes

REPORT = "speedup.json"
"""File of the output folder with the report; it is written last."""
_SETTINGS = "settings.json"
_MADE = "made.json"
_INPUTS = "inputs"
_WORK = "work"
_ROOM = "make room and go on with --resume; what is finished is kept"


@dataclass(frozen=True)
class SpeedupResult:
    """A faster model and what it reached."""

    model: Any
    """Of the same kind as the one that was given: SentenceTransformer, CrossEncoder or a transformers model."""
    report: "SpeedupReport"
    folder: Path | None


def speedup(
    model: Any, texts: Iterable[Text] | str | Path | None = None, *, tokenizer: Any = None, **fields: Any
) -> Any:
    """Return a model that does the same several times cheaper, after one pass over texts without labels.

    model: a SentenceTransformer, CrossEncoder or transformers encoder, or a folder or Hub id of one; it is not changed.
    texts: like those in use, pairs for rerankers, or a file of them. speedup=3.0: multiply-accumulates of the model /
    those of the result. output: folder to write to, with a report; without it nothing is kept. The other fields are
    those of `SpeedupSettings`. tokenizer: of a transformers object that does not know its own.
    """
    return run_speedup(model, texts, tokenizer=tokenizer, **fields).model


def run_speedup(
    model: Any, texts: Iterable[Text] | str | Path | None = None, *, tokenizer: Any = None, **fields: Any
) -> SpeedupResult:
    """Do what `speedup` does, and return the report as well."""
    known = [field.name for field in dataclass_fields(SpeedupSettings) if field.name != "texts"]
    for name in fields:
        if name not in known:
            raise InputError(f"there is no setting {name!r}; the settings are {', '.join(known)}")
    if isinstance(texts, str | Path):
        fields["texts"], texts = Path(texts), None
    settings = SpeedupSettings(**fields)
    require("accelerate", "train", "making models faster")
    # Imported here, because the Trainer takes seconds and the packages for training are an extra.
    from hashee.training.processes import current_processes  # noqa: PLC0415

    with quiet_transformers(), torch_threads(settings.threads):
        processes = current_processes()
        if settings.output is not None:
            with full_disk_told(settings.output, _ROOM):
                run = _Run.begin(model, texts, tokenizer, settings, processes)
                return replace(run.finished(), folder=settings.output)
        if processes.count > 1:
            raise InputError("several processes need a folder that they share; name output")
        advice = "make room there, or name an output"
        with tempfile.TemporaryDirectory(prefix="hashee-speedup-") as folder, full_disk_told(Path(folder), advice):
            run = _Run.begin(model, texts, tokenizer, replace(settings, output=Path(folder)), processes)
            return run.finished()


@dataclass(frozen=True)
class _Run:
    """What is made faster, on which texts and where it is written."""

    dense: "TextModel"
    corpus: "Corpus"
    settings: SpeedupSettings
    folder: Path
    processes: "Processes"

    @classmethod
    def begin(cls, model: Any, texts: Any, tokenizer: Any, settings: SpeedupSettings, processes: "Processes") -> "_Run":
        """Open the model, read the texts and claim the folder."""
        from hashee.distillation.corpus import read_corpus  # noqa: PLC0415
        from hashee.hf.text_models import as_text_model, open_text_model  # noqa: PLC0415
        from hashee.training.backbone import weights_fingerprint  # noqa: PLC0415

        folder = settings.output
        assert folder is not None
        processes.main_only(lambda: _refuse_taken(folder, settings))
        if isinstance(model, str | Path):
            given = dense = open_text_model(model, settings.pooling)
        else:
            given = as_text_model(model, tokenizer, settings.pooling)
            dense = given.copied()
        if given.has_exits:
            raise InputError("tokens exit in this model already; name the one that it was made from")
        corpus = read_corpus(dense, texts, settings)
        inputs = {"model": weights_fingerprint(dense), "texts": corpus.fingerprint}
        processes.main_only(lambda: _check_space(dense, settings))
        processes.main_only(lambda: _claim(folder, settings, inputs))
        dense.to(processes.device).eval()
        return cls(dense, corpus, settings, folder, processes)

    def finished(self) -> SpeedupResult:
        """Make the table, train the student, and compare it with the dense model."""
        from hashee.distillation.depth import with_table  # noqa: PLC0415
        from hashee.distillation.report import SpeedupReport, make_report  # noqa: PLC0415
        from hashee.distillation.student import Lesson  # noqa: PLC0415
        from hashee.hf.text_models import open_text_model  # noqa: PLC0415

        known = read_json(self.folder / REPORT)
        if known is None:
            lesson = Lesson.of(self.dense, self.corpus, self.processes)
            student = with_table(self.dense, self._table()).to(self.processes.device)
            untrained = lesson.agreement(student, self.processes)
            training = self._trained(student, lesson)
            fast = open_text_model(self.folder, self.settings.pooling if self.dense.pooling else None)
            report = make_report(fast.to(self.processes.device), lesson, self.settings.speedup, untrained, training)
            report = replace(report, settings=read_json(self.folder / _WORK / _SETTINGS) or {})
            self.processes.main_only(lambda: write_json(self.folder / REPORT, report.to_dict()))
            self.processes.main_only(lambda: shutil.rmtree(self.folder / _WORK, ignore_errors=True))
        else:
            fast = open_text_model(self.folder, self.settings.pooling if self.dense.pooling else None)
            report = SpeedupReport(**known)
        return SpeedupResult(fast.whole.eval(), report, None)

    def _table(self) -> "ExitTable":
        """Return the table, made once for all processes and resumed runs."""
        from hashee.distillation.tables import importance_of, table_by  # noqa: PLC0415
        from hashee.tables.table import ExitTable  # noqa: PLC0415
        from hashee.training.backbone import weights_fingerprint  # noqa: PLC0415

        settings, folder = self.settings, self.folder / _WORK / "table"
        depends = {"weights": weights_fingerprint(self.dense), "texts": self.corpus.fingerprint, "seed": settings.seed}
        fingerprint = sha256_of_json(depends | {"speedup": settings.speedup, "depth": settings.depth})

        def make() -> None:
            if (read_json(folder / _MADE) or {}).get("fingerprint") == fingerprint:
                with suppress(TableError):  # damaged: make it again
                    ExitTable.load(folder)
                    return
            options: dict[str, Any] = {"seed": settings.seed, "progress": not settings.quiet}
            importance = importance_of(self.dense, self.corpus.train.tokenized, **options)
            table_by(importance, self.dense, self.corpus, settings.speedup, settings.depth).save(folder)
            write_json(folder / _MADE, {"fingerprint": fingerprint})

        self.processes.main_only(make)
        return ExitTable.load(folder)

    def _trained(self, student: "TextModel", lesson: "Lesson") -> dict[str, Any]:
        """Train the student into the folder, or write it as it is if there are no passes."""
        from hashee.distillation.student import distil  # noqa: PLC0415

        if self.settings.passes == 0:
            self.processes.main_only(lambda: _save(student, self.folder))
            return {}
        began = time.monotonic()
        record = distil(student, lesson, self.settings, self.folder, self.processes)
        seconds = max(record.seconds, time.monotonic() - began)
        return {"steps": record.steps, "best_step": record.best_step, "seconds": round(seconds, 1)} | {
            "history": record.history
        }


def _check_space(dense: "TextModel", settings: SpeedupSettings) -> None:
    """Raise before anything is computed or written if what the run will write would not fit."""
    from hashee.training.stage import check_space  # noqa: PLC0415

    folder = settings.output
    assert folder is not None
    if settings.passes:
        check_space(folder, dense)
        return
    needed = sum(weight.numel() * weight.element_size() for weight in dense.parameters()) / 1e6
    if free_megabytes(folder) < needed:
        raise HasheeError(
            f"the model takes {needed:,.1f} MB but {free_megabytes(folder):,.1f} MB are free in {folder}; make room, "
            f"or name another --output"
        )


def _save(student: "TextModel", folder: Path) -> None:
    with replaced_model(folder, REPORT) as incoming:
        student.save_pretrained(incoming)


def _refuse_taken(folder: Path, settings: SpeedupSettings) -> None:
    """Raise if the folder holds something that must not be overwritten, or nothing to go on with."""
    stored = _told(folder)
    if settings.overwrite and stored is not None:
        return
    if stored is None:
        if (folder / CONFIG).exists():
            raise InputError(f"{folder} holds a model that was not made here; name another output")
        if settings.resume and not folder.exists():
            raise InputError(f"there is nothing to resume in {folder}")
        return
    if not settings.resume and not _has_results(folder):
        return
    if not settings.resume:
        raise InputError(f"{folder} holds a run already; go on with it (--resume) or replace it (--overwrite)")
    if (difference := settings.difference(stored)) is not None:
        raise InputError(f"{folder} was begun otherwise: {difference}; name another output, or --overwrite")


def _told(folder: Path) -> dict[str, Any] | None:
    """Return what the run in a folder, finished or not, was told; None if there is none."""
    finished = read_json(folder / REPORT) or {}
    return read_json(folder / _WORK / _SETTINGS) or finished.get("settings")


def _has_results(folder: Path) -> bool:
    """Say whether a run has left more than what it was told, which a run that was refused leaves alone."""
    told = folder / _WORK / _SETTINGS
    return any(path.is_file() and path != told for path in folder.rglob("*"))


def _claim(folder: Path, settings: SpeedupSettings, inputs: dict[str, str]) -> None:
    """Write down what a run was told, and delete what one that is replaced has left.

    inputs: fingerprints of the dense model and of the texts.
    """
    seen = (_told(folder) or {}).get(_INPUTS, inputs)
    for name, fingerprint in inputs.items():
        if settings.resume and seen.get(name) != fingerprint:
            verb = "has" if name == "model" else "have"
            raise InputError(
                f"the {name} {verb} changed since the run in {folder} was begun; start again with --overwrite"
            )
    if settings.overwrite:
        (folder / REPORT).unlink(missing_ok=True)
        (folder / "stage.json").unlink(missing_ok=True)
        shutil.rmtree(folder / _WORK, ignore_errors=True)
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    if not (folder / REPORT).exists():
        write_json(folder / _WORK / _SETTINGS, settings.to_dict() | {_INPUTS: inputs})
