"""Depth and table chosen together for a speed-up, and texts without labels that the dense model teaches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fitting_data import WORDS, make_backbone, make_data

from hashee.data.task import Kind
from hashee.errors import InputError
from hashee.training import FitSettings, fit
from hashee.training.hash_exits import depths_for
from hashee.training.outputs import Outputs, batch_of
from hashee.training.processes import current_processes
from hashee.training.stages import Fit


def make_fit(backbone: Path, output: Path, **settings: Any) -> Fit:
    data = settings.pop("task", make_data())
    return Fit(
        FitSettings(task=data, output=output, backbone=str(backbone), quiet=True, **settings), data, current_processes()
    )


def write_texts(path: Path, count: int = 40) -> Path:
    draws = np.random.default_rng(9)
    texts = [" ".join(draws.choice([*WORDS, "bad", "good"], size=6)) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


# --- texts without labels -----------------------------------------------------------------------------------


def test_only_labelled_examples_count_against_targets(backbone: Path, tmp_path: Path) -> None:
    run = make_fit(backbone, tmp_path, unlabelled=write_texts(tmp_path / "more.jsonl"))
    assert len(run.taught) == len(run.train) + 40 and run.taught.labelled == len(run.train)
    lesson = run.lesson(run.dense().packed(), first_only=True)
    labelled, unlabelled = [0, 1], [len(run.train), len(run.train) + 5]
    batch = batch_of(run.taught, [*labelled, *unlabelled])
    assert batch.labelled is not None and batch.labelled.tolist() == [True, True, False, False]
    assert batch.targets is not None and batch.targets.tolist() == list(run.data.train.targets or ())[:2]
    logits = torch.randn(4, 2, requires_grad=True)
    assert lesson.teacher is not None
    lesson.objective(Outputs(logits), batch, lesson.teacher.outputs(batch)).backward()
    assert logits.grad is not None and bool((logits.grad.abs().sum(1) > 0).all()), "all of them are taught"
    alone = batch_of(run.taught, unlabelled)
    assert alone.targets is not None and len(alone.targets) == 0
    assert torch.isfinite(lesson.objective(Outputs(logits[2:]), alone, lesson.teacher.outputs(alone)))


def test_the_teacher_answers_the_added_texts(backbone: Path, tmp_path: Path) -> None:
    run = make_fit(backbone, tmp_path, unlabelled=write_texts(tmp_path / "more.jsonl"), epochs=1)
    dense = run.dense()
    lesson = run.lesson(dense.packed(), first_only=True)
    last = len(run.taught) - 1
    batch = batch_of(run.taught, [last])
    assert lesson.teacher is not None
    with torch.no_grad():
        expected = dense.backbone.load().eval()(**batch.inputs).logits
    torch.testing.assert_close(lesson.teacher.outputs(batch).logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Kind.CLASSES, Kind.SCORE, Kind.LABELS, Kind.TAGS])
def test_every_type_of_task_learns_from_them(kind: Kind, backbone: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "quiet": True, "epochs": 1}
    texts = write_texts(tmp_path / "more.jsonl")
    result = fit(task=make_data(kind), hash="frequency", unlabelled=texts, **options)
    steps = result.run.candidates[0].training.steps
    assert steps == (96 + 40) // 8, "one pass over all texts, in steps of eight"
    assert result.run.dense is not None and result.run.dense.training is not None
    assert result.run.dense.training.steps == 96 // 8, "the dense model has learned from the labels alone"


def test_a_limit_takes_some_of_them(backbone: Path, tmp_path: Path) -> None:
    texts = write_texts(tmp_path / "more.jsonl")
    run = make_fit(backbone, tmp_path / "out", unlabelled=texts, unlabelled_limit=7)
    assert len(run.taught) == len(run.train) + 7


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "holds no texts"), ('{"sentence1": "a", "sentence2": "b"}\n', "is about single texts but .* holds pairs")],
)
def test_texts_that_do_not_fit_are_refused(content: str, message: str, backbone: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        fit(task=make_data(), unlabelled=path, backbone=str(backbone), output=tmp_path / "out", quiet=True)


# --- depth --------------------------------------------------------------------------------------------------


def test_depths_end_where_truncation_is_enough() -> None:
    reached = {layers: 6 / layers for layers in range(1, 7)}
    assert depths_for(1.2, reached) == [6, 4]
    assert depths_for(2.0, reached) == [6, 4, 3]
    assert depths_for(2.5, reached) == [6, 4, 3, 2]
    assert depths_for(50.0, reached) == [6, 4, 3, 2, 1]


def test_depth_and_table_are_chosen_together(tmp_path: Path) -> None:
    backbone = make_backbone(tmp_path / "backbone", layers=4)
    options: dict[str, Any] = {"backbone": str(backbone), "output": tmp_path / "out", "quiet": True, "epochs": 1}
    result = fit(task=make_data(), hash="frequency", speedup=3.0, depth="auto", min_exit=0, **options)
    tried = [candidate.hash for candidate in result.run.candidates]
    assert tried[0] == "frequency, 4 layers" and tried[-1].startswith("never, "), tried
    assert len({name.split(", ")[1] for name in tried}) == len(tried) >= 3
    best = max(result.run.candidates, key=lambda each: each.training.dev["score"])
    assert best.hash == f"{result.run.table.method}, {result.run.backbone.depth} layers"
    assert result.model.exit_table.num_layers == result.run.backbone.depth
    assert result.run.macs.speedup >= 2.7, "whatever was chosen is about as cheap as asked"
    assert result.run.dense is not None and result.run.dense.layers == 4
    assert {candidate.passes for candidate in result.run.candidates} == {2.0}


@pytest.mark.parametrize("settings", [{}, {"speedup": 2.0, "search": "2"}])
def test_auto_needs_a_speedup_and_its_own_models(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="depth auto chooses the layers to keep for a speed-up"):
        FitSettings(task="sst2", output=tmp_path, depth="auto", **settings)


def test_a_depth_is_a_number_or_auto(tmp_path: Path) -> None:
    assert FitSettings(task="sst2", output=tmp_path, depth="3").layers == 3
    with pytest.raises(InputError, match="depth is 'deep'; it must be"):
        FitSettings(task="sst2", output=tmp_path, depth="deep")
