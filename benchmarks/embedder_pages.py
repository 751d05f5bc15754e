"""Put the figures of results/embedders into docs/embedders.md, between its markers, so that both always agree.

python benchmarks/embedder_pages.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import write_part

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "embedders", ROOT / "docs" / "embedders.md"
QUALITY = "<!-- quality: benchmarks/embedder_pages.py writes from here -->"
CLOCKS = "<!-- clocks: benchmarks/embedder_pages.py writes from here -->"
MODELS = {
    "minilm": "all-MiniLM-L6-v2, 6 layers",
    "gte-small": "gte-small, 12 layers",
    "ms-marco-minilm-l12": "ms-marco-MiniLM-L12, a reranker of the top 100 of all-MiniLM-L6-v2",
}
METHODS = {"dense": "dense", "hashed": "**exits by importance**", "untrained": "the same exits, converted only"}

Result = dict[str, Any]


def main() -> None:
    """Write both parts anew."""
    for marker, part in parts().items():
        write_part(PAGE, marker, part)


def parts() -> dict[str, str]:
    """Return what stands behind each marker, as Markdown."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    quality = [line for name in MODELS for line in _quality([run for run in runs if run.get("model") == name])]
    clocks = [line for run in runs if "rows" in run for line in _clocks(run)]
    return {QUALITY: "\n".join(quality), CLOCKS: "\n".join(clocks)}


def _quality(runs: list[Result]) -> Iterator[str]:
    """Yield the table of one model, by falling cost."""
    dense = next((run for run in runs if run["method"] == "dense"), None)
    if dense is None or len(runs) == 1:
        return
    told = f"{dense['limit']:,} texts, {dense['passes']:g} pass"
    queries = dense["quality"]["cranfield"]["queries"]
    yield f"**{MODELS[dense['model']]}** ({told}; Cranfield with {queries} queries)"
    yield ""
    yield "| | counted | STS-B dev | STS-B test | nDCG@10 | of the dense model's, test / nDCG@10 | agreement |"
    yield "|---|---|---|---|---|---|---|"
    for run in sorted(runs, key=lambda run: (_counted(run), run["method"] == "untrained", run["method"])):
        yield _quality_row(run, dense)
    yield ""


def _quality_row(run: Result, dense: Result) -> str:
    sts, ndcg = run["quality"]["sts"], run["quality"]["cranfield"]["ndcg@10"]
    kept = sts["test"] / dense["quality"]["sts"]["test"], ndcg / dense["quality"]["cranfield"]["ndcg@10"]
    cells = [_name(run), f"{_counted(run):.2f}x", f"{100 * sts['dev']:.1f}", f"{100 * sts['test']:.1f}", f"{ndcg:.4f}"]
    cells.append("" if run is dense else f"{100 * kept[0]:.1f} % / {100 * kept[1]:.1f} %")
    cells.append("" if run is dense else f"{run['report']['agreement']['score']:.3f}")
    return "| " + " | ".join(cells) + " |"


def _name(run: Result) -> str:
    kind, _, depth = run["method"].partition("-")
    if not depth:
        return METHODS[kind]
    if kind in METHODS:
        return f"{METHODS[kind].strip('*')}, {depth} layers"
    layers = "layer" if depth == "1" else "layers"
    return f"{depth} {layers}, the first" if kind == "first" else f"{depth} {layers}, evenly spread"


def _counted(run: Result) -> float:
    return 1.0 if run["method"] == "dense" else float(run["report"]["counted"])


def _clocks(run: Result) -> Iterator[str]:
    """Yield the texts per second of every row, and how many times as many as the first one they are."""
    rows = {name: row for name, row in run["rows"].items() if "skipped" not in row}
    loads = [name for name in next(iter(rows.values())) if "," in name]
    first = next(iter(rows.values()))
    yield f"**{run['name']}**, {run['threads']} threads of an {run['processor']}"
    yield ""
    yield "| | STS-B dev | " + " | ".join(loads) + " |"
    yield "|---|" + "---|" * (1 + len(loads))
    for name, row in rows.items():
        rates = [row[load]["texts_per_second"] for load in loads]
        ratios = [rate / first[load]["texts_per_second"] for rate, load in zip(rates, loads, strict=True)]
        cells = [f"{rate:,.0f} ({ratio:.1f}x)" for rate, ratio in zip(rates, ratios, strict=True)]
        yield f"| {name} | {100 * row['sts_dev']:.1f} | " + " | ".join(cells) + " |"
    yield ""


if __name__ == "__main__":
    main()
