"""GPT-2's architecture with nanoGPT's parameter names, and common variants of its parts."""

import math
from collections.abc import Callable
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.ranges import Count, Decay, Depth, Width, checked, one_of
from fire_core.units.graph import Consumer, Producer, Units

IGNORED = -1  # a target that is left out of the loss


def relu_squared(x: Tensor) -> Tensor:
    """Return max(x, 0)^2 (So et al., arXiv 2109.08668)."""
    return F.relu(x).square()


def swiglu_hidden(n_embd: int) -> int:
    """Return 8/3 of the width, rounded up to a multiple of 256.

    SwiGLU's three matrices of this hidden width have as many weights as two matrices of hidden width 4 n_embd.
    """
    return 256 * math.ceil(8 * n_embd / 3 / 256)


class Attention(nn.Module):
    """Causal self-attention, with fewer key and value heads if asked (Ainslie et al., arXiv 2305.13245).

    `c_attn` is one matrix with the rows of the queries, then the keys, then the values.
    """

    def __init__(self, n_embd: int, n_head: int, n_kv_head: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.head_dim = n_head, n_kv_head, n_embd // n_head
        self.c_attn = nn.Linear(n_embd, (n_head + 2 * n_kv_head) * self.head_dim, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        heads = self.c_attn(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)  # (B, heads, T, head_dim)
        q, k, v = heads.split([self.n_head, self.n_kv_head, self.n_kv_head], dim=1)
        mixed = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=self.n_kv_head != self.n_head,
        )
        mixed = self.c_proj(mixed.transpose(1, 2).flatten(2))  # (B, T, n_embd)
        return F.dropout(mixed, self.dropout, self.training)

    def matrix_blocks(self) -> dict[str, dict[str, int]]:
        """Return the numbers of rows of `c_attn` that belong to one matrix each (see `fire_core.resolve`)."""
        queries, keys = self.n_head * self.head_dim, self.n_kv_head * self.head_dim
        return {"c_attn.weight": {"q": queries, "k": keys, "v": keys}}


class MLP(nn.Module):
    """A perceptron of one hidden layer, or the gated SwiGLU (Shazeer, arXiv 2002.05202)."""

    def __init__(self, n_embd: int, hidden: int, activation: str, bias: bool, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, hidden, bias=bias)
        self.c_gate = nn.Linear(n_embd, hidden, bias=bias) if activation == "swiglu" else None
        self.c_proj = nn.Linear(hidden, n_embd, bias=bias)
        self.activation: Callable[[Tensor], Tensor] = relu_squared if activation == "relu2" else F.gelu
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        up = self.c_fc(x)  # (B, T, hidden)
        up = self.activation(up) if self.c_gate is None else F.silu(self.c_gate(x)) * up
        return F.dropout(self.c_proj(up), self.dropout, self.training)


class Block(nn.Module):
    """Pre-norm attention and perceptron, each with a residual connection."""

    def __init__(self, n_embd: int, attention: Attention, mlp: MLP, bias: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd, bias=bias)
        self.attn = attention
        self.ln_2 = nn.LayerNorm(n_embd, bias=bias)
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """A decoder-only transformer (GPT-2: Radford et al. 2019) whose head is tied to the token embedding.

    The defaults are the paper's GPT-0.1B: 124,373,760 parameters, the tied matrix counted once.

    Args:
        vocab_size: number of tokens.
        block_size: longest context in tokens.
        n_layer: number of blocks.
        n_head: query heads.
        n_embd: width, a multiple of `n_head`.
        n_kv_head: key and value heads, a divisor of `n_head`; None: `n_head`.
        bias: whether linear layers and layer norms have biases.
        activation: of the perceptrons: `gelu` (exact), `relu2` or `swiglu`.
        hidden: width of the perceptrons; None: 4 x n_embd, for swiglu 8/3 x n_embd rounded up to 256.
        dropout: probability of dropping a unit, in [0, 1).

    Raises:
        ValueError: if an argument is out of range.
    """

    @checked
    def __init__(
        self,
        vocab_size: Count = 50_304,
        block_size: Width = 1024,
        n_layer: Depth = 12,
        n_head: Width = 12,
        n_embd: Width = 768,
        n_kv_head: Width | None = None,
        bias: bool = False,
        activation: Annotated[str, one_of("gelu", "relu2", "swiglu")] = "gelu",
        hidden: Width | None = None,
        dropout: Decay = 0.0,
    ) -> None:
        super().__init__()
        n_kv_head = n_head if n_kv_head is None else n_kv_head
        if n_embd % n_head:
            raise ValueError(f"n_embd must be a multiple of n_head={n_head}, got {n_embd}")
        if n_head % n_kv_head:
            raise ValueError(f"n_kv_head must divide n_head={n_head}, got {n_kv_head}")
        if hidden is None:
            hidden = swiglu_hidden(n_embd) if activation == "swiglu" else 4 * n_embd

        self.block_size = block_size
        self.transformer: Any = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd),
                "wpe": nn.Embedding(block_size, n_embd),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(
                    Block(
                        n_embd,
                        Attention(n_embd, n_head, n_kv_head, bias, dropout),
                        MLP(n_embd, hidden, activation, bias, dropout),
                        bias,
                    )
                    for _ in range(n_layer)
                ),
                "ln_f": nn.LayerNorm(n_embd, bias=bias),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        table: Any = self.transformer["wte"]
        self.lm_head.weight = table.weight
        self._initialise(n_layer)

    def _initialise(self, n_layer: int) -> None:
        """Draw weights with standard deviation 0.02, for projections into the residual stream over sqrt(2 n_layer).

        Biases are set to zero. This is GPT-2's initialisation.
        """
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logits, and the mean cross entropy if there are targets.

        Args:
            idx: int64 (B, T) tokens, T at most `block_size`.
            targets: int64 (B, T) next tokens; -1 is left out of the loss.

        Returns:
            With targets, logits (B, T, vocab_size) and the loss; without, logits of the last position
            (B, 1, vocab_size) and None.

        Raises:
            ValueError: if the sequences are longer than `block_size`.
        """
        if idx.shape[1] > self.block_size:
            raise ValueError(f"{idx.shape[1]} tokens do not fit into block_size={self.block_size}")
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](positions))
        for block in self.transformer["h"]:
            x = block(x)
        x = self.transformer["ln_f"](x)  # (B, T, n_embd)
        if targets is None:
            return self.lm_head(x[:, -1:]), None
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def unit_graph(self) -> list[Units]:
        """Return the hidden units (`fire_core.units.graph`): each block's values and its perceptron's hidden layer."""
        graph = []
        for i, block in enumerate(self.transformer["h"]):
            attention, mlp = block.attn, block.mlp
            kv, width, repeats = attention.n_kv_head, attention.head_dim, attention.n_head // attention.n_kv_head
            # The heads of a query group, consecutive in c_proj's input, read the same values.
            columns = (
                torch.arange(attention.n_head * width).view(kv, repeats, width).transpose(1, 2).reshape(-1, repeats)
            )
            values = Producer(attention.c_attn, start=(attention.n_head + kv) * width)
            graph.append(Units(f"h{i}.values", kv * width, (values,), (Consumer(attention.c_proj, columns),)))
            hidden = [Producer(layer) for layer in (mlp.c_gate, mlp.c_fc) if layer is not None]
            graph.append(Units(f"h{i}.hidden", len(mlp.c_fc.weight), tuple(hidden), (Consumer(mlp.c_proj),)))
        return graph


class NextTokenLoss(nn.Module):
    """A module that returns the model's loss alone, so that a compiled graph need not store the logits."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy of tokens (B, T) and next tokens (B, T)."""
        loss: Tensor = self.model(idx, targets)[1]
        return loss
