"""Files of lines that survive a kill: they are appended to a draft, and a run goes on behind the last whole one."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from hashee.errors import InputError
from hashee.files import read_json, replaced_atomically, sync, write_json

T = TypeVar("T")
_COMPLETE = "complete"
"""Entry of a note: every line of the draft is there."""


@dataclass(frozen=True)
class LineFile:
    """A file of JSON lines, one for each row that is read, in their order.

    Until it is complete it is `<name>.part`, and `<name>.part.json` says what it was begun with.
    """

    path: Path
    about: Mapping[str, Any]
    """JSON values that every line depends on: model, input and options."""
    every: int = 256
    """Lines between two times that the disk is waited for."""

    @property
    def draft(self) -> Path:
        """The file while it is not complete."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def note(self) -> Path:
        """What the draft was begun with."""
        return self.path.with_name(f"{self.path.name}.part.json")

    def begin(self, resume: bool) -> int | None:
        """Return how many lines of the draft are there already, 0 for a new one; None if the file is complete."""
        if self.draft.exists():
            if not resume:
                raise InputError(
                    f"{self.draft} holds what an interrupted run has written; go on with --resume, or delete it"
                )
            self._check_note()
            if (read_json(self.note) or {}).get(_COMPLETE):
                self._put_in_place()
                return None
            return self._whole_lines()
        if resume and self.path.exists():
            self.note.unlink(missing_ok=True)
            return None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.note, dict(self.about))
        return 0

    def _check_note(self) -> None:
        begun = read_json(self.note)
        if begun is None:
            raise InputError(f"{self.note} is missing or damaged, so nobody knows what wrote {self.draft}; delete it")
        for name, value in self.about.items():
            if begun.get(name) != value:
                raise InputError(
                    f"{self.draft} was begun with another {name} ({begun.get(name)!r}, now {value!r}); repeat the "
                    f"command as it was, or delete that file"
                )

    def _whole_lines(self) -> int:
        """Count the whole lines of the draft and cut off what a kill left of another."""
        if not self.draft.exists():
            return 0
        lines = end = 0
        with self.draft.open("r+b") as file:
            for line in file:
                if not _is_whole(line):
                    break
                lines, end = lines + 1, end + len(line)
            file.truncate(end)
        return lines

    def write(self, rows: Iterable[T], done: int, lines_for: Callable[[Iterator[T]], Iterator[dict[str, Any]]]) -> None:
        """Append a line for each row behind the first `done`, then put the file in its place.

        lines_for: from rows to the JSON values of their lines, one for each, in order.
        """
        rest = iter(rows)
        for _ in islice(rest, done):
            pass
        with self.draft.open("a", encoding="utf-8") as file:
            for number, values in enumerate(lines_for(rest), start=1):
                file.write(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
                if number % self.every == 0:
                    file.flush()
                    sync(self.draft)
        sync(self.draft)
        # From here on, a run that goes on has nothing left to write.
        write_json(self.note, dict(self.about) | {_COMPLETE: True})
        self._put_in_place()

    def _put_in_place(self) -> None:
        if self.path.suffix == ".gz":
            with (
                replaced_atomically(self.path) as temporary,
                self.draft.open("rb") as plain,
                gzip.open(temporary, "wb") as packed,
            ):
                shutil.copyfileobj(plain, packed)
            self.draft.unlink()
        else:
            self.draft.replace(self.path)
        self.note.unlink(missing_ok=True)
        sync(self.path.parent)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
