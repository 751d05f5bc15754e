"""An evaluation as one page in the terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hashee.data.run_record import counted_passes
from hashee.data.task_types import type_of
from hashee.evaluation.measurements import Example, Measurements

_BAR = 32
_TEXT = 160
"""Characters of each line of a worst example that are shown."""


def rendered(evaluation: Measurements) -> RenderableType:
    """Return the page; nothing of it is read as markup, whatever the texts hold."""
    title = _text(title_of(evaluation), style="bold")
    parts: list[RenderableType] = [title, _numbers(evaluation), Text(), *map(_text, summary_lines(evaluation))]
    if evaluation.model.table is not None:
        parts += [Text(), Text("tokens that each layer updates", style="bold"), _exits(evaluation)]
    if evaluation.worst:
        heading = Text.assemble(("worst examples: ", "bold"), worst_order(evaluation))
        parts += [Text(), heading, _worst(evaluation)]
    return Group(*parts)


def _numbers(evaluation: Measurements) -> Table:
    dense, cost = evaluation.dense, evaluation.cost
    table = Table()
    table.add_column("")
    table.add_column(_text(name_of(evaluation)), justify="right")
    if dense is not None:
        table.add_column(Text(f"dense, {dense.layers} layers"), justify="right")

    def row(name: str, own: str, other: str) -> None:
        table.add_row(_text(name), own, *([] if dense is None else [other]))

    for name, value in (evaluation.quality or {}).items():
        if name != "score":
            others = None if dense is None or dense.quality is None else dense.quality
            row(name, f"{value:.4f}", "" if others is None else f"{others[name]:.4f}")
    row_of_passes = passes_row(evaluation)
    if row_of_passes is not None:
        row("passes over train", *row_of_passes)
    texts = max(cost.texts, 1)
    whole = f"{dense.macs_per_text / 1e6:,.1f}" if dense is not None else ""
    if evaluation.model.table is not None:
        row("MMACs/text, paper's count", f"{cost.paper_macs / texts / 1e6:,.1f}", whole)
        row("MMACs/text, executed", f"{cost.executed_macs / texts / 1e6:,.1f}", whole)
    full = f"MMACs/text, full depth, {evaluation.model.full_layers} layers"
    row(full, f"{cost.full_depth_macs / texts / 1e6:,.1f}", whole)
    if evaluation.timing is not None:
        other = "" if dense is None or dense.timing is None else f"{dense.timing.texts_per_second:,.1f}"
        row("texts per second, measured", f"{evaluation.timing.texts_per_second:,.1f}", other)
    return table


def passes_row(evaluation: Measurements) -> tuple[str, str] | None:
    """Return the passes of the model and of the dense one, if either is known."""
    passes = (evaluation.model.passes, None if evaluation.dense is None else evaluation.dense.passes)
    if passes == (None, None):
        return None
    own, other = ("unknown" if each is None else f"{each:g}" for each in passes)
    return own, other


def title_of(evaluation: Measurements) -> str:
    """Say in one line what was evaluated on what."""
    name = evaluation.task.name
    return f"{evaluation.model.source} on {name}, {evaluation.split}: {evaluation.cost.texts:,} examples"


def name_of(evaluation: Measurements) -> str:
    """Return what the model is called in a table."""
    model = evaluation.model
    name = "dense" if model.table is None else f"exits by {str(model.table['method']).replace('_', ' ')}"
    how = [f"{model.layers} layers", *([model.quantize] if model.quantize else [])]
    return ", ".join([name, *how, *([model.backend] if model.backend != "torch" else [])])


def summary_lines(evaluation: Measurements) -> list[str]:
    """Say in a line each what follows from the numbers."""
    makers = (_kept, _not_compared, _counted, _measured, _memory, _elue)
    lines = [line for maker in makers if (line := maker(evaluation)) is not None]
    return lines + _notes(evaluation)


def _kept(evaluation: Measurements) -> str | None:
    if evaluation.dense is None:
        return None
    agreement = evaluation.dense.agreement
    value = f"{agreement.value:.1%}" if agreement.metric == "equal predictions" else f"{agreement.value:.4f}"
    line = f"agreement with the dense model: {value} {agreement.metric}"
    if evaluation.quality_kept is None:
        return line
    known = "nothing is known of how long it was trained"
    if evaluation.equal_passes:
        known = f"both had {counted_passes(evaluation.model.passes)} over the training examples"
    return f"{line}; {evaluation.quality_kept:.1%} of its quality is kept; {known}"


def _not_compared(evaluation: Measurements) -> str | None:
    """Give both scores with their passes where a ratio of them would say something of training, not of exits."""
    dense, reason = evaluation.dense, evaluation.quality_kept_reason
    if reason is None or dense is None or dense.quality is None:
        return None
    own = f"{evaluation.task.metric.replace('_', ' ')} {evaluation.score:.4f} after"
    other = f"{dense.quality['score']:.4f} after {counted_passes(dense.passes)}"
    return f"{own} {counted_passes(evaluation.model.passes)}, of the dense model {other}: {reason}"


def _counted(evaluation: Measurements) -> str | None:
    if evaluation.model.table is None:
        return None
    cost = evaluation.cost
    return (
        f"counted speed-up over full depth: {cost.paper_speedup:.2f}x by the paper's count, {cost.speedup:.2f}x as "
        f"executed; {cost.speedup_vs_bert_base:.2f}x over 12-layer BERT-base by the paper's count"
    )


def _measured(evaluation: Measurements) -> str | None:
    timing = evaluation.timing
    if timing is None:
        return None
    rounds = _counted_as(len(timing.seconds), "round")
    threads = _counted_as(evaluation.provenance.machine["threads"], "thread")
    how = f"{rounds} of {timing.texts:,} texts through predict, tokenizing included, after a warm-up, on {threads}"
    if evaluation.measured_speedup is None or evaluation.measured_range is None:
        return f"measured: {how}"
    low, high = evaluation.measured_range
    return (
        f"measured speed-up over the dense model in transformers: {evaluation.measured_speedup:.2f}x "
        f"({low:.2f}-{high:.2f}); {how}, interleaved"
    )


def _memory(evaluation: Measurements) -> str:
    return f"peak memory of the process: {evaluation.peak_memory_mb:,.0f} MB"


def _elue(evaluation: Measurements) -> str | None:
    return None if evaluation.elue is None else f"ELUE score of this point: {evaluation.elue:+.2f}"


def _notes(evaluation: Measurements) -> list[str]:
    fitted_on = evaluation.provenance.fitted_on
    lines = [f"note: {note}" for note in evaluation.provenance.data_notes]
    if fitted_on not in (None, evaluation.provenance.data_fingerprint):
        lines.append("note: these are not the data that the model was fitted to (their fingerprints differ)")
    if evaluation.submission is not None:
        lines.append(f"predictions written to {evaluation.submission}")
    return lines


def _exits(evaluation: Measurements) -> RenderableType:
    tokens = max(evaluation.cost.tokens, 1)
    grid = Table.grid(padding=(0, 2))
    for justify in ("right", "left", "right"):
        grid.add_column(justify=justify)
    for layer in evaluation.cost.layers:
        share = layer.active / tokens
        grid.add_row(str(layer.layer), Text("█" * round(_BAR * share) or "▏", style="blue"), f"{share:.1%}")
    return grid


def _worst(evaluation: Measurements) -> Table:
    """Return each example in lines of its own: columns would leave no room for the words of its text."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for example in evaluation.worst:
        style = "bold" if example.right is False else ""
        grid.add_row(str(example.index), _text(verdict(example), style=style))
        grid.add_row("", _text("\n".join(map(_shortened, example.text.splitlines()))))
    return grid


def worst_order(evaluation: Measurements) -> str:
    """Say what the worst examples are, and in which order they come."""
    task_type = type_of(evaluation.task)
    if not task_type.right_or_wrong:
        return "the largest error first"
    right = sum(example.right is True for example in evaluation.worst)
    wrong = len(evaluation.worst) - right
    parts = [_counted_as(wrong, "error") if wrong else "no errors"]
    if wrong > 1:
        parts[0] += ", the most confident first" if task_type.one_decision else ", the largest loss first"
    if right:
        parts.append(f"{_counted_as(right, 'right prediction')} with the largest loss, as there are no more errors")
    return "; ".join(parts)


def _counted_as(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def verdict(example: Example) -> str:
    """Say in a line what is right and what the model predicts."""
    certain = "" if example.confidence is None else f", {example.confidence:.1%} sure"
    if example.right:
        return f"right: {example.gold}{certain}, loss {example.loss:.3f}"
    if example.right is None:
        return f"gold {example.gold}, predicted {example.predicted}, off by {example.loss:.3g}"
    return f"wrong: gold {example.gold}, predicted {example.predicted}{certain}, loss {example.loss:.3f}"


def _shortened(line: str) -> str:
    """Return a line cut after a whole word, if it is long."""
    if len(line) <= _TEXT:
        return line
    start = line[:_TEXT]
    return f"{start.rsplit(None, 1)[0] if ' ' in start else start} …"


def _text(text: str, style: str = "") -> Text:
    """Return a text in which nothing is markup and nothing steers the terminal."""
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)
    return Text(shown, style=style, overflow="fold")
