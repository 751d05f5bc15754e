"""The paper's speed-ups in FLOPs, counted without weights."""

from hashee.study.flops_table import RANDOM_TABLES, TOLERANCE, paper_flops
from hashee.study.options import ReportOptions
from hashee.study.paper import TASKS, THREE_TASKS
from hashee.study.results import RunResult
from hashee.study.tables.table import Cell, Content, Table


def flops(results: list[RunResult], options: ReportOptions) -> Table:
    """Set every counted speed-up beside the paper's, and explain those that differ."""
    study = paper_flops(options.flops)
    rows: list[tuple[Content, ...]] = []
    reasons: list[str] = []
    for row in study.rows:
        mark = ""
        if row.explanation:
            if row.explanation not in reasons:
                reasons.append(row.explanation)
            mark = f" [{reasons.index(row.explanation) + 1}]"
        deviation = Cell(f"{row.deviation:+.1%}{mark}", {"deviation": row.deviation, "explanation": row.explanation})
        ours = Cell(f"{row.ours:.2f}x", {"speedup": row.ours, "by_task": row.by_task})
        task = TASKS.get(row.task, row.task)
        rows.append((row.source, task, row.hash, row.layers, row.buckets, f"{row.paper:.1f}x", ours, deviation))
    three = ", ".join(TASKS[task] for task in THREE_TASKS)
    notes = [f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1)]
    notes += [
        "speed-up by the paper's count over 12-layer BERT-base, on test; frequency tables from train and dev, mutual "
        f"information from train; three tasks: mean over {three}; random: mean over {RANDOM_TABLES} tables",
        f"texts are cut at {study.max_length} tokens, which gives the paper's 6.2x on IMDb (128: 6.0x, 256: 6.1x)",
        f"deviations above {TOLERANCE:.0%} are explained; rounding to one decimal can be {0.05 / 1.5:.0%} at 1.5x",
        *(f"{task}: {note}" for task, notes_of_task in study.notes.items() for note in notes_of_task),
    ]
    columns = ("source", "task", "hash", "layers", "buckets", "paper", "ours", "deviation")
    return Table("FLOPs: speed-up over BERT-base, no weights needed", columns, tuple(rows), tuple(notes))
