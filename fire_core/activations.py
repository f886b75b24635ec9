"""Activations that keep networks plastic by their form: two features for each unit, side by side in dimension 1."""

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor, nn

from fire_core.ranges import one_of


class CReLU(nn.Module):
    """Concatenated ReLU: relu(x) and relu(-x), so that no unit is silent for every input.

    Shang et al., "Understanding and improving convolutional neural networks via concatenated rectified linear units",
    ICML 2016; against the loss of plasticity: Abbas, Zhao, Modayil, White and Machado, "Loss of Plasticity in Continual
    Deep Reinforcement Learning", CoLLAs 2023, arXiv 2303.07507.

    Shape: (N, units, ...) -> (N, 2 units, ...).
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.relu(), (-x).relu()], 1)


class Fourier(nn.Module):
    """Deep Fourier features: sin(x) and cos(x), of which one has a slope wherever the other has none.

    Lewandowski, Schuurmans and Machado, "Plastic Learning with Deep Fourier Features", ICLR 2025, arXiv 2410.20634.

    Shape: (N, units, ...) -> (N, 2 units, ...).
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.sin(), x.cos()], 1)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "crelu": CReLU, "fourier": Fourier}
Activation = Annotated[str, one_of(*ACTIVATIONS)]


def activation_of(name: str) -> tuple[Callable[[], nn.Module], int]:
    """What makes the activation of this name, and how many features it makes of a unit."""
    return ACTIVATIONS[name], 1 if name == "relu" else 2


def units_of(name: str, features: int) -> int:
    """How many units a layer of this many features has: half of them with `fourier`, as its authors have it.

    With `crelu` as many as with `relu`, so that the layer has twice as many features.

    Raises:
        ValueError: half of an odd number is asked for.
    """
    if name != "fourier":
        return features
    if features % 2:
        raise ValueError(f"activation=fourier makes two features of a unit: {features} features are not even")
    return features // 2
