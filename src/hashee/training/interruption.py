"""Ctrl-C or SIGTERM during training: the step is finished, a checkpoint is written, and only then does it stop."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption(TrainerCallback):
    """Notes the wish to stop and grants it where a resumed run goes on as if nothing had happened."""

    def __init__(self, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.wished: int | None = None
        """The signal that asked for it."""
        self.within_epoch = False
        self.before: dict[int, Any] = {}
        """What was to be done on each signal before."""

    @contextmanager
    def watched(self, alone: bool) -> Iterator[None]:
        """Catch the first signal; if this is one of several processes, which would have to agree, stop at once."""
        if not alone or threading.current_thread() is not threading.main_thread():
            yield
            return
        # What is ignored (nohup) or was not set from Python stays as it is.
        self.before = {
            number: handler
            for number in _SIGNALS
            if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
        }
        for number in self.before:
            signal.signal(number, self._note)
        try:
            yield
        finally:
            self._restore()
        if self.wished is not None:
            # Now that a checkpoint is there, what would have happened at once: KeyboardInterrupt, or the end.
            signal.raise_signal(self.wished)
            raise KeyboardInterrupt  # whoever handles the signal let it pass

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self.wished = number
        # A second one is not waited for.
        self._restore()
        again = "press Ctrl-C again" if number == signal.SIGINT else "send the signal again"
        print(f"\nwriting a checkpoint; {again} to stop without it", file=sys.stderr, flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after this step; at the end of an epoch, dev is looked at and a checkpoint written anyway."""
        if self.wished is None:
            return
        control.should_training_stop = True
        ends_epoch = state.global_step % self.steps_per_epoch == 0 or state.global_step >= state.max_steps
        if not (ends_epoch and args.save_strategy == "epoch"):
            control.should_save = True
            self.within_epoch = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Do not take half an epoch for a whole one."""
        if self.within_epoch:
            control.should_evaluate = False
            control.should_save = False
