"""The frame of a self-contained HTML page: it loads nothing from elsewhere, and its texts are never code."""

from collections.abc import Iterable, Sequence
from html import escape

# Nothing is fetched and nothing is run, even if a text should ever get past the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --card: #f4f6f8;
  --line: #d8dee4; --bar: #2a6fb0; --wrong: #c8502b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a0a8b0; --paper: #14171a; --card: #1f2428;
  --line: #363c42; --bar: #6cb2f2; --wrong: #ff9068; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 60rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p { margin: .4rem 0; }
.soft { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .75rem; padding: 1rem 1.25rem; }
.card b { display: block; font-size: 1.9rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .75rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
article { border-left: .3rem solid var(--line); padding: .1rem 0 .1rem .9rem; margin: 1.1rem 0; }
article.wrong { border-color: var(--wrong); }
article h3 { font-size: 1rem; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
article p { margin: .2rem 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .9rem 1.1rem;
  overflow-x: auto; font: .9rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .5rem .75rem; align-items: center; }
.rest { background: var(--card); border: 1px solid var(--line); border-radius: .2rem; height: 1.3rem; }
.bar { display: block; background: var(--bar); border-radius: .2rem; height: 100%; }
.share { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: .5rem; }
.tokens { line-height: 2.1; margin: .8rem 0; overflow-wrap: anywhere; }
.token { display: inline-block; max-width: 100%; padding: 0 .35rem; margin-right: .2rem; line-height: 1.6;
  border: 1px solid var(--line); border-radius: .35rem; white-space: pre-wrap; }
.token sup { font-size: .65em; margin-left: .15em; line-height: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { body { padding: 1.25rem .9rem 3rem; } h1 { font-size: 1.35rem; overflow-wrap: anywhere; }
  th, td { padding: .35rem .4rem; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin: 0 0 .5rem; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page; `parts` are HTML, `title` is text."""
    body = "\n".join(part for part in parts if part)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def text(value: object) -> str:
    """Return a text as HTML that shows it as it is; control characters, which HTML may not hold, become U+FFFD."""
    shown = "".join(letter if letter in "\n\t" or letter >= " " else "\ufffd" for letter in str(value))
    return escape(shown.replace("\x7f", "\ufffd"), quote=True)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts."""
    head = "".join(f"<th>{text(cell)}</th>" for cell in header)
    lines = [f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows]
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def definitions(pairs: Iterable[tuple[str, object]]) -> str:
    """Return terms with what they mean."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in pairs) + "</dl>"
