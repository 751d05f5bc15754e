"""`hashee info`: what a bug report needs. `hashee kernels build`: compile the kernels now."""

import json
import logging
import time
from typing import Any

from hashee.cli.shared import AsJson


def info(as_json: AsJson = False) -> None:
    """Print processor, instruction sets, kernels in use and why, threads and versions: what a bug report needs."""
    import torch

    from hashee.cost.machine import describe_machine, instruction_sets
    from hashee.engine.native.report import describe_kernels

    _quieten()
    about = describe_machine(torch.get_num_threads())
    versions = {"python": about.pop("python"), **about.pop("versions")}
    found = {**about, "instruction_sets": instruction_sets(), "kernels": describe_kernels(), "versions": versions}
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _print(found)


def build_kernels() -> None:
    """Compile the kernels for this processor unless they are there, and say where they are."""
    from hashee.engine import native
    from hashee.errors import HasheeError

    _quieten()
    began = time.monotonic()
    found = native.kernels()
    if found.opened is None:
        why = found.notes[-1] if found.notes else found.reason
        raise HasheeError(f"no kernels, so everything runs in torch: {why}")
    done = f"compiled in {time.monotonic() - began:.1f} seconds" if found.opened.is_new else "were there already"
    print(f"kernels for {found.variant} ({found.reason}) {done}: {found.opened.path or 'kept nowhere'}")
    for note in found.notes:
        print(f"note: {note}")


def _quieten() -> None:
    """Keep warnings of the kernels out of standard error: they are notes of the output."""
    logging.getLogger("hashee.engine.native").setLevel(logging.ERROR)


def _print(found: dict[str, Any], indent: str = "") -> None:
    for name, value in found.items():
        label = f"{indent}{name.replace('_', ' ')}:"
        if isinstance(value, dict):
            print(label if value else f"{label} none")
            _print(value, indent + "  ")
        elif isinstance(value, list):
            print(f"{label} {'; '.join(map(str, value)) or 'none'}")
        else:
            print(f"{label} {'not there' if value is None or value == '' else value}")
