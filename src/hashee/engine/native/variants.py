"""The instruction sets that kernels are compiled for, and which of them this processor has."""

import os
import platform
from dataclasses import dataclass

from hashee.cost.machine import has_instructions
from hashee.errors import UnsupportedOption

SWITCH = "HASHEE_KERNELS"
"""Environment variable that names the one variant to use, or `torch` for none."""
TORCH = "torch"


@dataclass(frozen=True)
class Variant:
    """The kernels for one instruction set: the same functions from the same source."""

    name: str
    machine: str
    """As `platform.machine()` calls the architecture."""
    needs: tuple[str, ...]
    """What the processor must have, as /proc/cpuinfo calls it."""
    flags: tuple[str, ...]
    """Of the compiler."""

    def missing(self) -> str | None:
        """Say what the kernels need that this machine lacks; None: nothing."""
        if platform.system() != "Linux":
            return f"kernels are for Linux, not for {platform.system()}"
        if platform.machine() != self.machine:
            return f"it is for {self.machine}, and this is {platform.machine()}"
        lacking = [name for name in self.needs if not has_instructions(name)]
        return f"this processor lacks {', '.join(lacking)}" if lacking else None


_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma")
_AVX512_NEEDS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx2", "fma")
VARIANTS = (
    Variant("avx512_vnni", "x86_64", (*_AVX512_NEEDS, "avx512_vnni"), (*_AVX512, "-mavx512vnni")),
    Variant("avx512", "x86_64", _AVX512_NEEDS, _AVX512),
    Variant("avx2", "x86_64", ("avx2", "fma"), ("-mavx2", "-mfma")),
    Variant("neon", "aarch64", ("asimd", "asimddp"), ("-march=armv8.2-a+dotprod",)),
)
"""The fastest first."""


@dataclass(frozen=True)
class Choice:
    """The variants to try, one after the other, and why these."""

    variants: tuple[Variant, ...]
    reason: str


def choose() -> Choice:
    """Return the variants that this processor can run, or the one that the environment asks for."""
    forced = os.environ.get(SWITCH, "")
    if forced == TORCH or os.environ.get("HASHEE_NATIVE") == "0":
        return Choice((), f"switched off by {SWITCH}={TORCH}" if forced == TORCH else "switched off by HASHEE_NATIVE=0")
    if forced:
        named = {variant.name: variant for variant in VARIANTS}
        if forced not in named:
            raise UnsupportedOption(f"{SWITCH}={forced} is unknown; choose {', '.join(named)} or {TORCH}")
        if (lacking := named[forced].missing()) is not None:
            able = [name for name, variant in named.items() if variant.missing() is None]
            raise UnsupportedOption(f"{SWITCH}={forced}: {lacking}; choose {', '.join([*able, TORCH])}, or unset it")
        return Choice((named[forced],), f"asked for by {SWITCH}")
    able_variants = tuple(variant for variant in VARIANTS if variant.missing() is None)
    if able_variants:
        return Choice(able_variants, "the fastest that this processor has")
    return Choice((), f"no kernels are written for this machine ({platform.system()}, {platform.machine()})")
