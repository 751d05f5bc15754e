"""Methods on models that write text: what applies, what it costs beside the dense baseline, and what comes out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting_data import make_data
from summary_data import RECIPE, make_summaries
from transformers import BartConfig, BartForConditionalGeneration

from hashee.data import TaskData, score
from hashee.study.methods import METHODS
from hashee.study.methods.hash_decoder import decoder_table
from hashee.study.methods.lead import FIRST_SENTENCE, TOKENS, LeadWriter
from hashee.study.results import RunResult, read_result
from hashee.study.run import Experiment, run_experiment
from hashee.training.backbone import open_backbone
from hashee.training.processes import current_processes
from hashee.training.settings import FitSettings
from hashee.training.stages import Fit
from small_tokenizer import make_tokenizer

SETTINGS: dict[str, Any] = {"max_new_tokens": 8, "decoder_layers": 2, "num_beams": 1, "eval_examples": 16}
ALWAYS = ("dense", "first-layers", "hash-frequency", "hash-importance")
"""Methods that apply to models that write text too."""
ONLY = ("dat", "hash-decoder", "lead", "shallow-seq2seq")
"""Methods that apply to nothing else."""
WRITERS = (*ALWAYS, *ONLY)


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
    assert result.passes == (0.0 if name == "lead" else 4.0) and result.metric == "rouge1"
    for point in result.curve:
        writing = point.writing
        assert writing is not None
        for split, value in (("dev", point.dev), ("test", point.test)):
            assert writing.metrics[split].keys() == {"rouge1", "rouge2", "rougeL", "score"}
            assert writing.metrics[split]["rouge1"] == value
        total = writing.total
        parts = writing.encoder.executed_per_text + writing.decoder.executed_per_text
        assert (parts, total.dense_per_text) == pytest.approx((total.executed_per_text, result.full_depth_macs))
        assert (point.speedup, point.paper_speedup) == pytest.approx((total.speedup, total.paper_speedup))
        assert total.seconds == pytest.approx(writing.encoder.seconds + writing.decoder.seconds)
        assert total.dense_seconds > 0 and total.time_speedup


def test_the_dense_count_is_of_what_the_dense_baseline_wrote(results: dict[str, RunResult]) -> None:
    (dense,) = results["dense"].curve
    assert dense.writing is not None
    assert dense.writing.tokens == dense.writing.dense_tokens
    assert dense.writing.total.paper_speedup == pytest.approx(1.0)
    for name in set(WRITERS) - {"lead"}:
        for point in results[name].curve:
            assert point.writing is not None
            assert point.writing.total.dense_per_text == pytest.approx(dense.writing.total.paper_per_text)
            assert point.writing.dense_tokens == dense.writing.tokens
            # A step scores the vocabulary once: 81 tokens of the small tokenizer by 24 numbers.
            if name != "dat":
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
    others = ("hash-depth", "hash-depth-x-exit", "hash-mi", "hash-x-exit")
    applies = name in WRITERS or (name.startswith("hash-") and name not in others)
    assert (refusal is None) == applies
    assert refusal is None or ("tiny-summaries" in refusal and "\n" not in refusal)
    assert (METHODS[name].refusal(make_data().task) is None) == (name not in ONLY)


# --- fewer layers on both sides, and none ---------------------------------------------------------------------


def test_shallow_models_keep_the_first_layers_of_both_sides(results: dict[str, RunResult]) -> None:
    assert [(point.candidate, point.knob) for point in results["shallow-seq2seq"].curve] == [
        ("3+1 layers", 4.0),
        ("2+1 layers", 3.0),
    ]
    for point, layers in zip(results["shallow-seq2seq"].curve, (3, 2), strict=True):
        writing = point.writing
        assert writing is not None
        assert writing.encoder.paper_speedup == pytest.approx(4 / layers)
        # A text as long as the dense one costs a decoder of half as many layers half as much.
        assert writing.decoder.paper_speedup == pytest.approx(2 * writing.dense_tokens / writing.tokens, rel=0.2)


@pytest.mark.parametrize(
    ("encoder", "decoder", "expected"),
    [(6, 6, [(5, 3), (3, 3)]), (6, 2, [(5, 1), (3, 1)]), (10, 2, [(8, 1), (5, 1)])],
)
def test_depths_are_those_of_the_paper(
    encoder: int, decoder: int, expected: list[tuple[int, int]], tmp_path: Path
) -> None:
    tokenizer = make_tokenizer()
    sizes = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32}
    config = BartConfig(
        vocab_size=len(tokenizer), encoder_layers=encoder, decoder_layers=decoder, decoder_ffn_dim=32,
        max_position_embeddings=32, decoder_start_token_id=3, pad_token_id=0, eos_token_id=3, bos_token_id=2, **sizes,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    backbone = open_backbone(str(tmp_path), data().task, None)
    assert METHODS["shallow-seq2seq"].depths(backbone) == expected  # type: ignore[attr-defined]
    shallow, whole = backbone.load(0, *expected[-1]), backbone.load(0)
    assert (shallow.config.encoder_layers, shallow.config.decoder_layers) == expected[-1]
    kept, first = (model.model.decoder.layers[0].fc1.weight for model in (shallow, whole))
    assert torch.equal(kept, first)


def test_lead_copies_as_much_as_dev_prefers() -> None:
    tokenizer = make_tokenizer()
    ids = tokenizer("the cat sat . the dog is good .")["input_ids"]
    assert LeadWriter(4).write(ids, tokenizer) == tokenizer.decode(ids[1:5])
    assert LeadWriter(FIRST_SENTENCE).write(ids, tokenizer) == tokenizer.decode(ids[1:5])
    assert LeadWriter(128).write(ids, tokenizer) == tokenizer.decode(ids[1:-1])


def test_lead_costs_nothing_and_is_judged_as_others_are(results: dict[str, RunResult]) -> None:
    (point,) = results["lead"].curve
    task = data()
    assert task.test is not None and point.writing is not None and point.knob in TOKENS
    assert point.writing.total.executed_per_text == point.writing.head_per_text == 0
    tokenizer = make_tokenizer()
    writer = LeadWriter(int(point.knob))
    texts = [writer.write(tokenizer(text)["input_ids"], tokenizer) for text in task.test.texts]
    assert score(task.task, texts, task.test.targets or ()) == pytest.approx(point.writing.metrics["test"])


# --- exits in the decoder -------------------------------------------------------------------------------------


def test_tokens_exit_on_both_sides_as_often_as_they_are_read(
    results: dict[str, RunResult], backbone: Path, tmp_path: Path
) -> None:
    (point,) = results["hash-decoder"].curve
    (frequency,) = results["hash-frequency"].curve
    assert point.writing is not None and frequency.writing is not None
    assert point.writing.encoder.speedup == pytest.approx(frequency.writing.encoder.speedup), "the same table"
    same_length = point.writing.dense_tokens / point.writing.tokens
    assert point.writing.decoder.speedup > 1.2 * same_length
    assert frequency.writing.decoder.speedup == pytest.approx(
        frequency.writing.dense_tokens / frequency.writing.tokens, rel=0.2
    )


def test_the_decoder_table_counts_what_the_decoder_reads(backbone: Path, tmp_path: Path) -> None:
    settings = FitSettings(task=data(), output=tmp_path, backbone=str(backbone), quiet=True, decoder_layers=3)
    fit = Fit(settings, data(), current_processes())
    for least in (1, 0):
        table = decoder_table(fit, least)
        words = [make_tokenizer().convert_tokens_to_ids(word) for word in ("a", "great", "film", "dull", "story")]
        exits = [int(table.exit_layers[word]) for word in words]
        # "a" is in every summary, each other word in about half of them; no other word is ever read.
        assert exits[0] == least and sorted(set(exits)) == [least, 2, 3]
        assert int((table.exit_layers == 3).sum()) == len(table.exit_layers) - sum(each < 3 for each in exits)
        assert table.num_layers == 3 and int(table.exit_layers[fit.encoder.start_id]) == 3  # type: ignore[attr-defined]


def test_decoders_learn_with_their_exits(backbone: Path, tmp_path: Path) -> None:
    task = data()
    settings = FitSettings(task=task, output=tmp_path, backbone=str(backbone), quiet=True, **SETTINGS)
    fit = Fit(settings, task, current_processes())
    (candidate,) = METHODS["hash-decoder"].train(fit).candidates
    model = METHODS["hash-decoder"].open(candidate.folder)
    table = model.decoder_exit_table
    assert table == decoder_table(fit, 1) and set(table.exit_layers.tolist()) == {1, 2}
    trained = model.get_parameter("model.decoder.layers.0.fc1.weight")
    start = fit.dense().backbone.load().get_parameter("model.decoder.layers.0.fc1.weight")
    assert not torch.equal(trained, start)
    assert candidate.passes == 4.0
