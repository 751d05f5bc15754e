"""`make demo`: exits in a real model on real sentences, offline, in about a minute."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from transformers import AutoModel, AutoTokenizer

import hashee
from hashee.embedded import minilm_folder, rotten_tomatoes

SENTENCES = (
    "a quiet masterpiece",
    "the film is not as good as the book , but it is more than worth the price of the ticket .",
    "an overlong , underwritten thriller that squanders a marvelous cast",
)
TIMED_SENTENCES = 512
BATCH_SIZE = 32
ROUNDS = 3


def main() -> None:
    """Convert MiniLM with a frequency table, explain some sentences, count and time it against the original."""
    console = Console()
    console.rule("[bold]hashee: every token has a fixed exit layer")
    folder = minilm_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dense = AutoModel.from_pretrained(folder).eval()
    texts = [text for text, _ in rotten_tomatoes()]

    console.print(f"\n[bold]1. A frequency table[/] from {len(texts):,} Rotten Tomatoes sentences")
    table = hashee.ExitTable.by_frequency(tokenizer, texts, num_layers=dense.config.num_hidden_layers)
    console.print(table.describe(tokenizer), markup=False, highlight=False, soft_wrap=True)

    model = hashee.convert(dense, table, tokenizer=tokenizer)
    console.print(f"\n[bold]2. {type(dense).__name__} -> {type(model).__name__}[/], the same weights")
    for sentence in SENTENCES:
        console.print(model.explain(sentence))

    console.print("\n[bold]3. Counted cost[/] of all the sentences")
    console.print(hashee.count_flops(model, texts))

    console.print(
        f"\n[bold]4. Measured time[/] on {torch.get_num_threads()} threads: the same {TIMED_SENTENCES:,} sentences"
    )
    batches = make_batches(tokenizer, texts[:TIMED_SENTENCES])
    seconds = measure({"full depth (transformers)": dense, "with exits (hashee)": model}, batches)
    slowest = max(seconds.values())
    for name, value in seconds.items():
        rate = TIMED_SENTENCES / value
        console.print(f"{name:<28} {rate:8.0f} sentences/s   {slowest / value:.2f}x")
    console.print(
        "\nExits change what the model computes, so fine-tune it after converting: it trains with the ordinary Trainer."
        "\nNext: README.md shows how to convert, train, save and load your own model.",
        markup=False,
    )


def make_batches(tokenizer: Any, texts: list[str]) -> list[Any]:
    """Tokenize texts into padded batches, sorted by length so that neither side pays for padding."""
    texts = sorted(texts, key=len)
    return [
        tokenizer(texts[start : start + BATCH_SIZE], padding=True, truncation=True, return_tensors="pt")
        for start in range(0, len(texts), BATCH_SIZE)
    ]


def measure(models: dict[str, Callable[..., Any]], batches: list[Any]) -> dict[str, float]:
    """Return the median seconds that each model takes for all batches, in rounds that alternate between models."""
    seconds: dict[str, list[float]] = {name: [] for name in models}
    with torch.inference_mode():
        for round_number in range(ROUNDS + 1):
            for name, model in models.items():
                start = time.perf_counter()
                for batch in batches:
                    model(**batch)
                if round_number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
