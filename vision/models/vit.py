"""A small vision transformer with separate query, key and value: the paper's network for CIFAR-100."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.ranges import Count, Decay, Depth, Width, checked
from fire_core.units.graph import Units, between


class Attention(nn.Module):
    """Pre-norm self-attention, (N, T, dim) -> (N, T, dim), with separate layers for query, key and value."""

    def __init__(self, dim: int, heads: int, dim_head: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.norm(tokens)  # (N, T, dim)
        q, k, v = (
            layer(tokens).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, dim_head)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.to_out(mixed.transpose(1, 2).flatten(2))  # (N, T, dim)
        return out


class FeedForward(nn.Module):
    """Pre-norm perceptron with one hidden layer and the exact GELU, (N, T, dim) -> (N, T, dim)."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, dim),
            nn.Dropout(dropout),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.net(tokens)
        return out


class Transformer(nn.Module):
    """Blocks of attention and perceptron, each with a residual connection, and a final layer norm."""

    def __init__(self, dim: int, depth: int, heads: int, dim_head: int, mlp_dim: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers: Any = nn.ModuleList(
            nn.ModuleList([Attention(dim, heads, dim_head, dropout), FeedForward(dim, mlp_dim, dropout)])
            for _ in range(depth)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        for attention, perceptron in self.layers:
            tokens = tokens + attention(tokens)
            tokens = tokens + perceptron(tokens)
        out: Tensor = self.norm(tokens)
        return out


class Patches(nn.Module):
    """Cut images (N, C, H, W) into patches (N, h w, p p C), row by row; within a patch channels run fastest."""

    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def forward(self, images: Tensor) -> Tensor:
        p = self.patch_size
        grid = images.unflatten(3, (-1, p)).unflatten(2, (-1, p))  # (N, C, h, p, w, p)
        patches: Tensor = grid.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (N, h * w, p * p * C)
        return patches


class Encoder(nn.Module):
    """The network up to its head: images (N, C, H, W) -> the class token after the transformer (N, dim)."""

    def __init__(self, patch_dim: int, tokens: int, patch_size: int, dropout: float, **sizes: int) -> None:
        super().__init__()
        dim = sizes["dim"]
        # Standard normal, as in the authors' code, which is the scale of a layer norm's output.
        self.pos_embedding = nn.Parameter(torch.randn(1, tokens, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.to_patch_embedding = nn.Sequential(
            Patches(patch_size), nn.LayerNorm(patch_dim), nn.Linear(patch_dim, dim), nn.LayerNorm(dim)
        )
        self.dropout = nn.Dropout(dropout)
        self.transformer = Transformer(dropout=dropout, **sizes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.to_patch_embedding(images)  # (N, tokens - 1, dim)
        cls = self.cls_token.expand(len(images), -1, -1)
        tokens = torch.cat([cls, patches], dim=1) + self.pos_embedding
        out: Tensor = self.transformer(self.dropout(tokens))[:, 0]
        return out


class ViT(nn.Module):
    """Vision transformer (Dosovitskiy et al., arXiv 2010.11929) with layer norms around the patch embedding.

    The defaults are the paper's ViT-Tiny for 32x32 images. torchvision's transformer differs: it has one fused
    projection for query, key and value, and embeds patches by a convolution without the norms.

    Args:
        num_classes: number of outputs.
        in_channels: channels of an image.
        image_size: height and width of an image in pixels, a multiple of `patch_size`.
        patch_size: height and width of a patch in pixels.
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads.
        dim_head: width of a head.
        mlp_dim: hidden width of a block's perceptron.
        dropout: probability of dropping a unit, in [0, 1); 0 in the paper.

    Raises:
        ValueError: if an argument is out of range.
    """

    @checked
    def __init__(
        self,
        num_classes: Count,
        in_channels: Count = 3,
        image_size: Count = 32,
        patch_size: Count = 4,
        dim: Width = 192,
        depth: Depth = 12,
        heads: Width = 3,
        dim_head: Width = 64,
        mlp_dim: Width = 768,
        dropout: Decay = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "depth": depth, "heads": heads, "dim_head": dim_head, "mlp_dim": mlp_dim}
        if image_size % patch_size:
            raise ValueError(f"image_size must be a multiple of patch_size={patch_size}, got {image_size}")
        patch_dim = in_channels * patch_size**2
        tokens = (image_size // patch_size) ** 2 + 1  # one more for the class token
        self.backbone = Encoder(patch_dim, tokens, patch_size, dropout, **sizes)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(images))  # (N, num_classes)
        return logits

    def unit_graph(self) -> list[Units]:
        """Return the hidden units (`fire_core.units.graph`): each block's values and its perceptron's hidden layer.

        Queries and keys are left out, because they are read by each other only, and so is the residual stream, because
        layer norm mixes its channels.
        """
        graph = []
        for i, (attention, perceptron) in enumerate(self.backbone.transformer.layers):
            graph.append(between(f"block{i}.values", attention.to_v, attention.to_out[0]))
            graph.append(between(f"block{i}.hidden", perceptron.net[1], perceptron.net[4]))
        return graph
