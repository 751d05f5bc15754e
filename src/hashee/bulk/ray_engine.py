"""A job on a Ray cluster: Ray Data reads shards in tasks and hands parts to a pool of actors.

Ray Data retries what fails and gives no promise about which actor runs a part, how often or when. None is needed: a
part has the same name and bytes wherever it is written, and its file is there as a whole or not at all.
"""

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hashee.bulk.inputs import Shard
from hashee.bulk.progress import Report
from hashee.bulk.ray_actors import COLUMN, END, ERROR, ROWS, PartScorer, read_shard
from hashee.bulk.reading import ShardEnd, part_name
from hashee.bulk.work import Work
from hashee.cost.threads import THREAD_VARIABLES
from hashee.errors import HasheeError, first_line
from hashee.packages import require
from hashee.study.ray_engine import connected, forwarded_environment, require_ray, sign_in
from hashee.study.workers import Workers

_IDLE_PASSES = 2
"""Passes over what is missing that may write nothing before a job gives up."""
_READERS = 4
"""Shards that are read at once; one reader feeds many actors."""


@dataclass(frozen=True)
class RayEngine:
    """Scores a job on a Ray cluster: one that is running, or one on this machine that ends with the job."""

    address: str | None = None
    actors: int | None = None
    """None: as many as the cores of the cluster allow."""

    def __call__(self, work: Work, report: Report) -> list[ShardEnd]:
        """Score what is missing of a job, and return what each shard held.

        An actor or node that is lost takes the parts that it holds with it; they are missing, and the next pass over
        what is missing scores them.
        """
        ray = require_ray()
        require("ray.data", "ray", "--engine ray")
        # What Ray Data says about lost workers is told by the passes, and the end of each by the progress bar.
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        ends: dict[int, ShardEnd] = {}
        idle = 0
        workers = Workers("ray", jobs=self.actors, threads=work.job.threads, address=self.address)
        with connected(ray, workers), sign_in(work.job.output) as sign:
            while missing := _missing(work, ends):
                before = len(work.folder.names()), len(ends)
                failure = self._pass(ray, work, missing, str(sign), _Tally(ends, report))
                progressed = (len(work.folder.names()), len(ends)) != before
                idle = 0 if progressed else idle + 1
                if idle == _IDLE_PASSES:
                    raise HasheeError(f"parts are lost again and again on Ray ({failure}); go on with --resume")
        return [ends[shard.number] for shard in work.shards]

    def _pass(self, ray: Any, work: Work, shards: Sequence[Shard], sign: str, tally: "_Tally") -> str:
        """Run a pipeline over shards until it ends; return in one line why it ended early, if that is known."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                context = ray.data.DataContext.get_current().copy()
                context.enable_progress_bars = False
                # A block for each part, however small: an actor takes one at a time.
                context.target_max_block_size = 1
                # What is lost with an actor is left to the next pass.
                context.max_errored_blocks = -1
                with ray.data.DataContext.current(context):
                    for message in self._messages(ray, work, shards, sign):
                        tally.add(message)
        except ray.exceptions.RayError as error:
            return first_line(error)
        return "its workers died"

    def _messages(self, ray: Any, work: Work, shards: Sequence[Shard], sign: str) -> Iterator[dict[str, Any]]:
        threads = work.job.threads
        room = max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        environment = dict.fromkeys([*THREAD_VARIABLES, "RAYON_NUM_THREADS"], str(threads)) | forwarded_environment()
        most = self.actors or room
        numbers = [{"shard": shard.number} for shard in shards]
        parts = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map_batches(
            read_shard,
            fn_kwargs={"work": work},
            batch_size=1,
            batch_format="pyarrow",
            num_cpus=0,  # actors take all cores, and reading takes a hundredth of one
            compute=ray.data.TaskPoolStrategy(size=min(_READERS, len(numbers))),
        )
        done = parts.map_batches(
            PartScorer,
            fn_constructor_args=(work, sign),
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=most, initial_size=min(most, room)),
            num_cpus=threads,
            runtime_env={"env_vars": environment},
            ray_remote_args_fn=_without_retries,
        )
        for row in done.iter_rows():
            yield json.loads(row[COLUMN])


def _without_retries() -> dict[str, Any]:
    """Return that parts do not wait until their actor restarts, for which there may be no room: see the next pass."""
    return {"max_restarts": -1, "max_task_retries": 0}


@dataclass(frozen=True)
class _Tally:
    """What actors have reported."""

    ends: dict[int, ShardEnd]
    report: Report

    def add(self, message: dict[str, Any]) -> None:
        """Take one message; the error of a part ends the job."""
        if ERROR in message:
            raise HasheeError(message[ERROR])
        if END in message:
            end = ShardEnd(**message[END])
            self.ends[end.shard] = end
        else:
            self.report(message[ROWS])


def _missing(work: Work, ends: dict[int, ShardEnd]) -> list[Shard]:
    """Return the shards that were not read to their end, or of which a part is not there."""
    names = work.folder.names()

    def is_whole(end: ShardEnd | None) -> bool:
        return end is not None and all(part_name(end.shard, number) in names for number in range(end.parts))

    return [shard for shard in work.shards if not is_whole(ends.get(shard.number))]
