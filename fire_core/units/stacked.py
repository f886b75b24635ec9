"""A linear layer of the networks of many runs."""

import torch
from torch import Tensor, nn


class StackedLinear(nn.Linear):
    """One linear layer of S networks: (S, b, inputs) -> (S, b, outputs).

    Args:
        layer: of one of them.
        weight: of all, (S, outputs, inputs).
        bias: of all, (S, outputs), or None.
    """

    def __init__(self, layer: nn.Linear, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight = weight
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        row = self._parameters["bias"]
        return torch.bmm(x, self.weight.mT) if row is None else torch.baddbmm(row[:, None], x, self.weight.mT)
