"""`make demo`: a real embedder made faster without labels, and a classifier with them, offline, in a few minutes.

What is fitted stays in `.demo`; a second run reuses it.
"""

import json
import os
import random
import sys
from pathlib import Path

from rich.console import Console
from transformers.utils import logging

import hashee
from hashee.cli.evaluate import points_table
from hashee.distillation.entry import run_speedup
from hashee.embedded import minilm_folder, rotten_tomatoes
from hashee.errors import HasheeError
from hashee.evaluation.compare import FIGURE
from hashee.files import replaced_atomically

FOLDER = Path(".demo")
SPLITS = {"test": 1000, "dev": 500, "train": 2000}
"""Sentences of each split: as many as leave time for a coffee, not for lunch."""
UNLABELLED = 4000
"""Sentences that the embedder learns from."""
SPEEDUPS = (3.0,)
DEPTH = 3
EPOCHS = 1
"""Of the dense model that others start from, and of the models with exits; the other models have both at once."""
SENTENCES = (
    "a quiet masterpiece",
    "the film is not as good as the book , but it is more than worth the price of the ticket .",
    "an overlong , underwritten thriller that squanders a marvelous cast",
)


def main() -> None:
    """Make MiniLM faster as it is, then fit it to Rotten Tomatoes at several costs, and write a report."""
    console = Console()
    console.rule("[bold]hashee: every token has a fixed exit layer")
    embedder = faster_embedder(console)
    data = write_sentences(FOLDER / "rotten-tomatoes")
    console.print(
        f"\n[bold]2. Fit[/] all-MiniLM-L6-v2 to {SPLITS['train']:,} Rotten Tomatoes sentences: the dense model, models "
        f"with exits at {' and '.join(f'{speedup:g}' for speedup in SPEEDUPS)} times fewer operations, and the first "
        f"{DEPTH} layers without exits; each has {2 * EPOCHS} passes over them"
    )
    points = hashee.tradeoff(
        task=data,
        output=FOLDER / "tradeoff",
        speedups=SPEEDUPS,
        hash="importance",
        depths=(DEPTH,),
        epochs=EPOCHS,
        batch_size=16,
    )
    console.print(points_table(points))

    chosen = next(point for point in points if point.asked == SPEEDUPS[0])
    if chosen.folder is None:
        raise HasheeError(f"{chosen.name} could not be fitted: {chosen.skipped}")
    console.print(f"\n[bold]3. Evaluate[/] {chosen.name} and the dense model on {SPLITS['test']:,} held-out sentences")
    evaluation = hashee.evaluate(chosen.folder, data)
    console.print(evaluation)
    evaluation.save(FOLDER / "report", points)

    console.print("\n[bold]4. Where tokens exit[/]")
    model = hashee.load(chosen.folder)
    for sentence in SENTENCES:
        console.print(model.explain(sentence))

    console.print(
        f"\nembedder    {embedder}\nclassifier  {chosen.folder}\n"
        f"trade-off   {FOLDER / 'tradeoff' / FIGURE}\nreport      {FOLDER / 'report' / 'report.html'}\n\n"
        "Next, with your own texts:\n"
        "  .venv/bin/hashee speedup MODEL --texts sentences.txt --speedup 3 --output fast\n"
        "  .venv/bin/hashee fit --task reviews.csv --speedup 3 --output out\n"
        "  .venv/bin/hashee evaluate out --output report\n",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def faster_embedder(console: Console) -> Path:
    """Make the embedder three times cheaper with sentences alone, show how close it stays, and return its folder."""
    folder = FOLDER / "embedder"
    console.print(
        f"\n[bold]1. Speed up[/] all-MiniLM-L6-v2 {SPEEDUPS[0]:g} times as an embedder, with {UNLABELLED:,} sentences "
        f"and no labels: it learns to say what it said before"
    )
    sentences = [text for text, _ in rotten_tomatoes()]
    random.Random(0).shuffle(sentences)
    options = {"speedup": SPEEDUPS[0], "limit": UNLABELLED, "output": folder, "resume": folder.exists()}
    console.print(run_speedup(minilm_folder(), sentences, **options).report)
    return folder


def write_sentences(folder: Path) -> Path:
    """Write the embedded sentences as train, dev and test files, unless they are there."""
    rows = [{"text": text, "label": label} for text, label in rotten_tomatoes()]
    random.Random(0).shuffle(rows)
    for split, size in SPLITS.items():
        part, rows = rows[:size], rows[size:]
        path = folder / f"{split}.jsonl"
        if not path.exists():
            with replaced_atomically(path) as unfinished:
                unfinished.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    return folder


if __name__ == "__main__":
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted; make demo goes on where it stopped")
    except HasheeError as error:
        sys.exit(f"error: {error}")
