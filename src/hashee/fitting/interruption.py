"""Ctrl-C during training: the step is finished, a checkpoint is written, and only then does the program stop."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import TrainerCallback


class Interruption(TrainerCallback):
    """Notes the wish to stop and grants it where a resumed run goes on as if nothing had happened."""

    def __init__(self, steps_per_epoch: int) -> None:
        self.steps_per_epoch = steps_per_epoch
        self.wished = False
        self.within_epoch = False

    @contextmanager
    def watched(self, alone: bool) -> Iterator[None]:
        """Catch the first Ctrl-C; if this is one of several processes, which would have to agree, stop at once."""
        if not alone or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if self.wished:
            raise KeyboardInterrupt

    def _note(self, number: int, frame: Any) -> None:
        self.wished = True
        # A second one is not waited for.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("\nwriting a checkpoint; press Ctrl-C again to stop without it", file=sys.stderr, flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop after this step; at the end of an epoch, dev is looked at and a checkpoint written anyway."""
        if not self.wished:
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
