"""What MFU is made of."""

import pytest
import torch

from language.model import GPT
from language.speed import NextTokenLoss, flops_per_token


def test_flops_of_the_paper_s_model():
    with torch.device("meta"):
        model = GPT()
    assert flops_per_token(model) == 6 * (124_373_760 - 1024 * 768) + 12 * 12 * 768 * 1024


def test_flops_count_the_products():
    """Against a count of the multiplications that torch does in a forward and backward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    model = GPT(64, 32, 2, 2, 32)
    idx = torch.randint(64, (2, 32))
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(idx, idx)[1].backward()
    # The counter leaves out norms and biases; attention is counted whole in both.
    assert flops_per_token(model) * idx.numel() == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_loss_alone():
    model, idx = GPT(16, 8, 1, 2, 16), torch.randint(16, (2, 8))
    assert torch.equal(NextTokenLoss(model)(idx, idx), model(idx, idx)[1])
