"""A served model with its queue: limits, tokenization beside the worker, and outputs of requests."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, TypeVar

from hashee.data.texts import Text
from hashee.errors import HasheeError, shortened
from hashee.serving.failures import Overloaded, RequestError, TooLarge, UnknownModel, WrongHead
from hashee.serving.metrics import Metrics, ModelMetrics
from hashee.serving.scheduler import Answers, Scheduler
from hashee.serving.served import Head, ServedModel, TokenizedText, open_served, pooling_of
from hashee.serving.settings import ModelSettings, ServeSettings

Result = TypeVar("Result")

_BODIES_AHEAD = 8
"""Largest bodies' worth of characters that may wait to be tokenized."""
_SURELY = 0.5
"""Part of the cost that is expected from the characters of a request, by which it is refused before it is tokenized."""
_NEW = 0.02
"""Weight of the last request in what a character costs."""
_AT_ONCE = 50_000
"""Characters that are tokenized in one go; between two, those of other requests have their turn."""
_MOST_SHOWN = 100_000
"""Characters of a request whose tokens are shown: each becomes some seventy bytes."""


class ModelService:
    """Answers requests for one model."""

    def __init__(self, model: ServedModel, settings: ServeSettings, metrics: Metrics) -> None:
        self.pooling = pooling_of(model.settings) if model.head is Head.EMBEDDING else "mean"
        self.scheduler = Scheduler(model, self.pooling, settings, ModelMetrics(metrics, model.name))
        self._settings = settings
        # One thread: tokenizers are not made for several at once, and it runs beside the worker's process.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix=f"tokenize-{model.name}")
        self._characters = 0
        self._macs_per_character = 0.0

    @property
    def model(self) -> ServedModel:
        """What is known of the model."""
        return self.scheduler.model

    async def run(self, texts: Sequence[Text], truncate: bool | None) -> Answers:
        """Return the outputs of texts or pairs."""
        self.check_number(texts)
        sizes = [_characters(text) for text in texts]
        # A full queue refuses before anything is tokenized: by what texts of so many characters cost at least.
        self.scheduler.check_room(int(_SURELY * self._macs_per_character * sum(sizes)))
        tokenized: list[TokenizedText] = []
        for start, end in _slices(sizes):
            some = texts[start:end]
            tokenized += await self.tokenizing(some, methodcaller("tokenize", some, bool(truncate), start))
        self._learn(sum(sizes), sum(text.cost.macs for text in tokenized))
        return await self.scheduler.run(tokenized)

    def _learn(self, characters: int, macs: int) -> None:
        """Take a request into account in what a character costs."""
        if characters:
            self._macs_per_character += _NEW * (macs / characters - self._macs_per_character)

    async def showing(self, texts: Sequence[Text], work: Callable[[ServedModel], Result]) -> Result:
        """Return what `work` returns, as `tokenizing` does, unless the texts have too many tokens to be shown."""
        characters = sum(map(_characters, texts))
        if characters > _MOST_SHOWN:
            raise TooLarge(f"{characters:,} characters are too many to show their tokens; send at most {_MOST_SHOWN:,}")
        return await self.tokenizing(texts, work)

    async def tokenizing(self, texts: Sequence[Text], work: Callable[[ServedModel], Result]) -> Result:
        """Return what `work` returns, called with the model in the thread that tokenizes."""
        characters = sum(map(_characters, texts))
        if self._characters and self._characters + characters > _BODIES_AHEAD * self._settings.max_body:
            raise Overloaded(f"{self._characters:,} characters wait to be tokenized already; try again in 1 s", 1)
        self._characters += characters
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work, self.model)
        finally:
            self._characters -= characters

    def check_number(self, texts: Sequence[Any]) -> None:
        """Refuse requests without texts or with too many."""
        if not texts:
            raise RequestError("there is no text; send at least one")
        if len(texts) > self._settings.max_batch:
            raise TooLarge(f"{len(texts)} texts are too many for a request; send at most {self._settings.max_batch}")

    def stop(self) -> None:
        """End the model's process."""
        self.scheduler.stop()
        self._tokenizing.shutdown(wait=False, cancel_futures=True)


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])


def _slices(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where slices begin and end that hold `_AT_ONCE` characters, or a single text."""
    start = characters = 0
    for number, size in enumerate(sizes):
        if number > start and characters + size > _AT_ONCE:
            yield start, number
            start, characters = number, 0
        characters += size
    yield start, len(sizes)


class Services:
    """All models of a server by their names."""

    def __init__(self, models: Sequence[ModelSettings], settings: ServeSettings, metrics: Metrics) -> None:
        self.settings = settings
        self.metrics = metrics
        self.by_name: Mapping[str, ModelService] = {
            each.name: ModelService(open_served(each), settings, metrics) for each in models
        }

    async def start(self) -> None:
        """Open all models side by side, then measure how fast each is, one after the other."""
        try:
            await asyncio.gather(*(service.scheduler.open() for service in self.by_name.values()))
            for service in self.by_name.values():
                await service.scheduler.calibrate()
        except HasheeError:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes."""
        for service in self.by_name.values():
            service.stop()

    @property
    def ready(self) -> bool:
        """Whether every model can be run now."""
        return all(service.scheduler.ready for service in self.by_name.values())

    def named(self, name: str | None, heads: Sequence[Head] = (), what: str = "answer this") -> ModelService:
        """Return the model that a request names or, if it names none, the first with the first head that there is.

        heads: those that can answer; none for any. what: the ability that is asked for, in messages.
        """
        if name is not None and name not in self.by_name:
            raise UnknownModel(f"there is no model {shortened(name)!r} here; choose from {', '.join(self.by_name)}")
        candidates = [*self.by_name.values()] if name is None else [self.by_name[name]]
        if not heads:
            return candidates[0]
        for head in heads:
            for service in candidates:
                if service.model.head is head:
                    return service
        tried = candidates[0].model
        raise WrongHead(
            f"{tried.name} is {_WITH_ARTICLE[tried.head]} model, which does not {what}; see /info for what it answers"
        )


_WITH_ARTICLE = {Head.EMBEDDING: "an embedding", Head.CLASSIFIER: "a classifier", Head.RERANKER: "a reranker"}
