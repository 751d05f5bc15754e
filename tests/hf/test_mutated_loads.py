"""Whatever happens to a saved folder, it gives the right answer or a HasheeError: never a wrong one, and never hangs.

HASHEE_MUTATIONS sets how many loads are tried (default: 150), HASHEE_MUTATIONS_FROM the first seed.
"""

import os
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

import hashee
from architectures import LAYERS, make_model
from hashee.export import export_onnx
from hashee.hf.opening import read_table
from mutations import mutate
from small_tokenizer import WORDS, make_byte_level_tokenizer, make_tokenizer

COUNT = int(os.environ.get("HASHEE_MUTATIONS", "150"))
FIRST = int(os.environ.get("HASHEE_MUTATIONS_FROM", "0"))
SECONDS = 20
TEXTS = [
    "the film is good",
    "A dull plot, never great!",
    "the dog sat on the mat and the cat sat on the dog",
    "Zebra",
    "an actor of bad story",
]
FAMILIES = {
    "bert": (AutoModelForSequenceClassification, make_tokenizer),
    "distilbert": (AutoModelForTokenClassification, make_tokenizer),
    "roberta": (AutoModelForSequenceClassification, make_byte_level_tokenizer),
    "albert": (AutoModelForTokenClassification, make_tokenizer),
}


@dataclass(frozen=True)
class Target:
    """A folder to damage, one of the same kind to take files from, and how to get its answer."""

    folder: Path
    other: Path
    answer: Callable[[Path], list[Any]]
    right: list[Any]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError when the body takes longer."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def save_model(folder: Path, family: str, seed: int) -> Path:
    auto_class, make = FAMILIES[family]
    tokenizer: PreTrainedTokenizerBase = make()
    # Two of one family share everything but the numbers, as two runs of one training do.
    dense = make_model(family, auto_class, seed=seed, vocab_size=len(tokenizer), num_labels=3)
    table = hashee.ExitTable.by_frequency(tokenizer, [*TEXTS, *WORDS[: 5 + seed]], num_layers=LAYERS, progress=False)
    model = hashee.convert(dense, table, tokenizer=tokenizer)
    model.save_pretrained(folder, max_shard_size="20KB" if family == "albert" else "1GB")
    tokenizer.save_pretrained(folder)
    return folder


def in_torch(folder: Path) -> list[Any]:
    return list(hashee.load(folder).predict(TEXTS, progress=False))


def by_auto_class(folder: Path) -> list[Any]:
    return list(AutoModelForSequenceClassification.from_pretrained(folder).predict(TEXTS, progress=False))


def table_in(folder: Path) -> list[Any]:
    table = read_table(folder)
    return [table.exit_layers.numpy(), str(table.metadata())]


def in_onnx(folder: Path) -> list[Any]:
    return list(hashee.load(folder, "onnx", threads=1).predict(TEXTS, progress=False))


def in_openvino(folder: Path) -> list[Any]:
    return list(hashee.load(folder, "openvino", threads=1).predict(TEXTS, progress=False))


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    """Folders of every kind; the slow ones come up less often."""
    root = tmp_path_factory.mktemp("saved")
    logging.disable_progress_bar()
    pairs: dict[str, tuple[Path, Path]] = {}
    for family in FAMILIES:
        pairs[family] = tuple(save_model(root / f"{family}-{seed}", family, seed) for seed in (0, 1))  # type: ignore
    pairs["onnx"] = tuple(export_onnx(hashee.load(path), root / f"onnx-{path.name}") for path in pairs["bert"])  # type: ignore
    pairs["table"] = (root / "table-0", root / "table-1")
    for path, model in zip(pairs["table"], pairs["bert"], strict=True):
        hashee.load(model).exit_table.save(path)
    wanted: list[tuple[str, Callable[[Path], list[Any]], int]] = [
        *((family, in_torch, 3) for family in FAMILIES),
        ("bert", by_auto_class, 2),
        ("bert", table_in, 1),
        ("table", table_in, 2),
        ("onnx", in_onnx, 5),
        ("onnx", in_openvino, 1),
    ]
    made = [
        target
        for name, answer, times in wanted
        for target in times * [Target(*pairs[name], answer, answer(pairs[name][0]))]
    ]
    yield made
    logging.enable_progress_bar()


def equal(found: list[Any], right: list[Any]) -> bool:
    return len(found) == len(right) and all(
        one == two if isinstance(one, str) else one.shape == two.shape and np.allclose(one, two, atol=1e-5)
        for one, two in zip(found, right, strict=True)
    )


def outcome(target: Target, folder: Path, seed: int) -> tuple[str, str]:
    """Damage a copy of a folder, open it, and say what came of it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(target.folder, folder)
    done = f"seed {seed}, {target.answer.__name__}, {target.folder.name}: {mutate(folder, target.other, seed)}"
    began = time.monotonic()
    try:
        with time_limit(SECONDS):
            found = target.answer(folder)
    except hashee.HasheeError as error:
        if time.monotonic() - began >= SECONDS:
            return "hang", done
        message = str(error)
        tidy = "\n" not in message and len(message) < 1000
        return (type(error).__name__ if tidy else "untidy message"), f"{done}: {message[:2000]}"
    except TimeoutError as error:
        return "hang", f"{done}: {error}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        if target.answer is by_auto_class and not _passed_through_hashee(error):
            return "refused by transformers", done
        return "other exception", f"{done}: {type(error).__name__} {str(error)[:300]}"
    return ("right" if equal(found, target.right) else "wrong"), done


def _passed_through_hashee(error: BaseException) -> bool:
    """Tell whether an Auto class had come as far as hashee when it failed."""
    package = str(Path(hashee.__file__).parent)
    return any(frame.filename.startswith(package) for frame in traceback.extract_tb(error.__traceback__))


def test_no_damage_gives_a_wrong_answer(targets: list[Target], tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    bad = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in range(FIRST, FIRST + COUNT):
            found, told = outcome(targets[seed % len(targets)], tmp_path / "damaged", seed)
            outcomes[found] += 1
            if found in ("wrong", "hang", "other exception", "untidy message"):
                bad.append(f"{found}: {told}")
    finally:
        torch.set_num_threads(threads)
    print(dict(outcomes))
    assert not bad, "\n".join([str(dict(outcomes)), *bad])
    # Neither is everything refused, nor is nothing noticed.
    assert outcomes["right"]
    assert outcomes["CheckpointError"]
