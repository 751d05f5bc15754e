"""hashee's commands, run in the process of a test, which saves the seconds that a new one takes to import torch."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest

from hashee.cli import main


def hashee_command(*words: object, code: int = 0) -> str:
    """Run a command in this process and return what it prints, or its error."""
    printed, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setenv("COLUMNS", "200")
        patch.setattr(sys, "argv", ["hashee", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert (stopped.value.code or 0) == code, errors.getvalue()
    return (printed if code == 0 else errors).getvalue()
