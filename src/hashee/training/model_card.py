"""The README.md of a fitted model, as Hugging Face reads it."""

from hashee.data import Kind
from hashee.data.run_record import RunRecord
from hashee.data.task_types import TASK_TYPES


def model_card(run: RunRecord) -> str:
    """Return the text of a model card from what `run.json` holds."""
    task, macs = run.task, run.macs
    pipeline = TASK_TYPES[Kind(task.kind)].pipeline
    rows = [f"| {split} | {name} | {value:.4f} |" for split, name, value in _scores(run)]
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            f"pipeline_tag: {pipeline}",
            "tags: [hashee, early-exit]",
            "---",
            "",
            f"# {task.name}, with exits by {run.table.method}",
            "",
            f"Fitted with hashee {run.versions['hashee']} from "
            f"`{run.backbone.name}`, of which it keeps {run.backbone.depth} of "
            f"{run.backbone.layers} layers. Every token has a fixed exit layer; on the {macs.split} texts the "
            f"model executes {macs.speedup:.1f} times fewer multiply-accumulates than the whole backbone.",
            "",
            "| split | measure | value |",
            "|---|---|---|",
            *rows,
            "",
            "```python",
            "import hashee  # lets transformers know models with exits; no trust_remote_code",
            "from transformers import pipeline",
            "",
            f'model = pipeline("{pipeline}", model="path/of/this/folder")',
            "```",
            "",
            "`run.json` holds settings, versions, a fingerprint of the data, all measures and the history of the loss.",
            "",
        ]
    )


def _scores(run: RunRecord) -> list[tuple[str, str, float]]:
    splits = {split: values for split, values in run.metrics.items() if values}
    return [(split, name, value) for split, values in splits.items() for name, value in values.items()]
