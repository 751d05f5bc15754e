"""What int8 costs in quality is measured beside its speed."""

from pathlib import Path

import numpy as np
import pytest
import speed_test_baselines
from test_speed_run import save_tiny, tiny, tiny_workload  # noqa: F401  # a fixture

from hashee.bench.baselines import BASELINES, select
from hashee.bench.protocol import Benchmark
from hashee.bench.quality import QualityModel, QualityRun, agreement
from hashee.embedded import minilm_folder


def test_agreement_is_one_for_the_same_and_falls_with_noise() -> None:
    generator = np.random.default_rng(0)
    outputs = generator.normal(size=(64, 32)).astype(np.float32)
    assert agreement(outputs, outputs) == pytest.approx(1)
    # What all texts share says nothing about any of them.
    assert agreement(outputs + 100, outputs) == pytest.approx(1, abs=1e-4)
    noisy = [agreement(outputs + scale * generator.normal(size=outputs.shape), outputs) for scale in (0.1, 0.5, 2.0)]
    assert 1 > noisy[0] > noisy[1] > noisy[2] > 0
    assert abs(agreement(outputs[::-1], outputs)) < 0.2


def test_every_int8_baseline_has_one_in_float32_to_agree_with(tmp_path: Path) -> None:
    from hashee.bench.quality import _reference_of

    found = {each.name: _reference_of(each, "minilm") for each in select("bert-base", False)}
    assert {name for name, reference in found.items() if reference} == {name for name in found if "int8" in name}
    for name, reference in found.items():
        if reference is not None:
            assert (reference.dtype, reference.depth) == ("float32", BASELINES[name].depth)


def test_only_baselines_that_run_are_judged(tiny: None, tmp_path: Path) -> None:  # noqa: F811
    names = ("plain", "coarse", "fails to load")
    run = QualityRun(
        Benchmark(workload="tiny", model="test"),
        tiny_workload("tiny", 2),
        tmp_path,
        (speed_test_baselines.__name__,),
        QualityModel("test", save_tiny),
    )
    said: list[str] = []
    found = run.measure([BASELINES[name] for name in names], lambda what, *_: said.append(what))
    assert list(found) == ["coarse"]
    # It adds the same to all outputs.
    assert (found["coarse"].value, found["coarse"].reference) == (pytest.approx(1), "plain")
    assert said == ["saving test, for what int8 costs in quality", "quality of coarse"]
    assert run.measure([BASELINES["plain"]], lambda *_: None) == {}


def test_minilm_has_enough_outputs_to_compare(tmp_path: Path) -> None:
    from transformers import AutoConfig

    from hashee.bench.quality import MINILM, OUTPUTS

    assert minilm_folder().is_dir()
    MINILM.save(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).num_labels == OUTPUTS
