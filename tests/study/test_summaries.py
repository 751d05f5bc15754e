"""Methods on models that write text: what applies, what it costs beside the dense baseline, and what comes out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fitting_data import make_data
from summary_data import RECIPE, make_summaries

from hashee.data import TaskData
from hashee.study.methods import METHODS
from hashee.study.results import RunResult, read_result
from hashee.study.run import Experiment, run_experiment

SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "decoder_layers": 2, "num_beams": 1, "eval_examples": 16}
WRITERS = ("dense", "first-layers", "hash-frequency", "hash-importance")
"""Methods of every study that apply to models that write text too."""


def data() -> TaskData:
    return make_summaries(96, replace(RECIPE, epochs=2.0))


@pytest.fixture(scope="session")
def results(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """A run of every method that applies, in one folder, so that all share the dense baseline."""
    output = tmp_path_factory.mktemp("summaries")
    found = {}
    for name in WRITERS:
        settings = SETTINGS | ({"speedup": 1.5} if name == "hash-importance" else {})
        found[name] = run_experiment(Experiment(name, data(), str(backbone), settings=settings), output)
        assert read_result(output / found[name].path) == found[name]
        json.dumps(json.loads((output / found[name].path).read_text()), allow_nan=False)
    return found


@pytest.mark.parametrize("name", WRITERS)
def test_results_tell_metrics_and_costs_by_part(name: str, results: dict[str, RunResult]) -> None:
    result = results[name]
    assert result.passes == 4.0 and result.metric == "rouge1"
    for point in result.curve:
        writing = point.writing
        assert writing is not None
        for split, score in (("dev", point.dev), ("test", point.test)):
            assert writing.metrics[split].keys() == {"rouge1", "rouge2", "rougeL", "score"}
            assert writing.metrics[split]["rouge1"] == score
        total = writing.total
        assert writing.encoder.executed_per_text + writing.decoder.executed_per_text == total.executed_per_text
        assert total.dense_per_text == result.full_depth_macs
        assert (point.speedup, point.paper_speedup) == pytest.approx((total.speedup, total.paper_speedup))
        assert total.seconds == pytest.approx(writing.encoder.seconds + writing.decoder.seconds)
        assert total.dense_seconds > 0 and total.time_speedup


def test_the_dense_count_is_of_what_the_dense_baseline_wrote(results: dict[str, RunResult]) -> None:
    (dense,) = results["dense"].curve
    assert dense.writing is not None
    assert dense.writing.tokens == dense.writing.dense_tokens
    assert dense.writing.total.paper_speedup == pytest.approx(1.0)
    for name in WRITERS:
        for point in results[name].curve:
            assert point.writing is not None
            assert point.writing.total.dense_per_text == dense.writing.total.paper_per_text
            assert point.writing.dense_tokens == dense.writing.tokens
            # A step scores the vocabulary once, however long the text: 81 tokens of the small tokenizer by 24 numbers.
            assert point.writing.head_per_text == pytest.approx(point.writing.tokens * 81 * 24)


def test_fewer_encoder_layers_leave_the_decoder_as_it_is(results: dict[str, RunResult]) -> None:
    for point in results["first-layers"].curve:
        assert point.writing is not None
        assert point.writing.encoder.paper_speedup == pytest.approx(4 / point.knob)
        ratio = point.writing.decoder.paper_per_text / point.writing.decoder.dense_per_text
        assert ratio == pytest.approx(point.writing.tokens / point.writing.dense_tokens, rel=0.2)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_other_methods_say_that_they_do_not_apply(name: str) -> None:
    refusal = METHODS[name].refusal(data().task)
    applies = name in WRITERS or name.startswith("hash-") and name not in ("hash-mi", "hash-x-exit")
    assert (refusal is None) == applies
    assert refusal is None or "tiny-summaries" in refusal and "\n" not in refusal
    assert METHODS[name].refusal(make_data().task) is None
