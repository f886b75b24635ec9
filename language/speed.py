"""How fast training goes."""

import time

import torch
from torch import nn

from language.model import GPT


class NextTokenLoss(nn.Module):
    """The model's loss alone: a compiled graph then need not keep the logits."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of (B, T) tokens against the next ones."""
        loss: torch.Tensor = self.model(idx, targets)[1]
        return loss


class Pace:
    """Tokens a second since the last row, evaluations and checkpoints left out.

    Args:
        tokens_per_step: over all processes.
    """

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self.steps, self.began = 0, time.perf_counter()

    def read(self) -> float:
        """Tokens a second over all processes."""
        return round(self.steps * self.tokens_per_step / (time.perf_counter() - self.began), 1)
