"""Counted cost of writing: what torch's own counter finds in real steps, and figures by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import BartConfig

import hashee
from architectures import LAYERS, VOCABULARY, make_config, make_exits, make_ids, make_writer
from hashee.families.adapters import DECODERS

WRITTEN = [2, *make_ids(batch=1, length=8, seed=4)[0].tolist(), 2]


def not_in_products(shape: Any, exits: np.ndarray[Any, Any], source: int) -> int:
    """Return the softmaxes and norms in the executed count, which are no matrix products."""
    rest = 0
    for layer in range(1, shape.layers + 1):
        active = np.flatnonzero(exits >= layer)
        crossed = source * len(active) if shape.attends_to_source else 0
        rest += 2 * shape.heads * (int((active + 1).sum()) + crossed)
        rest += len(active) * (6 if shape.attends_to_source else 4) * shape.width
    return rest


@pytest.mark.parametrize("exits_kind", ["full depth", "random exits", "exits at 0"])
@pytest.mark.parametrize("family", sorted(DECODERS))
def test_executed_count_equals_torch_flop_counter(
    family: str, exits_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch's counter does not know the products in kernels made for few rows.
    monkeypatch.setattr(hashee.engine.native, "library", lambda: None)
    model, exits = make_writer(family), make_exits(exits_kind)
    writer = hashee.convert(model, decoder_table=hashee.ExitTable.from_tensor(exits, num_layers=LAYERS))
    source = make_ids(batch=1)[0].tolist() if family != "llama" else []
    count = hashee.count_generation(writer, None if family == "llama" else [source], [WRITTEN])
    decoder, cache, states = writer.hashed_decoder, None, None
    if source:
        states = torch.randn(1, len(source), 24)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        for token in WRITTEN[:-1]:
            options = {} if states is None else {"encoder_hidden_states": states}
            cache = decoder(torch.tensor([[token]]), past_key_values=cache, use_cache=True, **options).past_key_values
    read = exits[torch.tensor(WRITTEN[:-1])].numpy()
    executed = int(count.with_exits.decoder.executed[0])
    rest = not_in_products(DECODERS[family].shape(writer.config), read, len(source))
    assert counter.get_total_flops() // 2 == executed - rest
    assert count.with_exits.decoder.paper[0] <= executed
    assert count.macs()["total"] == count.macs()["encoder"] + count.macs()["decoder"]


def test_a_step_of_bart_base_costs_what_it_does_by_hand() -> None:
    # One token read after a source of ten. One 768 x 768 product is 589,824.
    config = BartConfig(d_model=768, decoder_layers=1, encoder_layers=1, decoder_attention_heads=12)
    config.encoder_attention_heads, config.encoder_ffn_dim, config.decoder_ffn_dim = 12, 3072, 3072
    count = hashee.count_generation(config, [list(range(3, 13))], [[2, 5]])
    projections = 4 * 589_824 + 2 * 589_824 + 20 * 589_824  # itself, to the source, the source
    attention = 2 * (768 + 12) * 1 + 2 * (768 + 12) * 10
    assert count.macs("paper")["decoder"] == projections + attention + 8 * 589_824 + 6 * 768
    assert count.macs()["head"] == 768 * config.vocab_size
    assert count.speedups("paper") == {"encoder": 1.0, "decoder": 1.0, "total": 1.0}


def test_a_position_that_exits_costs_its_keys_and_values_alone() -> None:
    exits = torch.full((VOCABULARY,), LAYERS)
    exits[7] = 1
    model = make_writer("bart")
    writer = hashee.convert(model, decoder_table=hashee.ExitTable.from_tensor(exits, num_layers=LAYERS))
    ends = [hashee.count_generation(writer, [[5, 6]], [[2, 9, last, 2]]).macs()["decoder"] for last in (8, 7)]
    d, f, h, source, position = 24, 40, 3, 2, 3
    update = 4 * d * d + 2 * d * f + 2 * (position + source) * (d + h) + 6 * d
    assert ends[0] - ends[1] == (LAYERS - 1) * update


def test_what_follows_the_end_of_text_is_left_out_and_beams_are_counted() -> None:
    config = make_config("bart", decoder_layers=LAYERS)
    plain = hashee.count_generation(config, [[5, 6]], [[2, 9, 8, 2]])
    assert hashee.count_generation(config, [[5, 6]], [[2, 9, 8, 2, 1, 1]]).macs() == plain.macs()
    assert hashee.count_generation(config, [[5, 6]], [torch.tensor([2, 9, 8])]).macs()["head"] == 2 * 24 * VOCABULARY
    beams = hashee.count_generation(config, [[5, 6]], [[2, 9, 8, 2]], num_beams=4).macs()
    assert beams["decoder"] == 4 * plain.macs()["decoder"] and beams["encoder"] == plain.macs()["encoder"]


def test_sources_and_texts_must_belong_together() -> None:
    with pytest.raises(hashee.InputError, match="2 sources but 1 texts"):
        hashee.count_generation(make_config("bart"), [[5], [6]], [[2, 5]])
    with pytest.raises(hashee.UnsupportedModel, match="t5"):
        hashee.count_generation(make_config("t5"), [[5]], [[2, 5]])
    with pytest.raises(hashee.UnsupportedModel, match="no encoder"):
        hashee.count_flops(make_writer("llama").config, [[5, 6]])
