"""Counted cost: the paper's figures on real data, and torch's own counter on real forward passes."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

import hashee
from architectures import (
    FAMILIES,
    LAYERS,
    VOCABULARY,
    converted,
    encoder_of,
    make_config,
    make_exits,
    make_ids,
    make_model,
)
from hashee.data.texts import read_texts
from hashee.embedded import minilm_folder
from hashee.families.adapters import ADAPTERS


def measured_macs(family: str, exits_kind: str, grad: bool) -> int:
    """Return the multiply-accumulates in the matrix products of the layers, as torch counts them."""
    encoder = encoder_of(converted(make_model(family), make_exits(exits_kind)))
    ids = make_ids(batch=1)
    # Torch counts every matrix product, also those around the layers that the count leaves out.
    with FlopCounterMode(display=False) as around:
        encoder.adapter.pool(encoder, torch.zeros(1, 1, 24))
        tokens = {"input_ids": ids, "token_type_ids": ids * 0, "position_ids": torch.arange(2, 14)[None]}
        if family == "albert":
            encoder.encoder.embedding_hidden_mapping_in(encoder.embeddings(**tokens))
        if family == "deberta-v2":
            encoder.embeddings(**tokens)
        if family == "electra":
            encoder.embeddings_project(encoder.embeddings(**tokens))
    with torch.no_grad():
        encoder(ids)  # types that were met before are looked up
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.set_grad_enabled(grad):
        encoder(ids)
    return (counter.get_total_flops() - around.get_total_flops()) // 2


@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "albert"])
def test_papers_count_equals_torch_flop_counter(family: str, exits_kind: str, monkeypatch: Any) -> None:
    # With gradients every layer runs in the plain form, which the paper counts; torch counts no kernels of ours.
    monkeypatch.setattr(hashee.engine.native, "library", lambda: None)
    table = hashee.ExitTable.from_tensor(make_exits(exits_kind), num_layers=LAYERS)
    count = hashee.count_flops(make_config(family), make_ids(batch=1), table)
    assert measured_macs(family, exits_kind, grad=True) == sum(layer.matmul_macs for layer in count.layers)


@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("family", FAMILIES)
def test_executed_count_equals_torch_flop_counter(family: str, exits_kind: str, monkeypatch: Any) -> None:
    # Torch's counter does not know the products in kernels made for few rows.
    monkeypatch.setattr(hashee.engine.native, "library", lambda: None)
    table = hashee.ExitTable.from_tensor(make_exits(exits_kind), num_layers=LAYERS)
    count = hashee.count_flops(make_config(family), make_ids(batch=1), table)
    rest = sum(layer.norms + layer.softmax for layer in count.layers)
    assert measured_macs(family, exits_kind, grad=False) == count.executed_macs - rest
    assert count.executed_macs <= count.paper_macs


def test_the_last_layer_of_a_classifier_is_counted_for_one_row() -> None:
    table = hashee.ExitTable.never(VOCABULARY, num_layers=LAYERS)
    counts = [
        hashee.count_flops(make_config("bert"), make_ids(), table, reads_first_row=first) for first in (False, True)
    ]
    assert counts[1].executed_macs < counts[0].executed_macs
    assert counts[1].paper_macs == counts[0].paper_macs
    classifier = converted(make_model("bert", AutoModelForSequenceClassification), make_exits("full depth"))
    assert hashee.count_flops(classifier, make_ids()).executed_macs == counts[1].executed_macs


def test_layers_of_bert_base_cost_what_they_do_by_hand() -> None:
    # 10 tokens, 4 of them active from layer 2 on. One 768 x 768 product for one token is 589,824.
    table = hashee.ExitTable.from_tensor(torch.tensor([12] * 4 + [1] * 6), num_layers=12)
    count = hashee.count_flops(BertConfig(), [list(range(10))], table)
    first, second = count.layers[:2]
    assert (first.active, second.active) == (10, 4)
    assert first.projections == 23_592_960  # 40 products: query, key, value, output of 10 tokens
    assert second.projections == 16_515_072  # 28 products: keys and values of 10, queries and outputs of 4
    assert (first.attention, second.attention) == (153_600, 61_440)  # 100 and 40 pairs, scored and summed up, of 768
    assert (first.softmax, second.softmax) == (2_400, 960)  # the same pairs, twice, in 12 heads
    assert (first.norms, second.norms) == (30_720, 12_288)  # two norms, twice 768 each
    assert (first.feed_forward, second.feed_forward) == (47_185_920, 18_874_368)  # 8 products for each token
    assert (first.macs, second.macs) == (70_965_600, 35_464_128)
    assert count.paper_macs == 70_965_600 + 11 * 35_464_128
    assert count.full_depth_macs == count.bert_base_macs == 12 * 70_965_600


def test_bert_base_costs_what_is_published() -> None:
    # 22.5 GFLOPs for 128 tokens, as papers on compressing BERT-base (TinyBERT, DynaBERT) have it.
    count = hashee.count_flops(BertConfig(), [list(range(128))])
    assert 2 * count.full_depth_macs == pytest.approx(22.5e9, rel=0.01)


def test_without_table_the_model_runs_at_full_depth() -> None:
    count = hashee.count_flops(make_config("bert"), [[5, 6, 7]])
    assert count.paper_speedup == 1
    assert count.paper_macs == count.full_depth_macs > 0


def test_speedup_is_relative_to_the_model_that_was_given() -> None:
    exits = make_exits("full depth", layers=2)
    table = hashee.ExitTable.from_tensor(exits, num_layers=2)
    assert hashee.count_flops(make_config("bert"), [[5, 6, 7]], table).paper_speedup == LAYERS / 2
    half = converted(make_model("bert"), exits, layers=2)
    assert hashee.count_flops(half, [[5, 6, 7]]).paper_speedup == 1


def test_speedup_is_as_executed_and_keeps_its_former_name() -> None:
    count = hashee.count_flops(make_config("bert"), [[5, 6, 7]], reads_first_row=True)
    assert count.speedup == count.full_depth_macs / count.executed_macs > count.paper_speedup == 1
    with pytest.warns(DeprecationWarning, match="called speedup"):
        assert count.executed_speedup == count.speedup
    values = count.to_dict()
    assert (values["speedup"], values["paper_speedup"]) == (count.speedup, 1) and "executed_speedup" not in values


def test_albert_counts_every_inner_block() -> None:
    albert, bert = make_config("albert"), make_config("bert")
    ids = [[5, 6, 7]]
    assert hashee.count_flops(albert, ids).paper_macs == 2 * hashee.count_flops(bert, ids).paper_macs
    assert ADAPTERS["albert"].shape(albert).blocks_per_layer == 2


def test_no_texts_cost_nothing() -> None:
    count = hashee.count_flops(make_config("bert"), [])
    assert (count.texts, count.tokens, count.paper_macs) == (0, 0, 0)
    assert math.isfinite(count.paper_speedup)


def test_report_is_json_and_text() -> None:
    count = hashee.count_flops(make_config("bert"), make_ids())
    values = json.loads(json.dumps(count.to_dict()))
    assert values["paper_macs"] == count.paper_macs == sum(layer["macs"] for layer in values["layers"])
    assert f"{count.texts} texts" in str(count)


def test_ids_outside_the_table_are_refused() -> None:
    with pytest.raises(hashee.InputError, match="outside the exit table"):
        hashee.count_flops(make_config("bert"), [[VOCABULARY]])


def paper_speedups(data_dir: Path, task: str, layers: int, method: str) -> float:
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    folder = data_dir / task
    if method == "frequency":
        corpus = read_texts([folder / "train.jsonl.gz", folder / "dev.jsonl.gz"])
        table = hashee.ExitTable.by_frequency(tokenizer, corpus, num_layers=layers)
    else:
        table = hashee.ExitTable.at_random(tokenizer, num_layers=layers, seed=0)
    count = hashee.count_flops(BertConfig(), read_texts(folder / "test.jsonl.gz"), table, tokenizer)
    return count.speedup_vs_bert_base


@pytest.mark.data
@pytest.mark.parametrize(
    ("task", "layers", "method", "paper"),
    [
        ("SST-2", 6, "frequency", 4.8),
        ("MRPC", 6, "frequency", 4.8),
        ("STS-B", 6, "frequency", 4.6),
        ("SST-2", 12, "frequency", 2.8),
        ("SST-2", 6, "random", 3.0),
        ("SST-2", 12, "random", 1.5),
    ],
)
def test_paper_speedups_are_reproduced(data_dir: Path, task: str, layers: int, method: str, paper: float) -> None:
    assert paper_speedups(data_dir, task, layers, method) == pytest.approx(paper, abs=0.1)
