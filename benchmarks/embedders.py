"""Embedders and rerankers made faster without labels, beside truncation that is distilled alike: one JSON per run.

    HASHEE_DATA=... HASHEE_MODELS=... python benchmarks/embedders.py --limit 40000 --output results/embedders

Every method has the same texts, passes, loss and schedule. Runs whose file is there are left out, so the command can be
stopped and repeated; an unfinished training goes on. STS-B and Cranfield are never trained on.

- hashed: exits by importance for the embedding or score, distilled, over as many layers as `hashee speedup` keeps;
  hashed-K: over K layers; untrained: the exits of hashed, converted only
- first-K, alternate-K: the first K layers, or K spread from the first to the last; K is on both sides of equal cost
- dense: the model as it is

With --collection an embedder learns from Cranfield's documents too, as it would from its user's own.
"""

import argparse
import gzip
import json
import math
import os
import random
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hashee.cost.threads import torch_threads
from hashee.data.output_types import OutputType
from hashee.data.texts import Text
from hashee.distillation.corpus import Corpus, read_corpus
from hashee.distillation.depth import with_table
from hashee.distillation.report import make_report
from hashee.distillation.settings import SpeedupSettings
from hashee.distillation.student import Lesson, distil
from hashee.distillation.tables import importance_of, table_by
from hashee.evaluation.retrieval import evaluate_retrieval
from hashee.evaluation.similarity import evaluate_sts
from hashee.families.adapters import adapter_for
from hashee.families.layers import copy_layers, spread_layers
from hashee.files import sha256_of_json, write_json
from hashee.hf.pretrained import quiet_transformers
from hashee.hf.text_models import TextModel, open_text_model
from hashee.tables.measuring import Importance
from hashee.tables.table import ExitTable
from hashee.training.processes import Processes, current_processes

MODELS = ("minilm", "gte-small", "ms-marco-minilm-l12")
SPEEDUPS = (2.0, 3.0, 5.0)
CANDIDATES = "minilm"
SENTENCES = ("SNLI/train", "WikiText-2/dev", "WikiText-2/test", "IMDb-unsup-text/all", "XSum/train")
"""Data sets that single sentences come from; those that are missing are left out."""
PASSAGES = ("SciTLDR-A/train", "CNN-DailyMail/dev", "XSum/train", "WikiText-2/dev", "IMDb-unsup-text/all")
"""Data sets of longer texts, half of an embedder's."""
TITLED = (("SciTLDR-A/train", "title"), ("SciTLDR-A/train", "summary"), ("XSum/train", "summary"))
"""Data sets whose documents have a short text that stands for a query, and its column."""
DOCUMENTS_PER_QUERY = 4
DOCUMENT_WORDS = 100
"""Of a document that a reranker learns from: it was made for passages, and so short ones cost a third."""
ANSWERS = "work/teacher.safetensors"
"""Where a run stores them; what is another lesson's is not used."""
_ENDS = re.compile(r"(?<=[.!?])\s+|\n+")


def rows_of(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of one file of the datasets."""
    path = Path(os.environ["HASHEE_DATA"]) / f"{name}.jsonl.gz"
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            yield from map(json.loads, file)


def long_texts(name: str) -> Iterator[str]:
    """Yield the texts of a data set as they are."""
    for row in rows_of(name):
        for column in ("text", "document", "premise", "hypothesis"):
            if column in row:
                yield row[column].strip()


def single_texts(number: int, share_of_passages: float, seed: int) -> list[Text]:
    """Return sentences and passages, each data set with its share."""
    draws, long = random.Random(seed), round(share_of_passages * number)

    def sample(pools: list[list[str]], wanted: int) -> list[str]:
        filled = [pool for pool in pools if pool]
        chosen: list[str] = []
        # Small pools first, so that large ones make up for them.
        for left, pool in zip(range(len(filled), 0, -1), sorted(filled, key=len), strict=True):
            chosen += draws.sample(pool, min(len(pool), math.ceil((wanted - len(chosen)) / left)))
        return chosen

    sentences = [
        list(
            dict.fromkeys(
                part for text in long_texts(name) for part in _ENDS.split(text) if 4 <= len(part.split()) <= 60
            )
        )
        for name in SENTENCES
    ]
    passages = [list(dict.fromkeys(text for text in long_texts(name) if len(text.split()) > 40)) for name in PASSAGES]
    found: list[Text] = [*sample(sentences, number - long), *sample(passages, long)]
    draws.shuffle(found)
    return found


def documents_with_sentences() -> list[Text]:
    """Return the documents of Cranfield and their sentences, without queries or judgements: a user's own texts."""
    documents = list(dict.fromkeys(row["text"].strip() for row in rows_of("Cranfield/corpus") if row["text"].strip()))
    return [*documents, *dict.fromkeys(part for text in documents for part in _ENDS.split(text) if part)]


def pairs(number: int, seed: int) -> list[Text]:
    """Return short texts with the document that they stand for and with others of the same data set."""
    draws = random.Random(seed)
    found: list[Text] = []
    for name, column in TITLED:
        rows = [row for row in rows_of(name) if row.get(column)]
        for row in rows:
            others = draws.sample(rows, DOCUMENTS_PER_QUERY - 1)
            passages = (" ".join(each["document"].split()[:DOCUMENT_WORDS]) for each in (row, *others))
            found += [(row[column], passage) for passage in passages]
    groups = [found[first : first + DOCUMENTS_PER_QUERY] for first in range(0, len(found), DOCUMENTS_PER_QUERY)]
    draws.shuffle(groups)
    return [pair for group in groups for pair in group][:number]


def shallower(model: TextModel, chosen: Sequence[int]) -> TextModel:
    """Return a copy with some of the layers, numbered from 1, on the packed engine."""
    made = model.copied()
    copy_layers(made.transformer, model.transformer, chosen)
    size = made.transformer.get_input_embeddings().num_embeddings
    return made.converted(ExitTable.never(made.tokenizer, len(chosen), vocab_size=size))


def methods_at(layers: int, speedup: float) -> list[str]:
    """Return the methods of a speed-up; truncation has both depths next to it."""
    depths = sorted({max(1, math.floor(layers / speedup)), math.ceil(layers / speedup)})
    # One layer is the first in either way.
    static = [
        f"{name}-{depth}" for name in ("first", "alternate") for depth in depths if (name, depth) != ("alternate", 1)
    ]
    return ["hashed", "untrained", f"hashed-{layers}", *static]


class Study:
    """One model with its texts; runs are written to a folder."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        folder = Path(os.environ.get("HASHEE_MODELS", ".")) / name
        self.dense = open_text_model(str(folder) if folder.is_dir() else name)
        self.scores = self.dense.output is OutputType.SCORE
        self.settings = SpeedupSettings(
            limit=options.limit, passes=options.passes, seed=options.seed, bf16=options.bf16
        )
        self.processes: Processes = current_processes()
        self.layers = adapter_for(self.dense.config).shape(self.dense.config).layers

    @cached_property
    def lesson(self) -> Lesson:
        """The texts and what the dense model says of them, read when the first run needs them."""
        limit, seed = self.options.limit, self.options.seed
        texts = pairs(limit, seed) if self.scores else single_texts(limit, self.options.passages, seed)
        if self.options.collection:
            texts += documents_with_sentences()
        corpus: Corpus = read_corpus(self.dense, texts, self.settings)
        return Lesson.of(self.dense, corpus, self.processes)

    @cached_property
    def importance(self) -> Importance:
        """What updates are worth to the dense model's answers, which all speed-ups share."""
        return importance_of(self.dense, self.lesson.corpus.train.tokenized, seed=self.options.seed)

    def quality(self, model: TextModel) -> dict[str, Any]:
        """Judge a model on data that nothing was trained on."""
        data = Path(os.environ["HASHEE_DATA"])
        sts = {
            split: evaluate_sts(model, data / "STS-B" / f"{split}.jsonl.gz")["spearman"] for split in ("dev", "test")
        }
        if not self.options.cranfield:
            return {"sts": sts}
        queries = self.options.queries if self.scores else None
        return {
            "sts": sts,
            "cranfield": evaluate_retrieval(model, data / "Cranfield", candidates=CANDIDATES, queries=queries),
        }

    def run(self, method: str, speedup: float | None) -> None:
        """Make, train and judge one model, unless its file is there."""
        told = {name: getattr(self.options, name) for name in ("limit", "passages", "passes", "bf16", "seed")}
        about = {"model": self.name, "method": method, "speedup": speedup, **told}
        about["batch_size"] = self.settings.batch_size
        about |= {"collection": True} if self.options.collection else {}
        at = "" if speedup is None else f"-{speedup:g}x"
        path = self.options.output / f"{self.name}-{method}{at}-{sha256_of_json(about)[:8]}.json"
        if path.exists():
            return
        print(f"{self.name} {method}{at}", flush=True)
        if method == "dense":
            write_json(path, about | {"quality": self.quality(self.dense)})
            return
        work = self.options.work / path.stem
        student = self.student(method, speedup or 1.0)
        untrained, training = self.lesson.agreement(student, self.processes), {}
        if method != "untrained":
            self.share_answers(work)
            record = distil(student, self.lesson, self.settings, work, self.processes)
            training = {"steps": record.steps, "seconds": record.seconds}
            # A training that was finished before has its weights in the folder.
            student = open_text_model(work, self.dense.pooling)
        # Without the texts that moved most, which are other people's.
        report = make_report(student, self.lesson, speedup or 1.0, untrained, training).to_dict() | {"moved": []}
        write_json(path, about | {"report": report, "quality": self.quality(student)})

    def share_answers(self, folder: Path) -> None:
        """Give a run the dense model's answers that another one has stored."""
        own, others = folder / ANSWERS, self.options.work.glob(f"{self.name}-*/{ANSWERS}")
        if (found := next(others, None)) is not None and not own.exists():
            own.parent.mkdir(parents=True)
            os.link(found, own)

    def student(self, method: str, speedup: float) -> TextModel:
        """Return a model before it is trained."""
        name, _, depth = method.partition("-")
        if name in ("hashed", "untrained"):
            corpus = self.lesson.corpus
            folder = (
                self.options.work / f"{self.name}-table{depth}-{speedup:g}x-{sha256_of_json(corpus.fingerprint)[:8]}"
            )
            if not (folder / "exit_table.json").exists():
                table_by(self.importance, self.dense, corpus, speedup, int(depth) if depth else None).save(folder)
            return with_table(self.dense, ExitTable.load(folder))
        chosen = spread_layers(int(depth), self.layers) if name == "alternate" else range(1, int(depth) + 1)
        return shallower(self.dense, tuple(chosen))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--speedups", nargs="+", type=float, default=SPEEDUPS)
    parser.add_argument("--methods", nargs="+", help="by the beginning of their names; default: all")
    parser.add_argument("--limit", type=int, default=40_000, help="texts")
    parser.add_argument("--passages", type=float, default=0.5, help="share of an embedder's texts that are long")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16; outputs are judged in float32")
    parser.add_argument("--collection", action="store_true", help="embedders learn from Cranfield's documents as well")
    parser.add_argument("--passes", type=float, default=1.0)
    parser.add_argument("--queries", type=int, default=45, help="of Cranfield that rerankers are judged on")
    parser.add_argument("--no-cranfield", dest="cranfield", action="store_false")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, default=Path("results/embedders"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/embedders"), help="checkpoints and trained models")
    options = parser.parse_args()
    wanted = tuple(options.methods or ("",))
    with quiet_transformers(), torch_threads(options.threads):
        for name in options.models:
            study = Study(name, options)
            planned: list[tuple[str, float | None]] = [("dense", None)]
            for speedup in options.speedups:
                for method in methods_at(study.layers, speedup):
                    # Truncation does not know what speed-up was asked for.
                    each = (method, None if method.startswith(("first", "alternate")) else speedup)
                    planned += [] if each in planned else [each]
            for method, at in planned:
                if method.startswith(wanted):
                    study.run(method, at)


if __name__ == "__main__":
    main()
