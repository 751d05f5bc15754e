"""An evaluation as report.html: one file that holds everything it shows."""

import base64
from collections.abc import Sequence

from hashee.evaluation.figure import tradeoff_png
from hashee.evaluation.measurements import Measurements
from hashee.evaluation.page import definitions, page, table, text
from hashee.evaluation.points import TradeoffPoint, passes_caption
from hashee.evaluation.terminal import name_of, passes_row, summary_lines, verdict, worst_order
from hashee.hf.explain import Explanation

# From leaving at once to staying to the end: one hue that only gets darker, so that grey printouts and colour-blind
# readers see the same order.
_SCALE = ((241, 246, 252), (158, 202, 225), (66, 146, 198), (8, 81, 156), (8, 36, 84))
_BLACK, _WHITE = (0, 0, 0), (255, 255, 255)


def html_report(evaluation: Measurements, points: Sequence[TradeoffPoint] = ()) -> str:
    """Return the page; points of a trade-off are drawn into it."""
    name, split = evaluation.task.name, evaluation.split
    return page(
        f"{name}: {name_of(evaluation)}",
        [
            f"<h1>{text(name)}: {text(name_of(evaluation))}</h1>",
            f'<p class="soft">{text(evaluation.model.source)}, {text(split)}, {evaluation.cost.texts:,} examples</p>',
            _headline(evaluation),
            _comparison(evaluation),
            _figure(evaluation, points),
            _exits(evaluation),
            _sentences(evaluation.explanations),
            _worst(evaluation),
            _loading(evaluation),
            _provenance(evaluation),
        ],
    )


def _headline(evaluation: Measurements) -> str:
    cards = []
    if evaluation.score is not None:
        kept = evaluation.quality_kept
        note = evaluation.task.metric.replace("_", " ")
        if kept is not None:
            note += f"; {kept:.1%} of the dense model's"
            note += "" if evaluation.equal_passes else ", of whose training nothing is known"
        cards.append((f"{evaluation.score:.1%}", note))
    saved = evaluation.macs_saved
    if saved is not None:
        cards.append((f"{saved:.2f}x", "fewer multiply-accumulates executed than by the dense model"))
    elif evaluation.model.table is not None:
        cards.append((f"{evaluation.cost.speedup:.2f}x", "fewer multiply-accumulates than at full depth"))
    if evaluation.measured_speedup is not None and evaluation.measured_range is not None:
        low, high = evaluation.measured_range
        note = f"the texts per second of the dense model in transformers ({low:.2f} to {high:.2f} over the rounds)"
        cards.append((f"{evaluation.measured_speedup:.2f}x", note))
    elif evaluation.timing is not None:
        cards.append((f"{evaluation.timing.texts_per_second:,.0f}", "texts per second, measured"))
    inner = "".join(f'<div class="card"><b>{text(number)}</b>{text(note)}</div>' for number, note in cards)
    return f'<div class="cards">{inner}</div>'


def _comparison(evaluation: Measurements) -> str:
    dense, cost = evaluation.dense, evaluation.cost
    texts = max(cost.texts, 1)
    rows = []
    for name, value in (evaluation.quality or {}).items():
        if name != "score":
            other = "" if dense is None or dense.quality is None else f"{dense.quality[name]:.4f}"
            rows.append((name.replace("_", " "), f"{value:.4f}", other))
    whole = "" if dense is None else f"{dense.macs_per_text / 1e6:,.1f}"
    rows.append(("million multiply-accumulates per text, executed", f"{cost.executed_macs / texts / 1e6:,.1f}", whole))
    rows.append(("the same by the paper's count", f"{cost.paper_macs / texts / 1e6:,.1f}", whole))
    if evaluation.timing is not None:
        other = "" if dense is None or dense.timing is None else f"{dense.timing.texts_per_second:,.1f}"
        rows.append(("texts per second, measured", f"{evaluation.timing.texts_per_second:,.1f}", other))
    row_of_passes = passes_row(evaluation)
    if row_of_passes is not None:
        rows.append(("passes over the training examples", *row_of_passes))
    rows.append(("layers", str(evaluation.model.layers), "" if dense is None else str(dense.layers)))
    header = ["", name_of(evaluation), *([] if dense is None else ["dense"])]
    shown = table(header, [row[: len(header)] for row in rows])
    notes = "".join(f'<p class="soft">{text(line)}</p>' for line in summary_lines(evaluation))
    return f"<h2>{'Numbers' if dense is None else 'Dense and hashed'}</h2>\n{shown}\n{notes}"


def _figure(evaluation: Measurements, points: Sequence[TradeoffPoint]) -> str:
    if not points:
        return ""
    png = tradeoff_png(points, title=evaluation.task.name, metric=evaluation.task.metric.replace("_", " "))
    data = base64.b64encode(png).decode("ascii")
    caption = passes_caption(points)
    note = "" if caption is None else f'\n<p class="soft">{text(caption)}</p>'
    return (
        f'<h2>Quality against cost</h2>\n<img alt="Quality against the number of operations, for several models" '
        f'src="data:image/png;base64,{data}">{note}'
    )


def _exits(evaluation: Measurements) -> str:
    """Draw how many tokens each layer updates."""
    if evaluation.model.table is None:
        return ""
    tokens, bars = max(evaluation.cost.tokens, 1), []
    for layer in evaluation.cost.layers:
        share = f"{layer.active / tokens:.1%}"
        bars.append(
            f'<span>layer {layer.layer}</span><span class="rest"><span class="bar" style="width:{share}"></span></span>'
            f'<span class="share">{share}</span>'
        )
    label = "Share of tokens that each layer updates"
    return (
        f"<h2>Tokens that each layer updates</h2>\n"
        f'<div class="bars" role="img" aria-label="{label}">{"".join(bars)}</div>\n'
        f'<p class="soft">Of {tokens:,} tokens. Those that exit stay as they are; later layers still attend to them.'
        "</p>"
    )


def _sentences(explanations: Sequence[Explanation]) -> str:
    if not explanations:
        return ""
    layers = explanations[0].num_layers
    # Layer 0 is an option that most tables do not take.
    first = min(1, *(min(each.exit_layers, default=1) for each in explanations))
    legend = " ".join(_token(f"layer {layer}", layer, layers, number=False) for layer in range(first, layers + 1))
    lines = []
    for each in explanations:
        tokens = zip(each.tokens, each.exit_layers, strict=True)
        lines.append(f'<p class="tokens">{" ".join(_token(token, layer, layers) for token, layer in tokens)}</p>')
    return (
        "<h2>Where tokens exit</h2>\n"
        '<p class="soft">The small number is the last layer that updates the token.</p>\n'
        f'<p class="tokens">{legend}</p>\n' + "\n".join(lines)
    )


def _token(token: str, layer: int, layers: int, number: bool = True) -> str:
    background = colour_of(layer, layers)
    ink = max((_BLACK, _WHITE), key=lambda candidate: contrast(candidate, background))
    style = f"background:rgb{background};color:rgb{ink}".replace(" ", "")
    # Byte-level and SentencePiece tokenizers mark the beginning of a word with these.
    shown = token.replace("\u0120", " ").replace("\u2581", " ").replace("\u010a", "\u21b5")
    exit_layer = f"<sup>{layer}</sup>" if number else ""
    return f'<span class="token" style="{style}" title="exit layer {layer}">{text(shown)}{exit_layer}</span>'


def colour_of(layer: int, layers: int) -> tuple[int, int, int]:
    """Return the colour of an exit layer on the scale from light to dark."""
    position = (len(_SCALE) - 1) * layer / max(layers, 1)
    below = min(int(position), len(_SCALE) - 2)
    part = position - below
    mixed = [round(one + part * (two - one)) for one, two in zip(_SCALE[below], _SCALE[below + 1], strict=True)]
    return mixed[0], mixed[1], mixed[2]


def contrast(one: tuple[int, int, int], other: tuple[int, int, int]) -> float:
    """Return the contrast of two colours as WCAG defines it, from 1 to 21; text needs 4.5."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: tuple[int, int, int]) -> float:
    parts = [value / 255 for value in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _worst(evaluation: Measurements) -> str:
    if not evaluation.worst:
        return ""
    # Not a table: its other columns would take the room that the texts need.
    cards = [
        f'<article class="{"right" if example.right else "wrong"}"><h3>{text(verdict(example))}'
        f' <span class="soft">example {example.index}</span></h3><p>{text(example.text)}</p></article>'
        for example in evaluation.worst
    ]
    order = text(worst_order(evaluation))
    return f'<h2>Worst examples</h2>\n<p class="soft">{order}</p>\n' + "\n".join(cards)


def _loading(evaluation: Measurements) -> str:
    model = evaluation.model
    if model.table is None:
        code = (
            "from transformers import pipeline\n"
            f"model = pipeline(model={model.source!r})\n"
            'print(model("a quiet masterpiece"))'
        )
    else:
        options = "" if model.backend == "torch" else f", backend={model.backend!r}"
        options += "" if model.quantize is None else f", quantize={model.quantize!r}"
        code = (
            "import hashee\n"
            f"model = hashee.load({model.source!r}{options})\n"
            'logits = list(model.predict(["a quiet masterpiece"]))'
        )
    return f"<h2>How to load it</h2>\n<pre><code>{text(code)}</code></pre>"


def _provenance(evaluation: Measurements) -> str:
    model, provenance = evaluation.model, evaluation.provenance
    machine = provenance.machine
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items() if number is not None)
    pairs: list[tuple[str, object]] = [("model", f"{model.class_name} in {model.source}")]
    if model.table is not None:
        settings = ", ".join(f"{name}={value}" for name, value in model.table["parameters"].items())
        pairs += [
            ("exit table", f"{model.table['method']}, {model.table['num_layers']} layers; {settings or 'no settings'}"),
            ("its fingerprint", model.table["fingerprint"]),
        ]
    if evaluation.dense is not None:
        pairs.append(("dense model", evaluation.dense.source))
    pairs += [("data fingerprint", provenance.data_fingerprint)]
    if provenance.fitted_on is not None:
        same = provenance.fitted_on == provenance.data_fingerprint
        pairs.append(("fitted on", "the same data" if same else f"other data, {provenance.fitted_on}"))
    pairs += [
        ("machine", f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} used"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("versions", versions),
        ("commit", machine["commit"] or "unknown"),
        ("date", machine["date"]),
    ]
    return f"<h2>Provenance</h2>\n{definitions(pairs)}"
