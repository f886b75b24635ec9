"""L2 Init against the authors' code (tests/golden/reg.npz): the penalty, its terms and its gradient."""

import torch
from torch import Tensor

from fire_core.methods.l2init import L2Init
from tests.parity import golden
from tests.parity.test_parseval import RTOL, compare_gradients, network


def stored(key: str) -> Tensor:
    return golden.tensors("reg", f"l2init.{key}")[""]


def test_l2init() -> None:
    net, coef = network(), golden.meta("reg")["l2init_coef"]
    penalty = L2Init(coef).penalty(net)
    penalty.backward()
    torch.testing.assert_close(penalty.detach(), stored("loss"), rtol=RTOL, atol=0)
    torch.testing.assert_close(penalty.detach(), coef / 2 * stored("sum"), rtol=RTOL, atol=0)
    compare_gradients(net, golden.tensors("reg", "l2init.grad."))
