"""Small networks of the kinds that a layout has to understand."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class UnevenFused(nn.Module):
    """A layer whose name says q, k and v, and whose 40 rows do not divide by three: how they divide is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 16)
        self.qkv = nn.Linear(16, 40)
        self.head = nn.Linear(40, 2)


class GPTAttention(nn.Module):
    """Causal self-attention with one fused projection for query, key and value, as in nanoGPT."""

    def __init__(self, dim: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.n_head = heads
        self.c_attn = nn.Linear(dim, 3 * dim, bias=bias)
        self.c_proj = nn.Linear(dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=2))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class GPTMLP(nn.Module):
    def __init__(self, dim: int, bias: bool) -> None:
        super().__init__()
        self.c_fc = nn.Linear(dim, 4 * dim, bias=bias)
        self.c_proj = nn.Linear(4 * dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x)))


class GPTBlock(nn.Module):
    def __init__(self, dim: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(dim, bias=bias)
        self.attn = GPTAttention(dim, heads, bias)
        self.ln_2 = nn.LayerNorm(dim, bias=bias)
        self.mlp = GPTMLP(dim, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """A GPT-2 with the names of nanoGPT and the head tied to the token embedding."""

    def __init__(
        self, vocab_size: int = 40, block_size: int = 16, n_layer: int = 2, n_head: int = 2, n_embd: int = 12, bias=True
    ) -> None:
        super().__init__()
        blocks = [GPTBlock(n_embd, n_head, bias) for _ in range(n_layer)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.transformer["wte"](tokens) + self.transformer["wpe"](torch.arange(tokens.shape[1]))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))  # (N, T, vocab)


class GroupedQueryAttention(nn.Module):
    """Four query heads and two key-value heads of width 3 in one fused projection: rows 12 + 6 + 6."""

    def __init__(self, dim: int = 10) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = 4, 2
        self.qkv_proj = nn.Linear(dim, (4 + 2 * 2) * 3, bias=False)
        self.o_proj = nn.Linear(12, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(2, (-1, 3)).transpose(1, 2) for part in self.qkv_proj(x).split((12, 6, 6), dim=2))
        out = F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
        return self.o_proj(out.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """Gate and up as two layers, or fused in one."""

    def __init__(self, dim: int = 6, hidden: int = 10, fused: bool = False) -> None:
        super().__init__()
        if fused:
            self.gate_up_proj = nn.Linear(dim, 2 * hidden, bias=False)
        else:
            self.c_gate = nn.Linear(dim, hidden, bias=False)
            self.c_fc = nn.Linear(dim, hidden, bias=False)
        self.c_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (
            self.gate_up_proj(x).chunk(2, dim=-1) if hasattr(self, "gate_up_proj") else (self.c_gate(x), self.c_fc(x))
        )
        return self.c_proj(F.silu(gate) * up)


class Mamba(nn.Module):
    """The parameters of a state-space mixer; it sits where a block's attention would and is called `attn` there."""

    def __init__(self, dim: int = 8, inner: int = 16, heads: int = 4, state: int = 5) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, 2 * inner + 2 * state + heads, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner)
        self.A_log = nn.Parameter(torch.rand(heads))
        self.D = nn.Parameter(torch.ones(heads))
        self.dt_bias = nn.Parameter(torch.rand(heads))
        self.B_bias = nn.Parameter(torch.randn(2, state))
        self.C_bias = nn.Parameter(torch.randn(2, state))
        self.out_proj = nn.Linear(inner, dim, bias=False)


class SeparateAttention(nn.Module):
    """Query, key and value as layers of their own, fewer key and value heads."""

    def __init__(self, dim: int = 8, kv: int = 4) -> None:
        super().__init__()
        self.c_q = nn.Linear(dim, dim, bias=False)
        self.c_k = nn.Linear(dim, kv, bias=False)
        self.c_v = nn.Linear(dim, kv, bias=False)
        self.c_proj = nn.Linear(dim, dim, bias=False)
