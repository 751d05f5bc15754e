"""The report is one page that holds everything, and no text of a model or of the data is ever taken for code."""

import base64
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from evaluating_data import make_task, save_dense, save_hashed
from rich.console import Console

import hashee
from hashee.data.task import Examples, Kind, TaskData
from hashee.evaluation import Evaluation, TradeoffPoint, evaluate
from hashee.evaluation.measurements import Example
from hashee.evaluation.points import with_front
from hashee.evaluation.report import colour_of, contrast, html_report
from hashee.evaluation.terminal import name_of, summary_lines, worst_order

HOSTILE = '</td><script>alert("1")</script><img src=x onerror=alert(2)> & [bold]"quoted"\' \x1b[31m\x00 </style>'
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOOK = """<iframe src="report.html" style="width:WIDTHpx;height:900px;border:0"></iframe><output></output><script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const texts = [...page.querySelectorAll("article p")].map((each) => each.getBoundingClientRect());
  const found = [page.documentElement.scrollWidth, texts.map((each) => [each.left, each.right])];
  document.querySelector("output").textContent = JSON.stringify(found);
};
</script>"""
VOID = {"meta", "img", "rect", "br"}


class Page(HTMLParser):
    """Reads a page and notes its elements, attributes and texts; elements must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        """All that the page shows."""
        return " ".join(self.texts)


def hostile_task() -> TaskData:
    data = make_task(count=6)
    assert data.test is not None
    texts = [f"{HOSTILE} {text}" for text in data.test.texts]
    task = replace(data.task, name=f"tiny{HOSTILE}")
    return replace(data, task=task, test=Examples(texts, data.test.targets), notes=(HOSTILE,))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """A converted model against a dense one, on texts that want to be code."""
    folder = tmp_path_factory.mktemp("models")
    dense = save_dense(folder / "dense", seed=3)
    return evaluate(save_hashed(folder / "hashed"), hostile_task(), dense=dense, rounds=1, quiet=True)


def test_hostile_texts_stay_texts(evaluation: Evaluation) -> None:
    first = replace(evaluation.explanations[0], tokens=(HOSTILE,), exit_layers=(1,), token_ids=(7,))
    page = Page(html_report(replace(evaluation, explanations=(first, *evaluation.explanations[1:]))))
    assert not {"script", "iframe", "object", "link", "form", "a"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    shown = HOSTILE.replace("\x1b", "\ufffd").replace("\x00", "\ufffd")
    assert page.text.count(shown) >= 5 + 1 + 1, "in worst examples, in a sentence and in the heading"
    assert page.tags.count("style") == 1


def test_the_page_asks_nobody_for_anything(evaluation: Evaluation) -> None:
    points = [
        TradeoffPoint("dense", "dense", 4, speedup=1.0, dev=0.9, test=0.9),
        TradeoffPoint("one", "mi", 4, 2.0, 2.1, 1e6, 0.8, 0.8),
    ]
    html = html_report(evaluation, points)
    page = Page(html)
    sources = [value or "" for name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")]
    assert len(sources) == 1
    kind, _, data = sources[0].partition(",")
    assert kind == "data:image/png;base64"
    png = base64.b64decode(data, validate=True)
    assert png.startswith(b"\x89PNG\r\n\x1a\n") and len(png) > 10_000
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert style is not None and "url(" not in style[1] and "@import" not in style[1]
    assert "prefers-color-scheme: dark" in style[1]
    policy = dict(page.attributes)["content"] or ""
    assert "default-src 'none'" in html and policy


def test_the_page_says_what_was_measured(evaluation: Evaluation) -> None:
    text = Page(html_report(evaluation)).text
    assert evaluation.quality is not None and evaluation.dense is not None and evaluation.dense.quality is not None
    assert evaluation.model.table is not None
    for value in (
        f"{evaluation.quality['accuracy']:.4f}",
        f"{evaluation.dense.quality['accuracy']:.4f}",
        f"{evaluation.macs_saved:.2f}x",
        f"{evaluation.measured_speedup:.2f}x",
        f"{evaluation.cost.layers[-1].active / evaluation.cost.tokens:.1%}",
        evaluation.model.table["fingerprint"],
        evaluation.provenance.data_fingerprint,
        f"hashee.load({evaluation.model.source!r})",
        hashee.__version__,
        "exits by random, 3 layers",
    ):
        assert value in text, value


def test_a_dense_model_has_a_page_too(tmp_path: Path) -> None:
    found = evaluate(save_dense(tmp_path / "model"), make_task(), rounds=0, quiet=True)
    found.save(tmp_path / "report")
    text = Page((tmp_path / "report" / "report.html").read_text(encoding="utf-8")).text
    assert "pipeline(" in text and "Where tokens exit" not in text
    assert json.loads((tmp_path / "report" / "evaluation.json").read_text(encoding="utf-8")) == found.to_dict()


def test_half_characters_can_be_saved(evaluation: Evaluation, tmp_path: Path) -> None:
    broken = replace(evaluation, worst=(replace(evaluation.worst[0], text="half of one \ud83d"),))
    broken.save(tmp_path)
    assert json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))["worst"][0]["text"][-1] == "\ud83d"
    Page((tmp_path / "report.html").read_text(encoding="utf-8"))


LONG = "an uncommonly straightforward story about grandmothers , told without condescension " * 3
PLAIN = (
    Example(17, LONG.strip(), "negative", "positive", 4.1, 0.983, False),
    Example(4, "a quiet masterpiece\nthe second text of a pair", "positive", "negative", 3.2, 0.91, False),
    Example(1203, "characteristically indistinguishable", "positive", "positive", 0.68, 0.503, True),
)


def shown_at(evaluation: Evaluation, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    with console.capture() as page:
        console.print(evaluation)
    return page.get().splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_words_are_whole_in_a_narrow_terminal(evaluation: Evaluation, width: int) -> None:
    plain = replace(
        evaluation,
        worst=PLAIN,
        model=replace(evaluation.model, source="runs/a"),
        task=replace(evaluation.task, name="reviews"),
        provenance=replace(evaluation.provenance, data_notes=("2 texts of test are in train too",)),
    )
    lines = shown_at(plain, width)
    assert max(map(len, lines)) <= width
    assert "".join(lines).count("…") == 1, "at the end of the text that is too long"
    words = re.sub(r"[┏┓┃┡╇┩│└┴┘━─┳]", " ", " ".join(lines)).split()
    for expected in (
        *(LONG.split()[:20]),
        *("characteristically", "indistinguishable", "masterpiece", "negative,", "positive,", "examples:"),
        *(word for line in summary_lines(plain) for word in line.split()),
        *name_of(plain).split(),
        *("accuracy", "MMACs/text,", "executed", "measured", "paper's"),
    ):
        assert expected in words, expected
    assert " ".join(LONG.split()[:12]) in " ".join(words), "a text goes on in the next line, not beside other columns"


def test_errors_come_first_and_right_predictions_are_marked(evaluation: Evaluation) -> None:
    plain = replace(evaluation, worst=PLAIN)
    lines = [line.strip() for line in shown_at(plain, 100)]
    expected = [
        "17 wrong: gold negative, predicted positive, 98.3% sure, loss 4.100",
        "4 wrong: gold positive, predicted negative, 91.0% sure, loss 3.200",
        "1203 right: positive, 50.3% sure, loss 0.680",
    ]
    assert [line for line in lines if "% sure" in line] == expected
    order = "2 errors, the most confident first; 1 right prediction with the largest loss, as there are no more errors"
    assert f"worst examples: {order}" in " ".join(lines)
    text = Page(html_report(plain)).text
    assert order in text and all(line.split(" ", 1)[1] in text for line in expected)


@pytest.mark.parametrize(
    ("kind", "right", "order"),
    [
        (Kind.SCORE, (None, None), "the largest error first"),
        (Kind.CLASSES, (False,), "1 error"),
        (Kind.CLASSES, (False, False), "2 errors, the most confident first"),
        (Kind.TAGS, (False, False), "2 errors, the largest loss first"),
        (
            Kind.LABELS,
            (True, True),
            "no errors; 2 right predictions with the largest loss, as there are no more errors",
        ),
    ],
)
def test_the_order_of_the_worst_is_said(
    evaluation: Evaluation, kind: Kind, right: tuple[bool | None, ...], order: str
) -> None:
    worst = tuple(replace(PLAIN[0], right=each) for each in right)
    assert worst_order(replace(evaluation, worst=worst, task=replace(evaluation.task, kind=kind))) == order


def test_long_texts_end_after_a_whole_word(evaluation: Evaluation) -> None:
    shown = " ".join(" ".join(shown_at(replace(evaluation, worst=PLAIN[:1]), 80)).split())
    cut = shown[shown.index("an uncommonly") :].split(" …")[0]
    assert LONG.startswith(cut + " ") and 120 < len(cut) <= 160


def test_no_text_is_in_a_box_that_scrolls(evaluation: Evaluation) -> None:
    html = html_report(replace(evaluation, worst=PLAIN))
    worst = html[html.index("Worst examples") : html.index("How to load it")]
    assert 'class="scroll"' not in worst and "<table" not in worst and worst.count("<article") == 3


@pytest.mark.skipif(BROWSER is None, reason="no chromium to look at the page with")
@pytest.mark.parametrize("width", [1100, 400])
def test_a_browser_shows_texts_over_the_width_of_the_page(evaluation: Evaluation, width: int, tmp_path: Path) -> None:
    replace(evaluation, worst=PLAIN).save(tmp_path)
    (tmp_path / "look.html").write_text(LOOK.replace("WIDTH", str(width)), encoding="utf-8")
    seen = subprocess.run(
        [
            *(str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1300,900", "--virtual-time-budget=5000"),
            *("--dump-dom", (tmp_path / "look.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    found = re.search(r"<output>(.+?)</output>", seen)
    assert found is not None, seen[:500]
    whole, texts = json.loads(found[1])
    assert whole <= width, "the page itself scrolls to the side"
    assert len(texts) == 3
    assert all(left >= 0 and right <= width and right - left > 0.75 * min(width, 960) for left, right in texts), texts


def test_the_terminal_shows_texts_as_they_are(evaluation: Evaluation) -> None:
    console = Console(width=400, record=True, force_terminal=True, file=io.StringIO())
    console.print(evaluation)
    shown = console.export_text(styles=True)
    assert '[bold]"quoted"' in shown, "texts are no markup"
    # The console sets colours itself, but not to a bare red, and never writes zeros.
    assert "\x1b[31m" not in shown and "\x00" not in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for part in ("paper's count", "executed", "texts per second", "peak memory", "agreement with the dense model"):
        assert part in plain
    assert f"{evaluation.cost.layers[1].active / evaluation.cost.tokens:.1%}" in plain
    assert "paper's count" in str(evaluation) and "\x1b" not in str(evaluation)


def test_colours_get_darker_and_their_texts_can_be_read() -> None:
    for layers in (1, 4, 6, 12, 24):
        colours = [colour_of(layer, layers) for layer in range(layers + 1)]
        darkness = [contrast((255, 255, 255), colour) for colour in colours]
        assert darkness == sorted(darkness) and len(set(colours)) == layers + 1
        assert min(max(contrast(ink, colour) for ink in ((0, 0, 0), (255, 255, 255))) for colour in colours) >= 4.5


def test_the_front_is_what_dev_would_choose() -> None:
    def point(name: str, speedup: float | None, dev: float | None) -> TradeoffPoint:
        return TradeoffPoint(name, "mi", 4, speedup=speedup, dev=dev)

    points = [point("dense", 1, 0.9), point("worse", 2, 0.7), point("best", 3, 0.8), point("fast", 5, 0.6)]
    points += [point("equal", 3, 0.8), point("skipped", None, None)]
    assert [each.name for each in with_front(points) if each.on_front] == ["dense", "best", "fast", "equal"]
