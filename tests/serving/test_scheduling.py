"""Which texts run together, what a text that fails does to the others, and what settings refuse."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from running import TEXTS, offline, save_model
from transformers import AutoModelForSequenceClassification

import hashee
from architectures import make_model
from hashee.errors import HasheeError, InputError, UnsupportedModel
from hashee.serving.answers import sequences
from hashee.serving.check import read_mix, report
from hashee.serving.choosing import BatchBudget, Cost, choose_batch
from hashee.serving.metrics import Metrics
from hashee.serving.models import settings_of
from hashee.serving.served import open_served, pooling_of
from hashee.serving.service import Services
from hashee.serving.settings import ModelSettings, ServeSettings, check_names
from hashee.serving.throughput import Throughput
from hashee.serving.worker import Job, open_model

COSTS = st.lists(st.builds(Cost, st.integers(1, 1000), st.integers(1, 64)), min_size=1, max_size=40)


@given(COSTS, st.floats(1, 5000), st.integers(1, 500))
def test_batches_hold_the_oldest_text_and_stay_within_their_budget(costs: list[Cost], macs: float, tokens: int) -> None:
    chosen = choose_batch(costs, BatchBudget(macs, tokens))
    assert chosen[0] == 0 and chosen == sorted(set(chosen))
    if len(chosen) > 1:
        assert sum(costs[index].macs for index in chosen) <= macs
        assert sum(costs[index].tokens for index in chosen) <= tokens


def test_overdue_texts_go_with_the_oldest_in_order_of_arrival() -> None:
    costs = [Cost(10, 1), Cost(100, 9), Cost(10, 1), Cost(90, 9), Cost(10, 1)]
    assert choose_batch(costs, BatchBudget(130), overdue=[1]) == [0, 1, 2, 4]
    assert choose_batch(costs, BatchBudget(130), overdue=[1, 3]) == [0, 1]


@given(COSTS)
def test_all_waiting_texts_run_in_as_many_batches_as_it_takes(costs: list[Cost]) -> None:
    waiting, ran = list(enumerate(costs)), []
    while waiting:
        chosen = choose_batch([cost for _, cost in waiting], BatchBudget(1000))
        ran += [waiting[index][0] for index in chosen]
        waiting = [each for index, each in enumerate(waiting) if index not in chosen]
    assert sorted(ran) == list(range(len(costs)))


def test_batches_are_of_texts_that_cost_alike() -> None:
    costs = [Cost(10, 1), Cost(100, 9), Cost(11, 1), Cost(90, 9), Cost(9, 1)]
    assert choose_batch(costs, BatchBudget(40)) == [0, 2, 4]
    assert choose_batch(costs[1:], BatchBudget(200)) == [0, 2]


def test_throughput_follows_the_last_batches() -> None:
    measured = Throughput()
    for _ in range(50):
        measured.add(100, 1.0, 2)
    assert (measured.macs_per_second, measured.texts_per_second) == pytest.approx((100, 2))
    for _ in range(200):
        measured.add(400, 1.0, 2)
    assert measured.macs_per_second == pytest.approx(400, rel=0.01)


def test_a_text_that_fails_fails_alone(tokenizer: Any, folders: dict[str, Path]) -> None:
    model = open_model(ModelSettings(folders["classifier"]))
    ids = [np.array(tokenizer(text)["input_ids"]) for text in TEXTS]
    broken = [*ids[:2], np.array([2, 10**6, 3]), *ids[2:]]
    done = model.run(Job.of(7, {"input_ids": broken, "token_type_ids": [np.zeros_like(each) for each in broken]}))
    assert done.number == 7
    assert isinstance(done.outputs[2], str)
    others = [output for output in done.outputs if not isinstance(output, str)]
    assert np.abs(np.array(others) - offline(folders["classifier"], TEXTS)).max() <= 1e-5


def test_int8_models_give_what_the_library_gives(tokenizer: Any, folders: dict[str, Path]) -> None:
    model = open_model(ModelSettings(folders["classifier"], backend="int8"))
    ids = [np.array(tokenizer(text)["input_ids"]) for text in TEXTS]
    done = model.run(Job.of(0, {"input_ids": ids, "token_type_ids": [np.zeros_like(each) for each in ids]}))
    expected = list(hashee.load(folders["classifier"], quantize="int8").predict(TEXTS, progress=False))
    assert np.abs(np.array(done.outputs) - expected).max() <= 1e-4
    assert np.abs(np.array(done.outputs) - offline(folders["classifier"], TEXTS)).max() > 1e-6


def test_exported_models_are_served_at_the_same_cost_and_checked(folders: dict[str, Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from hashee.export import export_onnx

    model = hashee.load(folders["classifier"])
    exported = ModelSettings(export_onnx(model, tmp_path / "exported"), backend="onnx")
    counted = [hashee.count_flops(model, [text], tokenizer=model.tokenizer).executed_macs for text in TEXTS]

    async def served() -> tuple[Any, str, str]:
        services = Services([exported], ServeSettings(max_latency_ms=10), Metrics())
        await services.start()
        try:
            service = services.named(None)
            assert [each.cost.macs for each in service.model.tokenize(TEXTS, truncate=False)] == counted
            outputs = (await service.run(TEXTS, truncate=False)).outputs
            return outputs, service.model.head.value, await report(service, read_mix("8:3,32:1"))
        finally:
            services.stop()

    outputs, head, said = asyncio.run(served())
    assert head == "classifier"
    assert np.abs(np.array(outputs) - offline(folders["classifier"], TEXTS)).max() <= 1e-4
    rows = [line.split() for line in said.splitlines()]
    short, long = (float(row[-1].replace(",", "")) for row in rows[2:4])
    mixed = float(rows[4][-2].replace(",", ""))
    assert 0 < long < short
    assert mixed == pytest.approx(1 / (0.75 / short + 0.25 / long), rel=0.02)
    with pytest.raises(InputError, match="no length"):
        read_mix("a:1")


def test_a_folder_that_cannot_be_opened_is_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    damaged = Path(shutil.copytree(folders["classifier"], tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"x")
    with pytest.raises(HasheeError):
        asyncio.run(Services([ModelSettings(damaged)], ServeSettings(), Metrics()).start())


def test_dense_models_are_run_by_transformers_and_cost_their_full_depth(tokenizer: Any, tmp_path: Path) -> None:
    dense = make_model("bert", AutoModelForSequenceClassification, vocab_size=len(tokenizer))
    dense.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = ModelSettings(tmp_path, dense=True)
    model = open_model(settings)
    served = open_served(settings).with_process(model.opened)
    texts = served.tokenize(TEXTS, truncate=False)
    for text, words in zip(texts, TEXTS, strict=True):
        done = model.run(Job.of(0, {name: [column] for name, column in text.columns.items()}))
        with torch.no_grad():
            expected = dense(**tokenizer(words, return_tensors="pt")).logits[0].numpy()
        assert np.abs(done.outputs[0] - expected).max() <= 1e-5
        assert text.cost.macs == hashee.count_flops(dense, [words], tokenizer=tokenizer).full_depth_macs


def test_addresses_that_others_reach_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.2", "example.org", ""):
        with pytest.raises(InputError, match="no token"):
            ServeSettings(host=host)
        assert ServeSettings(host=host, token="secret").host == host
        assert ServeSettings(host=host, allow_public=True).host == host
    for host in ("127.0.0.1", "::1", "localhost"):
        assert ServeSettings(host=host).token is None
    assert "secret" not in repr(ServeSettings(token="secret"))


def test_models_are_told_apart_by_the_names_of_their_folders(tmp_path: Path, tokenizer: Any) -> None:
    with pytest.raises(InputError, match="two folders are called 'a'"):
        check_names([ModelSettings(tmp_path / "x" / "a"), ModelSettings(tmp_path / "y" / "a")])
    with pytest.raises(InputError, match="is no folder"):
        settings_of([tmp_path / "missing"], ModelSettings(Path()), 1, None, None)


def test_the_models_of_a_tradeoff_come_by_speedup_and_may_have_moved(tmp_path: Path) -> None:
    points = [
        {"name": "dense", "hash": "dense", "layers": 4, "speedup": 1.0, "folder": "/gone/points/dense"},
        {"name": "mi-3x", "hash": "mi", "layers": 4, "speedup": 3.1, "folder": "/gone/points/mi-3x"},
        {"name": "mi-2x", "hash": "mi", "layers": 4, "speedup": 2.1, "folder": "/gone/points/mi-2x"},
    ]
    (tmp_path / "tradeoff.json").write_text(json.dumps(points))
    with pytest.raises(InputError, match="mi-2x, which is not there"):
        settings_of([], ModelSettings(Path()), 1, None, tmp_path)
    for name in ("mi-2x", "mi-3x"):
        (tmp_path / name).mkdir()
    models = settings_of([], ModelSettings(Path()), 1, None, tmp_path)
    assert [(model.name, model.speedup) for model in models] == [("mi-2x", 2.1), ("mi-3x", 3.1)]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode_max_tokens": True}, None),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None),
    ],
)
def test_pooling_is_that_of_the_folder(tmp_path: Path, said: dict[str, Any], found: str | None) -> None:
    assert pooling_of(ModelSettings(tmp_path)) == "mean"
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(said))
    if found is None:
        with pytest.raises(UnsupportedModel, match="--pooling"):
            pooling_of(ModelSettings(tmp_path))
    else:
        assert pooling_of(ModelSettings(tmp_path)) == found
    assert pooling_of(ModelSettings(tmp_path, pooling="mean")) == "mean"


def test_inputs_are_texts_pairs_or_batches_of_them() -> None:
    assert sequences("a") == (["a"], False)
    assert sequences(["a"]) == (["a"], False)
    assert sequences(["a", "b"]) == ([("a", "b")], False)
    assert sequences([["a"], ["b", "c"]]) == (["a", ("b", "c")], True)


def test_other_heads_are_not_served(tokenizer: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    folder = save_model(tokenizer, tmp_path / "tagger", AutoModelForTokenClassification)
    with pytest.raises(UnsupportedModel, match="neither embeddings, labels nor scores"):
        Services([ModelSettings(folder)], ServeSettings(), Metrics())
