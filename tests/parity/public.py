"""What the public code of methods gave, as `scripts/record_originals.py` recorded it."""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@functools.cache
def load(name: str) -> dict[str, Any]:
    """Every array of one record, by name; single numbers as numbers."""
    with np.load(Path(__file__).parent / "originals" / f"{name}.npz") as arrays:
        return {key: value.item() if value.ndim == 0 else value for key, value in arrays.items()}


def tensors(name: str, prefix: str, step: int | None = None) -> dict[str, Tensor]:
    """The arrays whose names begin so, without the prefix; of those recorded by step, one step."""
    found = {key.removeprefix(prefix): value for key, value in load(name).items() if key.startswith(prefix)}
    return {key: torch.from_numpy(np.array(value if step is None else value[step])) for key, value in found.items()}


class Perceptron(nn.Sequential):
    """The network of most records: linear layers with ReLU between."""

    def __init__(self, *sizes: int) -> None:
        layers: list[nn.Module] = []
        for one, two in itertools.pairwise(sizes):
            layers += [nn.Linear(one, two), nn.ReLU()]
        super().__init__(*layers[:-1])
