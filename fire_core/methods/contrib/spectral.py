"""Spectral regularisation (Lewandowski, Bortkiewicz, Kumar, György, Schuurmans, Ostaszewski and Machado, "Learning
Continually by Spectral Regularization", ICLR 2025, arXiv 2406.06811)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import linear_layers, matrices, norms
from fire_core.methods.protocol import Method, Net
from fire_core.ranges import Count, NonNegative, checked

TINY = 1e-12
START = 20  # power iterations at the first step; from then on the vectors follow the weights


class SpectralRegularisation(Method):
    """Loss + coef * sum over layers of (s^k - 1)^2 + ||b||^(2k), s being the weight's largest singular value.

    At each step, for the weight W of every linear layer and convolution (c_out, c_in k_h k_w) with its vector v:
        v <- W^T W v / ||W^T W v||, `iterations` times;  s = ||W v||, whose gradient is that of the singular value
    and for the bias b of every layer ||b||^(2k). A norm's shift counts as a bias; its scale g adds ||g - 1||^2.
    Embeddings and free parameters do not count.

    The authors' code was not found. Weights and scales are held to KevinGuo27/lop-jax (of arXiv 2509.22335), which
    takes ||b||^2 for biases; their exponent here follows another third party's code, which cites the paper, and could
    not be checked.

    Args:
        coef: at least 0.
        k: exponent of the singular value, at least 1.
        iterations: power iterations of a step.
    """

    FIELDS = ("vectors",)

    @checked
    def __init__(self, coef: NonNegative = 1e-3, k: Count = 2, iterations: Count = 1) -> None:
        self.coef, self.k, self.iterations = coef, k, iterations
        self.vectors: dict[str, Tensor] = {}  # right singular vectors of equally shaped matrices of a network

    def penalty(self, net: Net) -> Tensor:
        terms = []
        for key, root in net.modules.items():
            groups: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in matrices(linear_layers(root).values()):
                groups.setdefault(tuple(matrix.shape[-2:]), []).append(matrix)
            for (m, n), group in groups.items():
                sizes = self._largest(f"{key} {m}x{n}", torch.stack(group))
                terms.append((sizes**self.k - 1).square().sum())
            biases, scales = vectors(root)
            if biases:
                terms.append((norms(biases) ** (2 * self.k)).sum())
            terms += [(scale - 1).square().sum() for scale in scales]
        return torch.stack(terms).sum() * self.coef

    def _largest(self, key: str, W: Tensor) -> Tensor:
        """Estimates of the largest singular values of W (b, m, n), (b,); their vectors are kept for the next step."""
        with torch.no_grad():
            v, iterations = self.vectors.get(key), self.iterations
            if v is None:
                first = torch.arange(W.shape[-1], device=W.device).cos().to(W.dtype)  # like random, the same everywhere
                v = self.vectors.setdefault(key, first.expand(len(W), -1).clone())
                iterations = max(START, iterations)
            for _ in range(iterations):
                moved = (W.mT @ (W @ v[..., None]))[..., 0]  # (b, n)
                size = moved.norm(dim=-1, keepdim=True)
                v.copy_(torch.where(size > TINY, moved / size.clamp(min=TINY), v))  # of a zero matrix it waits
        sizes: Tensor = torch.linalg.vector_norm(W @ v[..., None].clone(), dim=(-2, -1))
        return sizes


def vectors(root: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """All biases and the scales of norms, shared ones once."""
    biases: dict[Tensor, None] = {}
    scales: dict[Tensor, None] = {}
    for module in root.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not isinstance(weight, Tensor):
            continue
        if weight.ndim == 1:
            scales[weight] = None
        if isinstance(bias, Tensor):
            biases[bias] = None
    return list(biases), list(scales)
