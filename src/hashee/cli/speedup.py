"""`hashee speedup`: the fields of the settings are the options."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from hashee.cli.options import LAST, given_options, options_from
from hashee.cost.threads import wait_passively
from hashee.distillation.settings import PANELS, SpeedupSettings
from hashee.errors import InputError
from hashee.training.stopping import STOPS, as_stopped

_Model = Annotated[str, typer.Argument(help="Folder or Hub id of an embedder, reranker or encoder, or minilm.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone.", rich_help_panel=LAST)]


@options_from(SpeedupSettings, PANELS)
def speedup(context: typer.Context, model: _Model, *, as_json: _AsJson = False, **options: Any) -> None:
    """Make an embedder, reranker or encoder several times cheaper with texts alone, without labels."""
    wait_passively()
    from hashee.distillation.entry import REPORT, run_speedup

    given = given_options(context, options)
    if "output" not in given:
        raise InputError("output is missing; say where to write the faster model with --output")
    texts = given.pop("texts", None)
    if as_json:
        given.setdefault("quiet", True)
    try:
        result = run_speedup(model, texts, **given)
    except STOPS as error:
        stopped = as_stopped(error)
        print(f"{stopped.reason}; go on with --resume", file=sys.stderr)
        raise typer.Exit(stopped.code) from None
    if as_json:
        print(json.dumps(result.report.to_dict(), allow_nan=False))
        return
    console = Console()
    console.print(result.report)
    console.print(Text(f"saved to {given['output']}, with {REPORT}"), soft_wrap=True)
