"""What exits save in each module of the layers, counted on real texts beside the paper's formulae."""

from collections.abc import Callable
from dataclasses import replace

from hashee.cost.macs import BERT_BASE, Counts, EncoderShape
from hashee.data import load_task
from hashee.embedded import minilm_folder
from hashee.study.flops_table import TaskTokens, tokens_of
from hashee.study.options import ReportOptions
from hashee.study.paper import SAVED_MACS, SAVINGS
from hashee.study.results import RunResult
from hashee.study.tables.table import Cell, Content, Table
from hashee.tables.table import ExitTable

LAYERS = 6
Formula = Callable[[EncoderShape, Counts, Counts], Counts]

FORMULAE: dict[str, Formula] = {
    "SelfAttn LinearProj": lambda shape, n, m: (n - m) * shape.width**2,
    "SelfAttn MultiHeadAttn": lambda shape, n, m: 2 * n * (n - m) * (shape.heads + shape.width),
    "SelfAttn OutProj": lambda shape, n, m: (n - m) * shape.width**2,
    "SelfAttn LayerNorm": lambda shape, n, m: 2 * (n - m) * shape.width,
    "FFN FFN": lambda shape, n, m: 2 * (n - m) * shape.width * shape.inner,
    "FFN LayerNorm": lambda shape, n, m: 2 * (n - m) * shape.width,
}
"""The paper's, over texts of n tokens of which a layer updates m: (texts,) each."""

COSTS: dict[str, Formula] = {
    # Keys and values are projected from all tokens, queries from those that are updated.
    "SelfAttn LinearProj": lambda shape, n, m: (m + 2 * n) * shape.width**2,
    "SelfAttn MultiHeadAttn": lambda shape, n, m: 2 * m * n * (shape.heads + shape.width),
    "SelfAttn OutProj": lambda shape, n, m: m * shape.width**2,
    "SelfAttn LayerNorm": lambda shape, n, m: 2 * m * shape.width,
    "FFN FFN": lambda shape, n, m: 2 * m * shape.width * shape.inner,
    "FFN LayerNorm": lambda shape, n, m: 2 * m * shape.width,
}
"""What each module runs in such a layer; together they are `hashee.cost.macs.layer_cost`."""


def saved_macs(results: list[RunResult], options: ReportOptions) -> Table:
    """Count on a task's test texts what the frequency table saves in the first 6 layers of BERT-base."""
    from transformers import AutoTokenizer  # noqa: PLC0415

    task = options.task or "sst2"
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokens = tokens_of(load_task(task), tokenizer)
    table = ExitTable.by_frequency(tokenizer, tokens.train_and_dev, LAYERS)
    found = savings(tokens, table)
    texts = len(tokens.lengths)
    whole = sum(full for _, _, full in found.values())
    rows: list[tuple[Content, ...]] = []
    for saving in SAVINGS:
        formula, counted, full = found[saving.module]
        share = Cell(f"{counted / full:.0%}", {"share": counted / full})
        rows.append((saving.module, saving.formula, _millions(formula / texts), _millions(counted / texts), share))
    total = sum(counted for _, counted, _ in found.values())
    everything = sum(formula for formula, _, _ in found.values())
    share = Cell(f"{total / whole:.0%}", {"share": total / whole})
    rows.append(("all", "", _millions(everything / texts), _millions(total / texts), share))
    return Table(
        f"Saved multiply-accumulates on {task}, {texts:,} texts: frequency table, first {LAYERS} layers of BERT-base",
        ("module", "formula, one layer", "by formula", "counted", "of the module"),
        tuple(rows),
        (
            f"millions a text, over all {LAYERS} layers; n tokens of which m are updated, width d, h heads",
            f"paper: {SAVED_MACS.label}, which has the formulae only",
        ),
    )


def savings(tokens: TaskTokens, table: ExitTable) -> dict[str, tuple[float, float, float]]:
    """Return by module what the formula says is saved, what is counted, and what the module costs without exits."""
    shape = replace(BERT_BASE, layers=table.num_layers)
    n, active = tokens.lengths, tokens.active(table.exit_layers.numpy(), table.num_layers)
    found = dict.fromkeys(FORMULAE, (0.0, 0.0, 0.0))
    for layer in range(1, table.num_layers + 1):
        m = active[:, layer]
        for module, (formula, counted, full) in found.items():
            without, with_exits = (float(COSTS[module](shape, n, updated).sum()) for updated in (n, m))
            saved = float(FORMULAE[module](shape, n, m).sum())
            found[module] = (formula + saved, counted + without - with_exits, full + without)
    return found


def _millions(macs: float) -> Cell:
    return Cell(f"{macs / 1e6:,.2f}", {"macs": macs})
