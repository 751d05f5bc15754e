"""Kills itself at the n-th change of the file system: `killed_writing.py WORK '{"do": ...}'`.

For each n, a fork works on a copy of WORK/old called WORK/n and is killed at the n-th change below it; the first that
comes to its end is the last. Prints how many there were.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


class Killer:
    """Counts changes below a folder, of which the n-th is the last, half done where it can be."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder = str(folder)
        self.left = number
        self.send = os.sendfile

    def install(self) -> None:
        sys.addaudithook(self.on_event)
        os.sendfile = self.half_sent

    def on_event(self, event: str, arguments: Any) -> None:
        if event == "open":
            path, _, flags = arguments
            changes = flags & (os.O_WRONLY | os.O_RDWR) and not isinstance(path, int)
            if changes and os.fspath(path).startswith(self.folder) and self.counted():
                os.kill(os.getpid(), signal.SIGKILL)
        elif event in _CHANGES and str(os.fspath(arguments[0])).startswith(self.folder) and self.counted():
            os.kill(os.getpid(), signal.SIGKILL)

    def half_sent(self, target: int, source: int, offset: int, count: int) -> int:
        """Copy; if this is the last change, only half of the bytes."""
        if not self.counted():
            return self.send(target, source, offset, count)
        self.send(target, source, offset, os.fstat(source).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    def counted(self) -> bool:
        self.left -= 1
        return self.left == 0


def work_of(job: dict[str, Any]) -> Callable[[Path], None]:
    """Return what is done to the copy of the old folder."""
    from hashee.training import FitSettings
    from hashee.training.entry import claim_output
    from hashee.training.outcome import write_model

    if job["do"] == "write":
        run = json.loads((Path(job["source"]) / "run.json").read_text())
        return lambda folder: write_model(Path(job["source"]), folder, run)
    from fitting_data import make_data

    data = make_data(train=job["train"])
    return lambda folder: claim_output(FitSettings(task=data, output=folder, overwrite=True, seed=1), data)


def main(work: Path, job: dict[str, Any]) -> int:
    do = work_of(job)
    for number in range(1, 1000):
        folder = work / str(number)
        shutil.copytree(work / "old", folder)
        child = os.fork()
        if child == 0:
            Killer(folder, number).install()
            do(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            return number
    raise AssertionError("it never came to its end")


if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]
    print(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
