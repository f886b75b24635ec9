"""Layers of one's own that multiply with the stored weight the other way round: x W, where torch's layer has x W^T."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core import fire_, matrices, muon_groups


class Backwards(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class BackwardsByLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.t())


class BackwardsByEinsum(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * torch.einsum("bo,oi->bi", x, self.weight)


class BackwardsFromTheLeft(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return (self.weight.T @ x.T).T


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * F.linear(x, self.weight, self.bias)


class Deconvolution(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(x, self.weight)


class Padded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1)), self.weight)


@pytest.mark.parametrize("layer", [Backwards, BackwardsByLinear, BackwardsByEinsum, BackwardsFromTheLeft])
@pytest.mark.parametrize("with_example", [False, True])
def test_a_linear_layer_that_multiplies_by_its_stored_weight(layer: type[nn.Linear], with_example: bool) -> None:
    """Its outputs are the columns, so that the isometry is scaled by sqrt(6 / 12), not by sqrt(12 / 6)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), layer(6, 12, bias=False), nn.Linear(6, 3))
    example = torch.randn(4, 5) if with_example else None
    (entry,) = [entry for entry in matrices(model, example=example) if entry.name == "2.weight"]
    assert (entry.transposed, entry.d_out) == (True, 6)
    assert [group["cuts"][0][3] for group in muon_groups(model).muon] == [True]
    fire_(model, solver="exact", example=example)
    weight = model.get_parameter("2.weight").detach()
    torch.testing.assert_close(torch.linalg.svdvals(weight), torch.full((6,), 0.5**0.5))


def test_a_layer_that_scales_or_pads_is_read_as_torch_s() -> None:
    model = nn.Sequential(nn.Linear(5, 12), Scaled(12, 6), nn.Linear(6, 3))
    assert not any(entry.transposed for entry in matrices(model))
    padded = nn.Sequential(nn.Conv2d(3, 8, 3), Padded(8, 4, 3, bias=False))
    assert {entry.action for entry in matrices(padded) if entry.name.endswith("weight")} == {"project"}


def test_a_convolution_that_runs_backwards_is_kept_and_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Deconvolution(4, 8, 3, bias=False), nn.Conv2d(4, 3, 3))
    (entry,) = [entry for entry in matrices(model) if entry.name == "1.weight"]
    assert entry.action == "keep"
    assert entry.reason == "Deconvolution.forward uses the weight as a transposed convolution does"
