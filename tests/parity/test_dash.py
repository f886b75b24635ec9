"""DASH against the authors' code (tests/golden/dash.npz)."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods import Context, Net
from fire_core.methods.dash import Dash
from tests.parity import golden
from tests.parity.trees import module_from

ATOL = 3e-6
META = golden.meta("dash")
CASES = [(mode, alpha, minimum) for mode in ("train", "eval") for alpha, minimum in META["settings"]]


class Small(nn.Module):
    """The network of `meta["forward"]`."""

    def __init__(self, arrays: dict[str, Tensor]) -> None:
        super().__init__()
        self.tree = module_from(arrays)
        self.tree.conv.padding = (1, 1)

    def forward(self, x: Tensor) -> Tensor:
        tree = self.tree
        statistics = (tree.bn.running_mean, tree.bn.running_var, tree.bn.weight, tree.bn.bias)
        x = F.relu(F.batch_norm(tree.conv(x), *statistics, self.training, tree.bn.momentum, tree.bn.eps))
        x = F.max_pool2d(F.relu(tree.conv1x1(x)), 2)
        return tree.fc2(F.relu(tree.fc1(x.flatten(1))))


def batches() -> list[tuple[Tensor, Tensor]]:
    inputs = golden.tensors("dash", "x")
    targets = golden.tensors("dash", "y")
    return [(inputs[str(i)], targets[str(i)]) for i in range(META["batches"])]


def network() -> Small:
    return Small(golden.tensors("dash", "before."))


@pytest.mark.parametrize(("mode", "alpha", "minimum"), CASES)
def test_every_tensor(mode: str, alpha: float, minimum: float) -> None:
    model = network().train()
    context = Context(1, 0, torch.Generator(), lambda: iter(batches()), lambda x, y: F.cross_entropy(model(x), y))
    Dash(alpha, minimum, mode, "fire_paper").at_boundary(Net.of({"model": model}), context)
    assert model.training
    after = golden.tensors("dash", f"after_{mode}_a{alpha}_l{minimum}.")
    assert len(after) > 10
    for name, value in after.items():
        if mode == "eval" or name != "conv.bias":  # in train mode the cosine of rounding noise (docs/paper.md, A14)
            torch.testing.assert_close(model.tree.state_dict()[name], value, rtol=0, atol=ATOL)
