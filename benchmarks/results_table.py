"""Put the figures of results/quality into docs/earlier_results.md, between its markers, so that both always agree.

python benchmarks/results_table.py
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pages import write_part

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "quality", ROOT / "docs" / "earlier_results.md"
BEGIN = "<!-- figures: benchmarks/results_table.py writes from here -->"
TITLES = {
    "sst2": "SST-2 (accuracy)",
    "mrpc": "MRPC (mean of accuracy and F1)",
    "stsb": "STS-B (mean of Pearson and Spearman)",
    "scitail": "SciTail, a part (accuracy)",
    "scitail-whole": "SciTail (accuracy)",
    "snli": "SNLI (accuracy)",
    "imdb": "IMDb (accuracy)",
}
LANDINGS = {"landing.json": "test texts", "landing-reshuffled.json": "test texts of shuffled splits"}

Result = dict[str, Any]


def main() -> None:
    """Write the page anew."""
    write_part(PAGE, BEGIN, figures())


def figures() -> str:
    """Return all tables as Markdown."""
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for path in sorted(RESULTS.glob("*/*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        groups[path.parent.name, result["backbone"]["name"]].append(result)
    order = list(TITLES)
    parts = [
        "\n".join(table(task, backbone, results))
        for (task, backbone), results in sorted(
            groups.items(), key=lambda item: (order.index(item[0][0]), -len(item[1]))
        )
    ]
    for name, texts in LANDINGS.items():
        landing = RESULTS / name
        if landing.exists():
            parts.append("\n".join(landing_table(texts, json.loads(landing.read_text(encoding="utf-8")))))
    return "\n\n".join(parts) + "\n"


def table(task: str, backbone: str, results: list[Result]) -> Iterator[str]:
    """Yield the lines of a task's table: dense models first, then by name."""
    sizes = results[0]["data"]["sizes"]
    yield f"### {TITLES[task]}, {backbone}"
    yield ""
    yield f"{sizes['train']:,} training, {sizes['dev']:,} dev and {sizes['test']:,} test examples."
    yield ""
    yield "| model | seeds | executed MACs | paper's count | dev | test | test, of dense |"
    yield "|---|---|---|---|---|---|---|"
    for layers, dense in sorted(_dense_by_depth(results).items(), reverse=True):
        cost = f"{results[0]['backbone']['layers'] / layers:.2f}x less"
        cells = [_spread(dense, "dev"), _spread(dense, "test")]
        yield f"| dense, {layers} layers | {len(dense)} | {cost} | | {cells[0]} | {cells[1]} | |"
    by_name: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_name[result["name"]].append(result)
    for name, runs in by_name.items():
        kept = fmean(run["metrics"]["test"]["score"] / run["dense"]["metrics"]["test"]["score"] for run in runs)
        executed = fmean(run["macs"]["speedup"] for run in runs)
        counted = fmean(run["macs"]["paper_speedup"] for run in runs)
        metrics = [run["metrics"] for run in runs]
        yield (
            f"| {name} | {len(runs)} | {executed:.2f}x less | {counted:.2f}x | {_spread(metrics, 'dev')} | "
            f"{_spread(metrics, 'test')} | {kept:.1%} |"
        )


def landing_table(texts: str, rows: list[Result]) -> Iterator[str]:
    """Yield the lines of the table on speed-ups asked for and reached on some texts."""
    yield f"### Speed-ups asked for and reached on {texts}"
    yield ""
    asked = sorted({row["asked"] for row in rows})
    yield "| task | table | " + " | ".join(f"{value:g}x" for value in asked) + " |"
    yield "|---|---|" + "---|" * len(asked)
    for task, kind in dict.fromkeys((row["task"], row["hash"]) for row in rows):
        mine = [row for row in rows if (row["task"], row["hash"]) == (task, kind)]
        cells = [_landed([row for row in mine if row["asked"] == value]) for value in asked]
        yield f"| {task} | {kind} | " + " | ".join(cells) + " |"


def _landed(rows: list[Result]) -> str:
    """Return what was reached and how far off it is; of several shuffles, the mean and the furthest on both sides."""
    if not rows:
        return ""
    off = [row["off_percent"] for row in rows]
    reached = f"{fmean(row['reached'] for row in rows):.3f} ({fmean(off):+.1f} %"
    return (
        f"{reached})" if len(rows) == 1 else f"{reached}; {min(off):+.1f} to {max(off):+.1f} over {len(rows)} shuffles)"
    )


def _dense_by_depth(results: Iterable[Result]) -> dict[int, list[Any]]:
    """Return the measures of each dense model once, by depth."""
    found: dict[int, dict[int, Any]] = defaultdict(dict)
    for result in results:
        found[result["dense"]["layers"]][result["seed"]] = result["dense"]["metrics"]
    return {layers: list(by_seed.values()) for layers, by_seed in found.items()}


def _spread(metrics: list[Any], split: str) -> str:
    scores = [100 * each[split]["score"] for each in metrics]
    return f"{fmean(scores):.1f}" + (f" ± {stdev(scores):.1f}" if len(scores) > 1 else "")


if __name__ == "__main__":
    main()
