"""Weights that are stored transposed, as in ports of GPT-2."""

import torch
from torch import Tensor, nn

from fire_core import fire_
from tests.weights.test_layout import by_label


class Conv1D(nn.Module):
    """The linear layer of transformers' GPT-2: weight (d_in, d_out)."""

    def __init__(self, d_out: int, d_in: int) -> None:
        super().__init__()
        self.nf = d_out
        self.weight = nn.Parameter(torch.randn(d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(d_out))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


class PortedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = Conv1D(24, 8), Conv1D(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(x).split(8, dim=2)
        return self.c_proj(torch.softmax(q @ k.mT, dim=-1) @ v)


def test_transposed_linear_of_gpt2_ports():
    attention = PortedAttention()
    model = nn.ModuleDict({"attn": attention})
    entries = by_label(model)
    assert entries["attn.c_attn.weight[k]"].shape == (8, 8)
    before = attention.c_attn.weight.detach().clone()
    fire_(model, layout="qk", solver="exact")
    q, _, v = attention.c_attn.weight.detach().split(8, dim=1)
    torch.testing.assert_close(q @ q.mT, torch.eye(8), atol=1e-5, rtol=0)
    assert torch.equal(v, before[:, 16:])
