"""L2 Init against the reference (golden README, reg.npz): the penalty and its gradient."""

import torch

from fire_core.methods.l2init import L2Init
from tests.parity import golden
from tests.parity.test_parseval import RTOL, compare_gradients, network


def test_l2init() -> None:
    net, coef = network(), golden.meta("reg")["l2init_coef"]
    penalty = L2Init(coef).penalty(net)
    penalty.backward()
    torch.testing.assert_close(penalty.detach(), golden.tensors("reg", "l2init.loss")[""], rtol=RTOL, atol=0)
    compare_gradients(net, golden.tensors("reg", "l2init.grad."))
