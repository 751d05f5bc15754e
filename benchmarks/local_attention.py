"""Time local layers against global ones in the engine, on long texts, with ModernBERT-base's sizes.

    python benchmarks/local_attention.py results/speed/local-attention.json

Two models of equal depth with random weights, one whose layers are all local and one whose layers are all global, run
the same text of each length, batch 1 and without exits, in interleaved rounds. Each time is divided by the depth, so
that it is the time of one layer; embeddings and the final norm, the same in both, are part of it.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import ModernBertConfig, ModernBertModel

import hashee
from hashee.cost.machine import describe_machine
from hashee.cost.rounds import alternate
from hashee.cost.threads import torch_threads

LENGTHS = (1024, 2048, 4096, 8192)
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def main() -> None:
    """Print a table and write its rows, the settings and the machine as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of the texts")
    parser.add_argument("--layers", type=int, default=2, help="depth of both models")
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds for each length")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--width", type=int, help="default: ModernBERT-base's; heads and inner width follow")
    options = parser.parse_args()
    models = {kind: make_model(kind, options.layers, max(options.lengths), options.width) for kind in (LOCAL, GLOBAL)}
    print(f"{'tokens':>8} {'local ms':>18} {'global ms':>18} {'global / local':>24}")
    rows = []
    with torch_threads(options.threads), torch.inference_mode():
        for length in options.lengths:
            rows.append(measure(models, length, options.rounds))
            print(table_line(rows[-1]), flush=True)
    sizes = models[LOCAL].config
    settings = {
        "layers": options.layers,
        "rounds": options.rounds,
        "batch_size": 1,
        "dtype": "float32",
        "width": sizes.hidden_size,
        "heads": sizes.num_attention_heads,
        "inner": sizes.intermediate_size,
        "window": sizes.sliding_window,
    }
    result = {"machine": describe_machine(options.threads), "settings": settings, "rows": rows}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def make_model(layer_type: str, layers: int, max_length: int, width: int | None) -> Any:
    """Return a converted model without exits, all of whose layers are of one type, with random weights."""
    sizes: dict[str, Any] = {}
    if width is not None:
        sizes = {"hidden_size": width, "num_attention_heads": max(width // 64, 1), "intermediate_size": 3 * width // 2}
    config = ModernBertConfig(
        num_hidden_layers=layers, layer_types=[layer_type] * layers, max_position_embeddings=max_length, **sizes
    )
    torch.manual_seed(0)
    exits = torch.full((config.vocab_size,), layers)
    return hashee.convert(ModernBertModel(config).eval(), hashee.ExitTable.from_tensor(exits, num_layers=layers))


def measure(models: dict[str, Any], length: int, rounds: int) -> dict[str, Any]:
    """Return median and spread of the seconds per layer, and of the ratio within a round, at one length."""
    config = models[LOCAL].config
    ids = torch.randint(5, config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
    runs = [partial(model, input_ids=ids) for model in models.values()]
    alternate(runs, 2)  # warm-up
    local_seconds, global_seconds = (
        [second / config.num_hidden_layers for second in seconds] for seconds in alternate(runs, rounds)
    )
    ratios = [slow / fast for slow, fast in zip(global_seconds, local_seconds, strict=True)]
    return {
        "length": length,
        "local_seconds": summary(local_seconds),
        "global_seconds": summary(global_seconds),
        "global_over_local": summary(ratios),
    }


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return the median, and the quartiles as spread; of a single value all three are that value."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)
    return {"median": median, "first_quartile": low, "third_quartile": high}


def table_line(row: dict[str, Any]) -> str:
    """Return a row of the printed table: medians, and quartiles in brackets."""
    cells = [f"{row['length']:>8}"]
    for name in ("local_seconds", "global_seconds"):
        low, median, high = (1000 * row[name][key] for key in ("first_quartile", "median", "third_quartile"))
        cells.append(f"{median:.1f} [{low:.1f}, {high:.1f}]".rjust(18))
    ratio = row["global_over_local"]
    cells.append(f"{ratio['median']:.2f} [{ratio['first_quartile']:.2f}, {ratio['third_quartile']:.2f}]".rjust(24))
    return " ".join(cells)


if __name__ == "__main__":
    main()
