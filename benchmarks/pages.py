"""Parts of Markdown pages that scripts write, between two markers."""

from pathlib import Path

END = "<!-- to here -->"


def write_part(page: Path, begin: str, text: str) -> None:
    """Replace what stands between a marker and the next `END`."""
    before, marker, rest = page.read_text(encoding="utf-8").partition(begin)
    _, end, after = rest.partition(END)
    if not (marker and end):
        raise SystemExit(f"{page} lacks {END if marker else begin}; put it where the part belongs")
    page.write_text(f"{before}{begin}\n\n{text}\n{END}{after}", encoding="utf-8")
