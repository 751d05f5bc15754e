"""The page at `/` in a real browser: light, dark, narrow, by keyboard; it loads nothing from elsewhere."""

import re
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from running import Server

from hashee.serving.playground import page

CHROMIUM = shutil.which("chromium")
TEXT = "the film is a quiet masterpiece"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the system."""
    api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright, which is not here")
    if CHROMIUM is None:
        pytest.skip("the page is tested in Chromium, which is not here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def wait(part: Any) -> Any:
    """Return what waits for a part of the page; the page forbids to evaluate expressions, as other ways would."""
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    return expect(part)


def opened_page(browser: Any, server: Server, **options: Any) -> Any:
    """Return the page after its first answer; whatever it writes to the console as an error fails the test."""
    tab = browser.new_page(**options)
    tab.errors = []
    tab.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.set_default_timeout(60_000)
    tab.goto(server.url)
    tab.fill("#token", str(server.token))
    tab.press("#token", "Enter")
    wait(tab.locator("body")).to_have_attribute("data-done", re.compile("."))
    return tab


def test_the_page_names_no_other_address_and_the_server_forbids_it(server: Server) -> None:
    answer = httpx.get(server.url, timeout=300)
    assert answer.text == page()
    assert not re.search(r"https?://|src=|@import|url\(", page())
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_tokens_cost_and_answers_are_those_of_the_server(browser: Any, server: Server) -> None:
    tab = opened_page(browser, server)
    tab.select_option("#model", "classifier")
    tab.fill("#text", TEXT)
    expected = server.post("/explain", {"inputs": TEXT, "model": "classifier"}).json()
    wait(tab.locator("#tokens .token")).to_have_count(len(expected["tokens"]))
    wait(tab.locator("#answers h3")).to_have_text("classifier")
    shown = tab.eval_on_selector_all("#tokens .token", "all => all.map(each => each.textContent)")
    # The number stands beside the colour, which nobody has to see.
    assert shown == [
        f"{token}{layer}" for token, layer in zip(expected["tokens"], expected["exit_layers"], strict=True)
    ]
    rows = tab.locator("#cost tr").count() - 1
    assert rows == expected["num_layers"]
    assert f"{expected['cost']['speedup']:.2f} times fewer" in tab.inner_text("#cost-said")
    labels = server.post("/predict", {"inputs": TEXT, "model": "classifier"}).json()
    best = tab.locator("#answers tr").first
    wait(best).to_contain_text(f"{labels[0]['score']:.4f}")
    assert best.inner_text().split()[0] == labels[0]["label"]
    assert tab.errors == []
    tab.close()


def test_queries_are_ranked_by_keyboard_alone(browser: Any, server: Server) -> None:
    tab = opened_page(browser, server)
    tab.focus("#model")
    tab.keyboard.type("rerank")
    for following in ("slider", "text"):
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.id") == following
    tab.keyboard.press("Control+a")
    tab.keyboard.type("a good film")
    tab.keyboard.press("Tab")
    tab.keyboard.type("the cat\na great story\ndull")
    tab.keyboard.press("Control+Enter")
    wait(tab.locator("#answers tr")).to_have_count(3)
    ranked = server.post("/rerank", {"query": "a good film", "texts": ["the cat", "a great story", "dull"]}).json()
    best = ["the cat", "a great story", "dull"][ranked[0]["index"]]
    assert tab.locator("#answers td").first.inner_text() == best
    assert tab.inner_text("#other-label") == "Documents, one a line"
    tab.close()


def test_the_slider_goes_through_the_tables_of_a_tradeoff(browser: Any, server: Server) -> None:
    tab = opened_page(browser, server)
    assert tab.inner_text("#slider-said") == "another model is chosen"
    tab.select_option("#model", "classifier")
    tab.fill("#text", TEXT)
    seen = []
    for name, said in (("classifier", "2.0x (classifier)"), ("classifier-early", "3.3x (classifier-early)")):
        cost = server.post("/explain", {"inputs": TEXT, "model": name}).json()["cost"]
        wait(tab.locator("#slider-said")).to_have_text(said)
        wait(tab.locator("#cost-said")).to_contain_text(f"{cost['speedup']:.2f} times fewer")
        wait(tab.locator("#answers h3")).to_have_text(name)
        seen.append(tab.locator("#tokens .token").all_inner_texts())
        tab.focus("#slider")
        tab.keyboard.press("ArrowRight")
    assert seen[0] != seen[1]
    tab.close()


CONTRAST = """() => {
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = node => { for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour; } return "rgb(255, 255, 255)"; };
  let least = 99;
  for (const node of document.querySelectorAll("h1, h2, h3, p, label, td, th, button, select, textarea, .token, sup")) {
    if (!node.checkVisibility() || !node.textContent.trim()) continue;
    const pair = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
    least = Math.min(least, (pair[0] + 0.05) / (pair[1] + 0.05));
  }
  return least;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1100, 360])
def test_it_can_be_read_light_dark_and_on_a_phone(browser: Any, server: Server, scheme: str, width: int) -> None:
    tab = opened_page(browser, server, color_scheme=scheme, viewport={"width": width, "height": 800})
    tab.wait_for_selector("#tokens .token")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(CONTRAST) >= 4.5
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark")
    tab.close()


def test_without_the_token_it_asks_for_it(browser: Any, server: Server) -> None:
    tab = browser.new_page()
    tab.set_default_timeout(60_000)
    tab.goto(server.url)
    tab.wait_for_selector("#token", state="visible")
    assert "needs its token" in tab.inner_text("#error")
    tab.close()
