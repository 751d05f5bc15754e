"""The processes of a fit: those that torchrun or accelerate launch started, or one without a launcher."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast_object_list, gather_object  # type: ignore[import-untyped]

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """Which process this is, and of how many."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.rank == 0

    def wait(self) -> None:
        """Go on when all processes have come this far."""
        if self.count > 1:
            PartialState().wait_for_everyone()

    def main_only(self, work: Callable[[], T]) -> T:
        """Do something in the main process, and hand the result, or the error, to all."""
        if self.count == 1:
            return work()
        outcome: list[Any] = [None, None]
        if self.is_main:
            try:
                outcome[0] = work()
            except Exception as error:
                # Raised in all processes below; the others would wait for ever.
                outcome[1] = error
        broadcast_object_list(outcome)
        if outcome[1] is not None:
            raise outcome[1]
        result: T = outcome[0]
        return result

    def gathered(self, items: list[T]) -> list[T]:
        """Return the items of all processes, in the order of the processes."""
        if self.count == 1:
            return items
        together: list[T] = gather_object(items)
        return together


def current_processes() -> Processes:
    """Join the other processes if a launcher started several."""
    state = PartialState(cpu=not torch.accelerator.is_available())
    return Processes(rank=state.process_index, count=state.num_processes, device=state.device)
