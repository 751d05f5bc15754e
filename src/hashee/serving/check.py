"""`hashee serve --check`: what a machine can take, measured."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hashee.errors import InputError
from hashee.serving.metrics import Metrics
from hashee.serving.service import ModelService, Services
from hashee.serving.settings import ModelSettings, ServeSettings


@dataclass(frozen=True)
class LengthShare:
    """Part of the texts that have a length."""

    tokens: int
    share: float


def read_mix(text: str) -> list[LengthShare]:
    """Return a mix of lengths such as `16:4,64:2,256:1`: four parts of 16 tokens, two of 64, one of 256."""
    found = []
    for part in text.split(","):
        length, _, share = part.partition(":")
        try:
            found.append(LengthShare(int(length), float(share or 1)))
        except ValueError:
            raise InputError(f"{part!r} is no length with its share; write them as 16:4,64:2,256:1") from None
        if found[-1].tokens < 1 or not 0 < found[-1].share < float("inf"):
            raise InputError(f"{part!r}: lengths are 1 or more, and shares above 0")
    total = sum(each.share for each in found)
    return [LengthShare(each.tokens, each.share / total) for each in found]


def check_models(models: Sequence[ModelSettings], settings: ServeSettings, mix: Sequence[LengthShare]) -> str:
    """Open models one after the other and return in lines what each can take."""
    return "\n".join(asyncio.run(_check(Services([model], settings, Metrics()), mix)) for model in models)


async def _check(services: Services, mix: Sequence[LengthShare]) -> str:
    await services.start()
    try:
        (service,) = services.by_name.values()
        return await report(service, mix)
    finally:
        services.stop()


async def report(service: ModelService, mix: Sequence[LengthShare]) -> str:
    """Measure a model that is open on a mix of lengths, and say in lines what it can take."""
    model = service.model
    lines = [f"{model.name}: {model.settings.backend}, {model.settings.threads} threads"]
    lines.append(f"{'tokens':>8} {'share':>7} {'MMACs a text':>14} {'GMACs/s':>9} {'texts/s':>9}")
    seconds = macs = 0.0
    for each in mix:
        tokens = min(each.tokens, model.max_length)
        measured = await service.scheduler.measure([tokens])
        per_text = measured.macs / measured.texts
        seconds += each.share / measured.texts_per_second
        macs += each.share * per_text
        lines.append(
            f"{tokens:>8} {each.share:>7.0%} {per_text / 1e6:>14,.2f} {measured.macs_per_second / 1e9:>9,.2f} "
            f"{measured.texts_per_second:>9,.1f}"
        )
    exits = float(np.mean(model.table.exit_layers.numpy()))
    lines.append(
        f"the mix: {macs / 1e6:,.2f} MMACs a text, {macs / seconds / 1e9:,.2f} GMACs/s, {1 / seconds:,.1f} texts/s"
    )
    lines.append(
        f"tokens were drawn evenly from the vocabulary (mean exit layer {exits:.1f} of {model.table.num_layers}); real "
        "texts are cheaper where frequent tokens exit early"
    )
    return "\n".join(lines)
