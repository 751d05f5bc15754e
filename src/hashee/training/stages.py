"""The stages of a fit: the dense model, the exit table and the model with exits, each made once and then reused."""

import copy
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hashee.data import Examples, Recipe, TaskData
from hashee.data.run_record import DENSE, DENSE_EQUAL
from hashee.data.splits import first_of_shuffled
from hashee.data.summaries import TokenizedSummaries
from hashee.data.task_types import TaskType, type_of
from hashee.data.texts import read_texts
from hashee.data.tokenized import Tokenized
from hashee.errors import InputError, TableError
from hashee.files import read_json, sha256_of_json, write_json
from hashee.hf.convert import convert
from hashee.hf.opening import read_table
from hashee.tables.table import ExitTable, tokenizer_fingerprint
from hashee.training.backbone import Backbone, Decoder, Seq2SeqBackbone, open_backbone, weights_fingerprint
from hashee.training.evaluation import logits_for, scores
from hashee.training.lesson import Converted, Lesson, WithTable
from hashee.training.objective import Objective, TargetLoss, objective_for
from hashee.training.outputs import Need
from hashee.training.processes import Processes
from hashee.training.settings import FitSettings
from hashee.training.stage import Stage, StageRecord, passes_in, run_stage
from hashee.training.tables import TableInputs, refuse_impossible, table_for
from hashee.training.teacher import RunningTeacher, StoredLogits, Teacher, teacher_logits
from hashee.training.trainer import TrainingJob

WORK = "work"
"""Sub-folder of the output for files that are only needed until the fit is finished."""
NEW_DECODER_RATE = 10.0
"""Times the learning rate of the pretrained encoder that a new decoder above it learns with."""


@dataclass(frozen=True)
class Dense:
    """The fitted dense model."""

    backbone: Backbone
    """How to open it; the hashed model keeps its first `depth` layers."""
    record: StageRecord | None
    """How it was fitted, if it was fitted here."""
    passes: float | None = None
    """Over the training examples; None if it was given, and nobody knows."""

    def packed(self) -> Any:
        """Return the model with all its layers, on the packed engine."""
        return self.backbone.packed(self.backbone.load(depth=self.backbone.layers))


@dataclass(frozen=True)
class Candidate:
    """A model that was fitted, with exits or by another method."""

    hash: str
    """The hash that built its table, or what else tells it from the other candidates."""
    folder: Path
    table: ExitTable | None
    """None for methods without one."""
    record: StageRecord
    table_seconds: float
    passes: float | None = None
    """Over the training examples, in all stages on the way to it; None where it started from a model that was given."""
    start_seconds: float = 0.0
    """That the model took which it starts from, if that is not the dense model of all candidates."""

    @property
    def score(self) -> float:
        """The metric on dev that it is chosen by."""
        return self.record.dev["score"]


class Fit:
    """What the stages share: settings, data, backbone and tokenized examples."""

    def __init__(self, settings: FitSettings, data: TaskData, processes: Processes) -> None:
        self.settings = settings
        self.data = data
        self.processes = processes
        self.recipe = settings.recipe(data.task.recipe)
        self.folder = settings.output
        depth = settings.layers
        if settings.table is not None and depth is None:
            depth = read_table(settings.table).num_layers
        self.given = None if settings.dense is None else self._given_dense(depth)
        if self.given is not None and "importance" in settings.hashes and self.given.layers != self.given.depth:
            raise InputError(
                f"importance is measured on a dense model of the table's depth, but {settings.dense} has "
                f"{self.given.layers} layers and depth is {self.given.depth}; leave out dense, and one is fitted"
            )
        start = self.given if settings.warm_start else None
        self.backbone = start or self._opened(settings.backbone, depth)
        other = (self.given or self.backbone).tokenizer
        if tokenizer_fingerprint(self.backbone.tokenizer) != tokenizer_fingerprint(other):
            raise InputError(f"{settings.dense} and the backbone {settings.backbone} have different tokenizers")
        self.encoder = self.backbone.encoder(settings.max_length)
        # It is saved with the models, so that texts are cut in use where they were cut in training.
        self.backbone.tokenizer.model_max_length = self.encoder.max_length

    def _opened(self, source: str, depth: int | None) -> Backbone:
        """Open a backbone as the settings say."""
        decoder = Decoder(self.settings.decoder_layers, self.settings.writing)
        return open_backbone(source, self.data.task, depth, decoder)

    @property
    def task_type(self) -> TaskType:
        """The type of the task, with the label smoothing of the settings."""
        return type_of(self.data.task).smoothed(self.settings.label_smoothing)

    def _given_dense(self, depth: int | None) -> Backbone:
        given = self._opened(str(self.settings.dense), depth)
        if not given.has_head():
            raise InputError(
                f"the model in {self.settings.dense} has no head for the labels of {self.data.task.name}; "
                f"leave out dense, and it is fitted"
            )
        return given

    def with_settings(self, **changes: Any) -> "Fit":
        """Return the same fit with some settings changed that do not concern data, backbone or output."""
        other = copy.copy(self)
        other.settings = replace(self.settings, **changes)
        return other

    def at_depth(self, depth: int) -> "Fit":
        """Return a fit of the first layers of the backbone, with a folder of its own."""
        if depth == self.backbone.depth:
            return self
        output = self.folder / WORK / f"depth-{depth}"
        return Fit(replace(self.settings, depth=depth, output=output), self.data, self.processes)

    def in_place_of(self, other: "Fit") -> "Fit":
        """Return this fit with the settings and the folder of the one that tried it, for what is kept."""
        kept = copy.copy(self)
        kept.settings, kept.folder = other.settings, other.folder
        return kept

    def with_recipe(self, recipe: Recipe) -> "Fit":
        """Return the same fit with another recipe for its hashed models."""
        other = copy.copy(self)
        other.recipe = recipe
        return other

    @cached_property
    def train(self) -> Tokenized:
        """The training examples, tokenized."""
        if not len(self.data.train):
            raise InputError(f"{self.data.task.name} has no training examples")
        return self.encoder(self.data.train)

    @cached_property
    def unlabelled(self) -> Examples | None:
        """More texts, without labels, if there are any."""
        path, task = self.settings.unlabelled, self.data.task
        if path is None:
            return None
        texts = [text for text in read_texts(path) if text not in ("", ("", ""))]
        if not texts:
            raise InputError(f"{path} holds no texts; leave out unlabelled, or name another file")
        if isinstance(texts[0], tuple) != task.pair:
            needed, found = ("pairs", "single texts") if task.pair else ("single texts", "pairs")
            raise InputError(f"{task.name} is about {needed} but {path} holds {found}")
        words = type_of(task).tags_words
        examples = Examples([tuple(text.split()) if words else text for text in texts], None)  # type: ignore[union-attr]
        limit = self.settings.unlabelled_limit
        return examples if limit is None else first_of_shuffled(examples, limit, self.settings.seed)

    def _about_unlabelled(self) -> dict[str, str]:
        """Return what models depend on that learn from texts without labels, if there are any."""
        return {} if self.unlabelled is None else {"unlabelled": sha256_of_json({"texts": list(self.unlabelled.texts)})}

    @cached_property
    def taught(self) -> Tokenized:
        """The training examples, and after them the texts without labels: what a teacher has something to say of."""
        return self.train if self.unlabelled is None else self.train.with_unlabelled(self.encoder(self.unlabelled))

    @cached_property
    def dev(self) -> Tokenized:
        """The examples that models are chosen by, tokenized."""
        if not len(self.data.dev) or self.data.dev.targets is None:
            raise InputError(f"{self.data.task.name} has no labelled dev examples to choose the best model by")
        return self.encoder(self.data.dev)

    @cached_property
    def test(self) -> Tokenized | None:
        """The examples that only the chosen model is evaluated on, tokenized; None if there are none."""
        return self.encoder(self.data.test) if self.data.test is not None and len(self.data.test) else None

    @cached_property
    def judged_dev(self) -> tuple[Tokenized, Examples]:
        """The dev examples that models are judged on: all, or as many as the settings say where texts are written."""
        if not isinstance(self.dev, TokenizedSummaries) or self.settings.eval_examples >= len(self.dev):
            return self.dev, self.data.dev
        some = first_of_shuffled(self.data.dev, self.settings.eval_examples, seed=0)
        return self.encoder(some), some

    def _dev_metrics(self, model: Any) -> dict[str, float]:
        """Return a model's metrics on dev while it trains; texts are written greedily."""
        tokenized, examples = self.judged_dev
        if isinstance(tokenized, TokenizedSummaries):
            tokenized = replace(tokenized, writing=replace(tokenized.writing, num_beams=1))
        return self.metrics(model, tokenized, examples)

    def _rates(self) -> dict[str, float]:
        """Return how much faster a decoder learns that was drawn anew, above an encoder that is pretrained."""
        if not isinstance(self.backbone, Seq2SeqBackbone):
            return {}
        times = self.settings.decoder_rate or (NEW_DECODER_RATE if self.backbone.builds else 1.0)
        return {} if times == 1 else {"model.decoder.": times}

    def metrics(self, model: Any, encoded: Tokenized, examples: Examples) -> dict[str, float]:
        """Return a model's metrics on a split; all processes call it together."""
        return scores(self.data.task, logits_for(model, encoded, self.processes), examples.targets or ())

    def dense(self) -> Dense:
        """Fit the dense model on the packed engine and write it as an ordinary Hugging Face model, or reuse it."""
        if self.given is not None:
            return Dense(self.given, None, passes_in(Path(self.given.source), self.data.fingerprint))
        model = self.backbone.load(self.settings.seed)
        # Speed-ups are timed on the device that it will be trained on.
        model.to(self.processes.device)
        self.processes.main_only(lambda: refuse_impossible(self.settings, self._table_inputs(), model))
        return self._dense_into(self.folder / DENSE, model, self.job("dense", self.backbone.packed(model)))

    def dense_equal(self, passes: float) -> Dense:
        """Fit the dense model in one schedule of as many passes as another model had in all its stages, or reuse it."""
        model = self.backbone.load(self.settings.seed)
        job = self.job(f"dense, {passes:g} passes", self.backbone.packed(model))
        job = replace(job, recipe=replace(self.recipe, epochs=passes))
        return self._dense_into(self.folder / DENSE_EQUAL, model, job)

    def _dense_into(self, folder: Path, model: Any, job: TrainingJob) -> Dense:
        record = self.train_into(folder, replace(job, saved=model))
        fitted = self._opened(str(folder), self.backbone.depth)
        return Dense(fitted, record, job.recipe.epochs)

    def hashed(self, hash: str, dense: Dense | None, folder: Path, teacher: Any = None) -> Candidate:
        """Fit a model with exits by a hash into a folder.

        dense: the model that it starts from, at its depth; teacher: the packed model that it follows, if another.
        """
        made = self.converted(hash, dense, folder, teacher)
        record = self.train_into(folder, self.job(f"hashed by {hash}", made.model, made.lesson), made.lesson.depends)
        return Candidate(hash, folder, made.table, record, made.seconds, self.passes_after(dense))

    def passes_after(self, dense: Dense | None) -> float | None:
        """Return the passes of a model that is trained by the recipe, from the dense one if that is how it starts."""
        if dense is None or not self.settings.warm_start:
            return self.recipe.epochs
        return None if dense.passes is None else dense.passes + self.recipe.epochs

    def converted(self, hash: str, dense: Dense | None, folder: Path, teacher: Any = None) -> Converted:
        """Make a table, kept in a folder, and a model with it, and say what the model is to learn."""
        made = self.with_table(hash, dense, folder)
        if teacher is None and dense is not None and self.settings.distillation:
            teacher = dense.packed()
        lesson = self.lesson(teacher, first_only=bool(made.model.hashed_encoder.reads_first_row))
        return Converted(made.model, made.table, made.seconds, replace(lesson, depends=made.depends | lesson.depends))

    def with_table(self, hash: str, dense: Dense | None, folder: Path) -> WithTable:
        """Make a table, kept in a folder, and a model with it that starts from the dense one or the backbone."""
        start = dense.backbone if dense is not None and self.settings.warm_start else self.backbone
        model = start.load(self.settings.seed)
        table, seconds = self._table(hash, folder / "table", dense, model)
        return WithTable(convert(model, table, self.backbone.tokenizer), table, seconds)

    def lesson(self, teacher: Any, first_only: bool) -> Lesson:
        """Return what models are trained for: the labels, and as the settings say the outputs of a teacher.

        teacher: a packed model, or None; first_only: the model's head reads the first row of a text and no other.
        """
        task_type, distillation = self.task_type, self.settings.distillation
        if not distillation or teacher is None:
            return Lesson(TargetLoss(task_type), self.train)
        objective = objective_for(task_type, distillation, first_only)
        taught_by, fingerprint = self.teacher(teacher, objective)
        depends: dict[str, Any] = {"teacher": fingerprint, "distill": [distillation.logits, distillation.temperature]}
        depends |= {"distill_hidden": distillation.hidden} if distillation.hidden else {}
        depends |= self._about_unlabelled()
        return Lesson(objective, self.taught, taught_by, depends)

    def _table(self, hash: str, folder: Path, dense: Dense | None, model: Any) -> tuple[ExitTable, float]:
        """Return a table, made once for all processes and resumed runs, and the seconds that it took."""
        fitted = model if dense is None or self.settings.warm_start else dense.backbone.load()
        names = ("speedup", "speedup_by", "num_buckets", "min_exit", "seed", "table", "max_length")
        importance = ("signal", "signed", "prior", "pseudo_counts", "rarity")
        depends = {name: str(getattr(self.settings, name)) for name in (*names, *importance)}
        # Fingerprints of tables that were made before have the hash under this name.
        depends |= {"kind": hash, "data": self.data.fingerprint, "weights": weights_fingerprint(fitted)}

        def make() -> float:
            made = read_json(folder / "made.json")
            if made is not None and made.get("fingerprint") == sha256_of_json(depends):
                with suppress(TableError):  # damaged: make it again
                    ExitTable.load(folder)
                    return float(made["seconds"])
            began = time.monotonic()
            cache = None if dense is None else Path(dense.backbone.source)
            inputs = self._table_inputs(cache if cache and cache.is_dir() else None)
            table_for(hash, self.settings, inputs, fitted.to(self.processes.device)).save(folder)
            made = {"fingerprint": sha256_of_json(depends), "seconds": time.monotonic() - began}
            write_json(folder / "made.json", made)
            return float(made["seconds"])

        seconds = self.processes.main_only(make)
        return ExitTable.load(folder), seconds

    def _table_inputs(self, cache: Path | None = None) -> TableInputs:
        return TableInputs(self.data, self.train, self.dev, self.backbone, cache, self.settings.bf16)

    def teacher(self, model: Any, objective: Objective) -> tuple[Teacher, str]:
        """Return a packed model as a teacher, with the outputs that an objective needs, and a fingerprint of it."""
        depends = {"weights": weights_fingerprint(model), "data": self.data.fingerprint}
        depends |= self._about_unlabelled()
        fingerprint = sha256_of_json(depends | {"max_length": self.encoder.max_length})
        packed = model.to(self.processes.device)
        # Logits over a whole vocabulary for every token are too many to store.
        if type_of(self.data.task).writes_text or objective.needs & (Need.HIDDEN_STATES | Need.ATTENTIONS):
            return RunningTeacher(packed, objective.needs), fingerprint
        path = self.folder / WORK / "teacher.safetensors"
        logits = teacher_logits(path, fingerprint, packed, self.taught, self.processes)
        return StoredLogits(logits, self.taught.starts), fingerprint

    def job(self, title: str, model: Any, lesson: Lesson | None = None) -> TrainingJob:
        """Return a training of a model by the recipe, judged on dev; on the labels, if no lesson is given."""
        lesson = lesson or Lesson(TargetLoss(self.task_type), self.train)
        return TrainingJob(
            title=title,
            model=model,
            saved=model,
            tokenizer=self.backbone.tokenizer,
            train=lesson.train,
            objective=lesson.objective,
            recipe=self.recipe,
            seed=self.settings.seed,
            dev_metrics=self._dev_metrics,
            teacher=lesson.teacher,
            rates=self._rates(),
        )

    def train_into(self, folder: Path, job: TrainingJob, more: dict[str, Any] | None = None) -> StageRecord:
        """Run a training and write the best on dev to a folder, unless it is there already.

        more: what the trained model depends on beyond its weights, the data, the recipe and the settings.
        """
        names = ("seed", "tokens", "bf16", "eval_steps", "patience")
        depends = {name: getattr(self.settings, name) for name in names} | {
            "data": self.data.fingerprint,
            "metric": self.data.task.metric,
            "tokenizer": tokenizer_fingerprint(self.backbone.tokenizer),
            "max_length": self.encoder.max_length,
            "start": weights_fingerprint(job.saved),
            "recipe": asdict(job.recipe),
        }
        depends |= {"rates": dict(job.rates)} if job.rates else {}
        if type_of(self.data.task).writes_text:
            own = ("label_smoothing", "max_new_tokens", "eval_examples")
            depends |= {name: getattr(self.settings, name) for name in own}
        return run_stage(Stage(folder, depends | (more or {})), job, self.settings, self.processes)


@dataclass(frozen=True)
class Choice:
    """Models that a method fitted, of which the best on dev is kept."""

    fit: Fit
    candidates: list[Candidate]
    search: dict[str, Any] | None = None
    """The grid that was searched, and the dev metrics of each trial."""
    dense: Dense | None = None
    """The dense model that they started from or are compared with, if there is one."""

    @property
    def best(self) -> Candidate:
        """The candidate with the best score on dev; the first of equals."""
        return max(self.candidates, key=lambda candidate: candidate.score)
