"""Losses of S networks at once: each network's mean over its own batch, with the gradient by its outputs."""

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
GROUP, LARGEST = 16, 256  # of the sums in `F.nll_loss` on a CPU: numbers that are added up first, and the largest batch
MANY = 8  # networks from which on these sums take less time than a call for each
LANES = {"AVX512": 16, "AVX2": 8}  # numbers that a CPU's kernels take at once


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`F.cross_entropy` of each network.

    Args:
        logits: (S, b, classes).
        labels: (S, b).

    Returns:
        Losses (S,), and the gradient of their sum by the logits, (S, b, classes).
    """
    S, b = labels.shape
    place = labels[..., None]
    many = S >= MANY and b <= LARGEST and logits.device.type == "cpu"
    lanes = LANES.get(torch.backends.cpu.get_cpu_capability(), 1)
    if many and logits.shape[2] < lanes and b % lanes == 0:
        return few_classes(logits, place)
    logs = torch.log_softmax(logits, -1)
    if many:
        losses = mean_as_alone(logs.gather(2, place)[..., 0].neg_())
    else:
        losses = torch.stack([F.nll_loss(part, target) for part, target in zip(logs, labels, strict=True)])
    by_logs = torch.zeros_like(logs).scatter_(2, place, -1 / b)
    gradient: Tensor = aten._log_softmax_backward_data(by_logs, logs, -1, logs.dtype)
    return losses, gradient


def few_classes(logits: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """`cross_entropy` with the classes as the second dimension, where kernels go through many examples at once.

    Over so few classes either kernel adds up in their order, and where the examples fill whole vectors it rounds alike,
    so that the numbers are the same.

    Args:
        logits: (S, b, classes).
        place: labels, (S, b, 1).
    """
    place, b = place.mT, place.shape[1]  # (S, 1, b)
    logs = torch.log_softmax(logits.mT.contiguous(), 1)  # (S, classes, b)
    losses = mean_as_alone(logs.gather(1, place)[:, 0].neg_())
    by_logs = torch.zeros_like(logs).scatter_(1, place, -1 / b)
    gradient: Tensor = aten._log_softmax_backward_data(by_logs, logs, 1, logs.dtype)
    return losses, gradient.mT.contiguous()


def mean_as_alone(values: Tensor) -> Tensor:
    """Means over the last dimension, (S, b) -> (S,), b at most 256, added up in the order of `F.nll_loss` on a CPU.

    A sum in another order would differ from a single run's in the last digit, and one call for each network takes as
    long as the network's products. The order: groups of 16 after the first number; what is left, the groups, the first.
    """
    S, b = values.shape
    full, left = divmod(b - 1, GROUP)
    zeros = values.new_zeros(S, (-left) % GROUP)
    columns = torch.cat([values[:, 1:], zeros], 1).view(S, -1, GROUP).unbind(2)
    sums = columns[0].clone()  # of each group, (S, groups)
    for column in columns[1:]:
        sums += column
    total = sums[:, full] if left else values.new_zeros(S)
    whole = values.new_zeros(S)
    for group in range(full):
        whole = whole + sums[:, group]
    return (total + whole + values[:, 0]) / b


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
