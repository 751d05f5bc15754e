"""How far a training is: a bar with loss, dev score and time left, or a line for each look at dev where none can be."""

import sys
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import TrainerCallback


class Progress(TrainerCallback):
    """Shows the steps of a training on standard error."""

    def __init__(self, title: str, shown: bool) -> None:
        self.title = title
        self.shown = shown
        self.bar: Any = None
        self.numbers: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the bar, at the place where a resumed run goes on."""
        if self.shown:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                desc=self.title,
                unit="step",
                dynamic_ncols=True,
                disable=None,  # only where somebody looks
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Move on by a step."""
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Show the loss since the last time."""
        if self.bar is not None and logs is not None and "loss" in logs:
            self.numbers["loss"] = f"{logs['loss']:.3f}"
            self.bar.set_postfix(self.numbers)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Show the score on dev."""
        if self.bar is None or metrics is None:
            return
        self.numbers["dev"] = f"{metrics['eval_score']:.4f}"
        self.bar.set_postfix(self.numbers)
        if self.bar.disable:
            loss = f", loss {self.numbers['loss']}" if "loss" in self.numbers else ""
            share = state.global_step / max(state.max_steps, 1)
            left = metrics["eval_elapsed_seconds"] * (1 - share) / max(share, 1e-9)
            print(
                f"{self.title}: step {state.global_step} of {state.max_steps}{loss}, dev {self.numbers['dev']}, "
                f"{tqdm.format_interval(left)} left",
                file=sys.stderr,
                flush=True,
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
