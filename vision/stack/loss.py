"""Losses of S networks at once: each network's mean over its own batch, with the gradient by its outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`F.cross_entropy` of each network.

    Args:
        logits: (S, b, classes).
        labels: (S, b).

    Returns:
        Losses (S,), and the gradient of their sum by the logits, (S, b, classes).
    """
    b = labels.shape[1]
    logs = torch.log_softmax(logits, -1)
    # One by one, as sums in another order would differ from a single run's in the last digit.
    losses = torch.stack([F.nll_loss(part, target) for part, target in zip(logs, labels, strict=True)])
    by_logs = torch.zeros_like(logs).scatter_(2, labels[..., None], -1 / b)
    gradient: Tensor = aten._log_softmax_backward_data(by_logs, logs, -1, logs.dtype)
    return losses, gradient


def squared_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`F.mse_loss` of each network.

    Args:
        outputs: (S, b, 1).
        targets: (S, b).

    Returns:
        Losses (S,), and the gradient of their sum by the outputs, (S, b, 1).
    """
    apart = outputs.squeeze(2) - targets
    gradient = apart * (2 / apart.shape[1])
    return apart.square().mean(1), gradient[..., None]
