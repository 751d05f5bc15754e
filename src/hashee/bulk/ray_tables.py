"""What tables are built from, on a Ray cluster: tokens counted and importance measured in chunks that add up."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, TypeVar

from hashee.bulk.ray_tasks import count_chunk, measure_chunk
from hashee.data.texts import Text
from hashee.errors import InputError
from hashee.study.ray_engine import connected, forwarded_environment, require_ray
from hashee.study.workers import Workers
from hashee.tables.counting import Class, TokenCounts
from hashee.tables.measuring import Importance

_Sum = TypeVar("_Sum", TokenCounts, Importance)
_COUNTED, _MEASURED = 8192, 512
"""Texts of a chunk; a chunk of importance takes about as long as sixteen of counting."""
_IN_FLIGHT = 2
"""Chunks for each core that are sent before the first of them is waited for."""


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that is running, or None for one on this machine that ends with the work."""

    address: str | None = None
    jobs: int | None = None
    """Tasks at a time of a cluster on this machine; None for all cores."""


def count_on_ray(
    tokenizer: str, texts: Iterable[Text], labels: Iterable[Class] | None = None, cluster: Cluster | None = None
) -> TokenCounts:
    """Count tokens as `count_tokens` does, and to the same numbers. tokenizer: a folder that all nodes see."""
    numbered = zip(_in_chunks(texts, _COUNTED), _labels_of(labels), strict=False)
    return _added_up(count_chunk, tokenizer, numbered, cluster or Cluster())


def measure_on_ray(model: str, texts: Iterable[Text], cluster: Cluster | None = None, seed: int = 0) -> Importance:
    """Measure what updates are worth to a dense model's outputs, without labels, as `hashee speedup` does.

    model: a folder that all nodes see. Each chunk draws projections from its own seed.
    """
    numbered = ((chunk, seed + number) for number, chunk in enumerate(_in_chunks(texts, _MEASURED)))
    return _added_up(measure_chunk, model, numbered, cluster or Cluster())


def _in_chunks(texts: Iterable[Text], size: int) -> Iterator[list[Text]]:
    rest = iter(texts)
    while chunk := list(islice(rest, size)):
        yield chunk


def _labels_of(labels: Iterable[Class] | None) -> Iterator[list[Class] | None]:
    rest = None if labels is None else iter(labels)
    while True:
        yield None if rest is None else list(islice(rest, _COUNTED))


def _added_up(
    work: Callable[[str, list[Text], Any], _Sum], folder: str, chunks: Iterator[tuple[list[Text], Any]], on: Cluster
) -> _Sum:
    """Return the sum of what tasks return, in the order of the chunks: sums of floats depend on it."""
    ray = require_ray()
    place = str(Path(folder).absolute()) if Path(folder).exists() else folder
    results: list[_Sum] = []
    with connected(ray, Workers("ray", jobs=on.jobs, threads=1, address=on.address)):
        # A task whose node is lost is run again, which changes nothing: it only returns a sum.
        task = ray.remote(work).options(num_cpus=1, max_retries=3, runtime_env={"env_vars": forwarded_environment()})
        room = _IN_FLIGHT * max(1, int(ray.cluster_resources().get("CPU", 1)))
        running: deque[Any] = deque()
        for chunk, about in chunks:
            if len(running) == room:
                results = [reduce(add, [*results, ray.get(running.popleft())])]
            running.append(task.remote(place, chunk, about))
        for each in running:
            results = [reduce(add, [*results, ray.get(each)])]
    if not results:
        raise InputError("there is not a single text; name files that hold some")
    return results[0]
