"""Norms of many tensors at once, for penalties that take them at each step."""

from collections.abc import Iterable

import torch
from torch import Tensor


def norms(tensors: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of each of n tensors, (n,)."""
    # One kernel launch for all tensors on a GPU. The public get_total_norm uses it too, but gives their common norm.
    return torch.stack(torch._foreach_norm(tuple(tensors)))
