"""The page at `/`: one file of the package, which loads nothing from elsewhere."""

from functools import cache
from importlib.resources import files

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from another address, and nothing is sent to one."""


@cache
def page() -> str:
    """Return the page."""
    return files("hashee.serving").joinpath("playground.html").read_text(encoding="utf-8")
