"""What modules around a converted model share."""

from typing import Any

import torch
from torch import nn


class ModelAround(nn.Module):
    """A module around a converted model, with its config, its device and the table that its batches are made by."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    @property
    def config(self) -> Any:
        """The model's config."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def exit_table(self) -> Any:
        """The table by which tokens exit, or by which none does."""
        return self.model.exit_table
