"""Activation functions that keep networks plastic: they make two features of each unit, concatenated in dimension 1."""

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
    """Deep Fourier features: sin(x) and cos(x), of which at least one has a gradient at every x.

    Lewandowski, Schuurmans and Machado, "Plastic Learning with Deep Fourier Features", ICLR 2025, arXiv 2410.20634.

    Shape: (N, units, ...) -> (N, 2 units, ...).
    """

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.sin(), x.cos()], 1)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "crelu": CReLU, "fourier": Fourier}
Activation = Annotated[str, one_of(*ACTIVATIONS)]


def activation_of(name: str) -> tuple[Callable[[], nn.Module], int]:
    """Return the constructor of the activation of this name, and how many features it makes of a unit."""
    return ACTIVATIONS[name], 1 if name == "relu" else 2


def units_of(name: str, features: int) -> int:
    """Return how many units a layer gets that has `features` features with `relu`.

    With `fourier` it gets half as many units and so the same number of features, as its authors do. With `crelu` it
    gets as many units as with `relu` and so twice as many features.

    Args:
        name: name of the activation.
        features: number of features with `relu`.

    Raises:
        ValueError: `fourier` is to halve an odd number.
    """
    if name != "fourier":
        return features
    if features % 2:
        raise ValueError(f"activation=fourier makes two features of a unit: {features} features are not even")
    return features // 2
