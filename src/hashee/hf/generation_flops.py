"""What writing texts costs, counted from a model or config, its tables, and the ids that were read and written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedConfig

from hashee.cost.generation import DecoderShape, GenerationCosts, decoder_costs, head_costs
from hashee.cost.macs import Costs, Counts
from hashee.errors import InputError, UnsupportedModel
from hashee.families.adapters import ADAPTERS, adapter_for, decoder_adapter_for, family_of
from hashee.hf.flops import costs_of
from hashee.tables.table import ExitTable


@dataclass(frozen=True)
class GenerationCount:
    """The cost of texts that a model wrote, with exits and at full depth, in multiply-accumulates.

    FLOPs are twice as many; real lengths, embeddings free, beams counted alike. Encoder, decoder and total are as in
    the paper, without the scores of the vocabulary, which are in `head`.
    """

    with_exits: GenerationCosts
    dense: GenerationCosts
    """The same texts without exits, at the depth that the model has."""

    def macs(self, count: str = "executed") -> dict[str, int]:
        """Return the sums over all texts by part, for a `count` of "executed" or "paper"."""
        costs = self.with_exits
        parts = {"encoder": costs.encoder, "decoder": costs.decoder, "total": costs.total}
        return {name: int(getattr(part, count).sum()) for name, part in parts.items()} | {"head": int(costs.head.sum())}

    def speedups(self, count: str = "executed") -> dict[str, float]:
        """Return full depth / with exits by part; full depth by the paper's count, as in `count_flops`."""
        mine = self.macs(count)
        theirs = GenerationCount(self.dense, self.dense).macs("paper")
        return {name: theirs[name] / max(mine[name], 1) for name in ("encoder", "decoder", "total")}


def count_generation(
    model_or_config: Any,
    sources: Iterable[Sequence[int]] | None,
    written: Iterable[Sequence[int]],
    *,
    tables: tuple[ExitTable | None, ExitTable | None] | None = None,
    num_beams: int = 1,
) -> GenerationCount:
    """Count what it costs to read sources and to write texts, step by step with a cache.

    sources: ids of each source, without padding; None for a model that only decodes. written: ids of each text as
    `generate` returns them, with the token that decoding starts with (of a model that only decodes, with the prompt);
    what follows the first end of text is left out, and nothing is read after the last token. tables: of encoder and
    decoder; by default a converted model's own, else none. num_beams: texts that were written side by side.
    """
    config = model_or_config if isinstance(model_or_config, PreTrainedConfig) else model_or_config.config
    adapter = decoder_adapter_for(config)
    if adapter is None:
        raise UnsupportedModel(f"the decoders of {config.model_type} models cannot be counted; exits are not for them")
    shape = adapter.shape(config)
    of_encoder, of_decoder = _own_tables(model_or_config) if tables is None else tables
    read = [_decoder_inputs(ids, config) for ids in written]
    encoded, encoded_dense, lengths = _encoder_costs(config, sources, len(read), of_encoder)
    exits = [_exits(of_decoder, ids, shape.layers) for ids in read]
    never = [np.full(len(ids), shape.layers, dtype=np.int64) for ids in read]
    return GenerationCount(
        GenerationCosts(encoded, *_decoder_part(shape, exits, lengths, num_beams)),
        GenerationCosts(encoded_dense, *_decoder_part(shape, never, lengths, num_beams)),
    )


def _decoder_part(shape: DecoderShape, exits: list[Counts], lengths: Counts, num_beams: int) -> tuple[Costs, Counts]:
    costs = decoder_costs(shape, exits, lengths)
    beams = Costs(num_beams * costs.executed, num_beams * costs.paper)
    return beams, num_beams * head_costs(shape, exits)


def _encoder_costs(
    config: Any, sources: Iterable[Sequence[int]] | None, texts: int, table: ExitTable | None
) -> tuple[Costs, Costs, Counts]:
    """Return what the encoder costs with exits and without, and the tokens of each source: (texts,) each."""
    nothing = np.zeros(texts, dtype=np.int64)
    if family_of(config) not in ADAPTERS:
        return Costs(nothing, nothing), Costs(nothing, nothing), nothing
    ids = [] if sources is None else [list(source) for source in sources]
    if len(ids) != texts:
        raise InputError(f"there are {len(ids)} sources but {texts} texts that were written; give one for each")
    never = ExitTable.never(config.vocab_size, adapter_for(config).shape(config).layers)
    lengths = np.asarray([len(source) for source in ids], dtype=np.int64)
    dense = costs_of(config, never, ids, reads_first_row=False)
    with_exits = dense if table is None else costs_of(config, table, ids, reads_first_row=False)
    return with_exits, dense, lengths


def _own_tables(model_or_config: Any) -> tuple[ExitTable | None, ExitTable | None]:
    settings = getattr(getattr(model_or_config, "config", None), "hashee", None)
    if settings is None:
        return None, None
    of_encoder = None if settings["table"] is None else model_or_config.exit_table
    return of_encoder, model_or_config.decoder_exit_table


def _decoder_inputs(written: Sequence[int], config: Any) -> list[int]:
    """Return the ids that the decoder read to write a text: all up to the end of text but the last."""
    ids = [int(token) for token in written]
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    # Decoding may start with the very token that ends a text.
    last = next((index for index, token in enumerate(ids) if index and token in ends), len(ids) - 1)
    return ids[:last]


def _exits(table: ExitTable | None, ids: list[int], layers: int) -> Counts:
    """Return the exit layer of each id: (ids,)."""
    if table is None:
        return np.full(len(ids), layers, dtype=np.int64)
    exit_layers = table.exit_layers.numpy()
    if ids and (min(ids) < 0 or max(ids) >= len(exit_layers)):
        raise InputError(f"token id {max(ids)} is outside the exit table of {len(exit_layers)} tokens")
    return np.asarray(exit_layers[np.asarray(ids, dtype=np.int64)], dtype=np.int64)
