"""One job from beginning to end: begun or gone on with, scored by an engine, and closed."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hashee.bulk.inputs import InputFile, check_columns, find_files, fingerprint, shards_of
from hashee.bulk.local_engine import score_here
from hashee.bulk.manifest import (
    MANIFEST,
    check_same,
    completed,
    held_alone,
    manifest_of,
    read_manifest,
    write_manifest,
)
from hashee.bulk.parts import REJECTS, PartFolder
from hashee.bulk.progress import Report, shown_progress
from hashee.bulk.reading import ShardEnd, part_name
from hashee.bulk.settings import BulkJob
from hashee.bulk.work import Work
from hashee.errors import HasheeError, InputError

Engine = Callable[[Work, Report], list[ShardEnd]]
"""Scores what is missing of a job and returns what each shard held, in their order."""


@dataclass(frozen=True)
class Summary:
    """What a job has written."""

    rows: int
    rejected: int
    parts: int


def run_job(job: BulkJob, engine: Engine = score_here, *, resume: bool = False, threads_given: bool = True) -> Summary:
    """Score every row of a file or folder into a folder of parts, with a manifest and the rows that were rejected.

    resume: go on with what is there; without anything there a job just begins. threads_given: False lets a job that
    goes on take the number of threads that it was begun with.
    """
    _check_places(job.texts, job.output)
    paths = find_files(job.texts)
    check_columns(paths, job.rows.column, job.rows.pair_column)
    job.output.mkdir(parents=True, exist_ok=True)
    with held_alone(job.output):
        begun = _begun(job.output, resume)
        if begun is not None and not threads_given:
            job = replace(job, threads=begun["options"]["threads"])
        files = [fingerprint(path, job.texts) for path in paths]
        manifest = manifest_of(job, files)
        work = _work_of(job, files)
        if begun is None:
            write_manifest(job.output, manifest)
        else:
            check_same(job.output, begun, manifest)
        if begun is not None and begun["complete"]:
            _check_whole(begun, work.folder)
        else:
            work.folder.remove_leftovers(rejects=False)
            begun = _finished(work, manifest, _scored(work, engine, files))
        work.folder.remove_leftovers(rejects=True)
    return _summary(begun, work.folder)


def _check_places(texts: Path, output: Path) -> None:
    if output == texts and texts.is_file():
        raise InputError(f"{output} is the file that is read; name a folder to write to")
    if output.exists() and not output.is_dir():
        raise InputError(f"{output} is a file; name a folder, or a file that ends in .jsonl")
    if texts.is_dir() and (output == texts or texts in output.parents):
        raise InputError(f"{output} lies in the folder that is read; name one beside it")


def _begun(folder: Path, resume: bool) -> dict[str, Any] | None:
    """Return the manifest of the job that is to go on; None to begin one."""
    begun = read_manifest(folder)
    if begun is not None and not resume:
        state = "is complete" if begun.get("complete") else "was interrupted"
        raise InputError(f"{folder} holds a job that {state}; go on with --resume, or name another folder")
    # Hidden files are what a killed run was writing when there was no manifest yet.
    if begun is None and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise InputError(f"{folder} holds other files and no {MANIFEST}; name a new or an empty folder")
    return begun


def _work_of(job: BulkJob, files: Sequence[InputFile]) -> Work:
    many = job.texts.is_dir()
    unit = "row" if many or job.texts.suffix.lower() == ".parquet" else "line"
    folder = PartFolder(job.output, job.rows.format, many, unit)
    return Work(job, tuple(shards_of(files, job.rows.part_rows)), folder)


def _check_whole(manifest: dict[str, Any], folder: PartFolder) -> None:
    """Refuse a complete job of which something has been taken away since; its rejects are no longer kept by part."""
    names = folder.names() | ({REJECTS} if (folder.folder / REJECTS).exists() else set())
    expected = [part_name(shard, number) for shard, parts in enumerate(manifest["parts"]) for number in range(parts)]
    gone = next((name for name in [*expected, REJECTS] if name not in names), None)
    if gone is not None:
        raise InputError(f"{folder.folder} was complete, but its {gone} is gone; delete the folder and start again")


def _scored(work: Work, engine: Engine, files: Sequence[InputFile]) -> list[ShardEnd]:
    there = len(work.folder.names())
    if there:
        print(f"note: going on behind {there:,} parts", file=sys.stderr)
    with shown_progress(sum(file.lines for file in files), there * work.job.rows.part_rows) as report:
        return engine(work, report)


def _finished(work: Work, manifest: dict[str, Any], ends: Sequence[ShardEnd]) -> dict[str, Any]:
    """Close a job: everything is there, so that a run that goes on finds it complete."""
    whole = completed(manifest, ends)
    expected = {part_name(end.shard, number) for end in ends for number in range(end.parts)}
    if len(ends) != len(work.shards) or expected != work.folder.names():
        raise HasheeError(f"parts of {work.job.output} are missing; go on with --resume")
    work.folder.gather_rejects()
    write_manifest(work.job.output, whole)
    return whole


def _summary(manifest: dict[str, Any], folder: PartFolder) -> Summary:
    summary = Summary(manifest["rows"], manifest["rejected"], sum(manifest["parts"]))
    if summary.rejected and not summary.rows:
        first = folder.first_reject()
        reason = "" if first is None else f" ({first.file}, {first.row}: {first.reason})"
        raise InputError(f"no row could be read{reason}; {folder.folder / REJECTS} has all of them")
    return summary
