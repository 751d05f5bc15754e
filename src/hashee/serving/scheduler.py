"""The queue of one model: bounded in multiply-accumulates, run in batches by cost, carried over a worker's death."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hashee.errors import HasheeError
from hashee.serving.choosing import BatchBudget, choose_batch
from hashee.serving.failures import ModelFailed, NotReady, Overloaded, WorkerDied
from hashee.serving.metrics import ModelMetrics
from hashee.serving.process import Listeners, Message, WorkerProcess
from hashee.serving.served import ServedModel, TokenizedText
from hashee.serving.settings import QUEUE_SECONDS, ServeSettings
from hashee.serving.throughput import Throughput
from hashee.serving.worker import Done, Job, NotOpened, Opened

Output = NDArray[np.float32]

_BATCHES_IN_LATENCY = 3
"""A request waits for the batch that runs, the one sent ahead, and its own."""
_LOOK_AHEAD = 4
"""Batches' worth of waiting texts among which a batch is chosen."""
_OVERTAKEN = 2
"""Batches that may run later texts before one that costs otherwise."""
_STALL_SECONDS = 10.0
"""A worker that is silent for so long, and for a request's deadline, is killed."""
_LONGEST_PAUSE = 30.0
"""Seconds between attempts to start a worker that keeps dying, at most."""


@dataclass(eq=False)
class Submission:
    """The texts of one request, and what is there of their outputs."""

    future: asyncio.Future[list[Output]]
    outputs: list[Output | None]
    missing: int
    queued: float = field(default_factory=time.perf_counter)
    started: float | None = None
    """When the first of them was sent to the worker."""

    def settle(self, place: int, output: Output) -> None:
        """Take the output of one text; with the last, the request is answered."""
        self.outputs[place] = output
        self.missing -= 1
        if not self.missing and not self.future.done():
            self.future.set_result([each for each in self.outputs if each is not None])

    def fail(self, error: HasheeError) -> None:
        """End the request with an error."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(eq=False)
class WaitingText:
    """A text on its way through queue and worker."""

    text: TokenizedText
    submission: Submission
    place: int
    """Its number in the request."""
    retried: bool = False
    """Whether a worker died while it ran."""
    overtaken: int = 0
    """Batches that ran later texts before it."""


@dataclass(frozen=True)
class Answers:
    """The outputs of a request's texts, and what they took."""

    outputs: list[Output]
    macs: int
    tokens: int
    queue_seconds: float
    run_seconds: float


class Scheduler:
    """Runs the texts of all requests for one model; everything here happens in the event loop."""

    def __init__(self, model: ServedModel, pooling: str, settings: ServeSettings, metrics: ModelMetrics) -> None:
        self.model = model
        self.throughput = Throughput()
        self.restarts = 0
        self._pooling = pooling
        self._settings = settings
        self._metrics = metrics
        self._waiting: deque[WaitingText] = deque()
        self._running: dict[int, list[WaitingText]] = {}
        self._stalls: dict[int, asyncio.TimerHandle] = {}
        self._load = 0
        self._running_macs = 0
        self._calibrated = 0.0
        self._numbers = 0
        self._failures = 0
        self._worker: WorkerProcess | None = None
        self._ready = asyncio.Event()
        self._opening: asyncio.Future[Opened] | None = None
        self._stopping = False

    @property
    def ready(self) -> bool:
        """Whether the worker is open."""
        return self._ready.is_set() and not self._stopping

    @property
    def load(self) -> int:
        """Multiply-accumulates that wait or run."""
        return self._load

    @property
    def most(self) -> float:
        """Multiply-accumulates that may wait or run: as was asked for, or what the model runs in `QUEUE_SECONDS`."""
        if self._settings.max_queue_macs is not None:
            return self._settings.max_queue_macs
        return self._rate * QUEUE_SECONDS if self._calibrated else math.inf

    async def open(self) -> None:
        """Start the worker and wait until it has opened the model; raise if the folder cannot be opened."""
        self._opening = asyncio.get_running_loop().create_future()
        self._start_worker()
        self.model = self.model.with_process(await self._opening)
        self._opening = None

    async def calibrate(self) -> None:
        """Measure how fast the model is, which sets its batches and, unless that is given, the queue's length."""
        self.throughput = await self.measure()
        self._calibrated = self.throughput.macs_per_second

    def stop(self) -> None:
        """End the worker; what is not answered yet fails."""
        self._stopping = True
        for waiting in (*self._waiting, *(each for batch in self._running.values() for each in batch)):
            waiting.submission.fail(NotReady("the server is stopping; ask another one, or later"))
        if self._worker is not None:
            self._worker.kill()

    def check_room(self, macs: int) -> None:
        """Raise Overloaded if so much work does not fit in the queue; an empty queue takes any request."""
        excess = self._load + macs - self.most
        if self._load and excess > 0:
            seconds = max(1, math.ceil(excess / self.throughput.macs_per_second))
            raise Overloaded(
                f"the queue of {self.model.name} is full: {self._load:,} MACs wait, {macs:,} more exceed "
                f"{int(self.most):,}; try again in {seconds} s",
                seconds,
            )

    async def run(self, texts: Sequence[TokenizedText]) -> Answers:
        """Return the outputs of texts, or raise Overloaded at once if they do not fit in the queue."""
        macs = sum(text.cost.macs for text in texts)
        if self._stopping:
            raise NotReady("the server is stopping; ask another one, or later")
        self.check_room(macs)
        submission = Submission(asyncio.get_running_loop().create_future(), [None] * len(texts), len(texts))
        self._load += macs
        self._waiting.extend(WaitingText(text, submission, place) for place, text in enumerate(texts))
        self._metrics.queue_macs.set(self._load)
        self._dispatch()
        try:
            outputs = await submission.future
        finally:
            # Of a request that has failed, or whose client is gone, the rest is not run.
            if submission.missing:
                self._forget(submission)
        ended = time.perf_counter()
        started = submission.started or ended
        tokens = sum(text.cost.tokens for text in texts)
        return Answers(outputs, macs, tokens, started - submission.queued, ended - started)

    async def measure(self, lengths: Sequence[int] = (64,)) -> Throughput:
        """Measure the throughput on tokens drawn from the vocabulary, in batches as large as under load."""
        measured = Throughput()
        generator = np.random.default_rng(0)
        for length in lengths:
            texts = 4
            while True:
                batch = self._drawn(generator, texts, min(length, self.model.max_length))
                # The first run compiles and fills caches.
                for counts in (False, True):
                    start = time.perf_counter()
                    await self.run(batch)
                    seconds = time.perf_counter() - start
                    if counts:
                        measured.add(sum(each.cost.macs for each in batch), seconds, texts)
                if seconds >= self._batch_seconds or texts * length >= BatchBudget(0).tokens:
                    break
                texts *= 2
        return measured

    def _drawn(self, generator: np.random.Generator, texts: int, length: int) -> list[TokenizedText]:
        rows = generator.integers(0, len(self.model.table.exit_layers), (texts, length)).tolist()
        columns = {"input_ids": rows, "token_type_ids": [[0] * length] * texts}
        opened = self.model.opened
        if opened is not None and not opened.token_types:
            del columns["token_type_ids"]
        return self.model.costed(columns)

    @property
    def _batch_seconds(self) -> float:
        return self._settings.max_latency_ms / 1000 / _BATCHES_IN_LATENCY

    def _budget(self) -> BatchBudget:
        if not self._calibrated:
            return BatchBudget(math.inf)
        return BatchBudget(self._rate * self._batch_seconds)

    @property
    def _rate(self) -> float:
        """Multiply-accumulates per second that are counted on.

        Small batches are slow ones: if only they were measured, batches would become smaller and smaller.
        """
        return max(self.throughput.macs_per_second, self._calibrated / 2)

    def _dispatch(self) -> None:
        """Send batches: one that the worker runs and, if it is a full one, the next, so that it never idles."""
        while self._worker is not None and self._ready.is_set() and len(self._running) < 2:
            budget = self._budget()
            if self._running and self._load - self._running_macs < budget.macs:
                return  # what comes while a batch runs may still join the next
            window = self._window(budget)
            if not window:
                return
            chosen = [0] if window[0].retried else self._chosen(window, budget)
            is_full = window[0].retried or len(chosen) < len(window)
            if self._running and not is_full:
                self._waiting.extendleft(reversed(window))
                return
            taken = set(chosen)
            for index in range(chosen[-1]):
                window[index].overtaken += 1
            self._waiting.extendleft(window[index] for index in reversed(range(len(window))) if index not in taken)
            self._send([window[index] for index in chosen], budget)

    def _chosen(self, window: Sequence[WaitingText], budget: BatchBudget) -> list[int]:
        overdue = [index for index, each in enumerate(window) if each.overtaken >= _OVERTAKEN]
        return choose_batch([each.text.cost for each in window], budget, overdue)

    def _window(self, budget: BatchBudget) -> list[WaitingText]:
        """Take the oldest waiting texts out of the queue, as many as are worth choosing from."""
        window: list[WaitingText] = []
        macs = tokens = 0
        while self._waiting and macs <= _LOOK_AHEAD * budget.macs and tokens <= _LOOK_AHEAD * budget.tokens:
            # Those that a worker died of run alone: if one of them was the reason, only that one fails.
            if window and (window[0].retried or self._waiting[0].retried):
                break
            waiting = self._waiting.popleft()
            if waiting.submission.future.done():
                self._load -= waiting.text.cost.macs
                continue
            window.append(waiting)
            macs += waiting.text.cost.macs
            tokens += waiting.text.cost.tokens
        return window

    def _send(self, batch: list[WaitingText], budget: BatchBudget) -> None:
        assert self._worker is not None
        self._numbers += 1
        self._running[self._numbers] = batch
        now = time.perf_counter()
        for waiting in batch:
            waiting.submission.started = waiting.submission.started or now
        names = batch[0].text.columns
        self._worker.send(Job.of(self._numbers, {name: [each.text.columns[name] for each in batch] for name in names}))
        macs = sum(each.text.cost.macs for each in batch)
        self._running_macs += macs
        self._metrics.batch_texts.observe(len(batch))
        if math.isfinite(budget.macs):
            self._metrics.batch_fill.observe(macs / budget.macs)
        # A batch takes a fraction of a second; a worker that needs so much longer hangs.
        loop = asyncio.get_running_loop()
        self._stalls[self._numbers] = loop.call_later(
            max(self._settings.deadline_ms / 1000, _STALL_SECONDS), self._worker.kill
        )

    def _received(self, message: Message) -> None:
        if isinstance(message, Opened):
            self._ready.set()
            if self._opening is not None:
                self._opening.set_result(message)
            self._dispatch()
        elif isinstance(message, NotOpened):
            if self._opening is not None and not self._opening.done():
                self._opening.set_exception(HasheeError(message.reason))
        else:
            self._finish(message)

    def _finish(self, done: Done) -> None:
        self._failures = 0
        self._stalls.pop(done.number).cancel()
        batch = self._running.pop(done.number)
        macs = sum(each.text.cost.macs for each in batch)
        self._running_macs -= macs
        if self._calibrated:
            self.throughput.add(macs, done.seconds, len(batch))
        for waiting, output in zip(batch, done.outputs, strict=True):
            self._load -= waiting.text.cost.macs
            if isinstance(output, str):
                waiting.submission.fail(ModelFailed(f"text {waiting.place} cannot be computed: {output}"))
            else:
                waiting.submission.settle(waiting.place, output)
        self._metrics.ran([each.text for each in batch], done.seconds, self.throughput.macs_per_second)
        self._metrics.queue_macs.set(self._load)
        self._dispatch()

    def _forget(self, submission: Submission) -> None:
        """Take the texts of a request that nobody waits for out of the queue."""
        left = [each for each in self._waiting if each.submission is submission]
        if left:
            self._waiting = deque(each for each in self._waiting if each.submission is not submission)
            self._load -= sum(each.text.cost.macs for each in left)
            self._metrics.queue_macs.set(self._load)

    def _start_worker(self) -> None:
        if not self._stopping:
            self._worker = WorkerProcess(self.model.settings, self._pooling, Listeners(self._received, self._died))

    def _died(self, code: int | None) -> None:
        """Queue the texts that were running again, those that had been already fail, and start another worker."""
        self._ready.clear()
        self._worker = None
        batches, self._running, self._running_macs = self._running, {}, 0
        for timer in self._stalls.values():
            timer.cancel()
        self._stalls.clear()
        if self._stopping:
            return
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        if self._opening is not None and not self._opening.done():
            reason = f"the process of {self.model.name} was {how} while it opened the model; is there enough memory?"
            self._opening.set_exception(HasheeError(reason))
            return
        again = [each for number in sorted(batches) for each in batches[number]]
        for waiting in reversed(again):
            if waiting.retried:
                self._load -= waiting.text.cost.macs
                waiting.submission.fail(
                    WorkerDied(f"text {waiting.place}: the process of {self.model.name} was {how} twice in a row")
                )
            else:
                waiting.retried = True
                self._waiting.appendleft(waiting)
        self.restarts += 1
        self._metrics.restarts.inc()
        # At once the first time; one that cannot start is tried less and less often.
        pause = 0.0 if self._failures == 0 else min(2.0 ** (self._failures - 1), _LONGEST_PAUSE)
        self._failures += 1
        asyncio.get_running_loop().call_later(pause, self._start_worker)

    def status(self) -> dict[str, Any]:
        """Return what happens now, as JSON values."""
        return {
            "ready": self.ready,
            "queue_macs": self._load,
            "max_queue_macs": int(self.most) if math.isfinite(self.most) else None,
            "macs_per_second": int(self.throughput.macs_per_second),
            "texts_per_second": round(self.throughput.texts_per_second, 1),
            "restarts": self.restarts,
        }
