"""Spectral regularisation (Lewandowski, Bortkiewicz, Kumar, György, Schuurmans, Ostaszewski and Machado, "Learning
Continually by Spectral Regularization", ICLR 2025, arXiv 2406.06811)."""

import torch
from torch import Tensor, nn

from fire_core.methods.layers import flattened_weights, is_norm, named_layers, norms
from fire_core.methods.protocol import Method, Net
from fire_core.polar.steps import to_working
from fire_core.ranges import Count, NonNegative, checked

TINY = 1e-12  # a vector of at most this length is not normalised
FIRST_ITERATIONS = 20  # power iterations at the first step; from then on the vectors follow the weights


class SpectralRegularisation(Method):
    """Add coef * sum over layers of (s^k - 1)^2 + ||b||^(2k) to the loss; s: the weight's largest singular value.

    At each step, for the weight W of every linear layer and convolution (c_out, c_in k_h k_w) with its vector v:
        v <- W^T W v / ||W^T W v||, `iterations` times;  s = ||W v||, whose gradient is that of the singular value
    The bias b of every layer adds ||b||^(2k). A norm's shift counts as a bias; its scale g adds ||g - 1||^2. Slopes of
    activations (PReLU), embeddings and free parameters do not count. Half precision is computed in float32.

    The authors' code was not found. The terms of weights and scales agree with KevinGuo27/lop-jax (of arXiv
    2509.22335), which takes ||b||^2 for biases; the exponent 2k of biases here follows another third party's code,
    which cites the paper, and could not be checked.

    Args:
        coef: strength of the regularisation, at least 0.
        k: exponent of the singular value, at least 1.
        iterations: power iterations of a step.
    """

    FIELDS = ("vectors",)

    @checked
    def __init__(self, coef: NonNegative = 1e-3, k: Count = 2, iterations: Count = 1) -> None:
        self.coef, self.k, self.iterations = coef, k, iterations
        self.vectors: dict[str, Tensor] = {}  # "network MxN" -> top right singular vectors (b, n) of its m x n matrices

    def penalty(self, net: Net) -> Tensor:
        terms = []
        for key, root in net.modules.items():
            groups: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in flattened_weights(named_layers(root).values()):
                groups.setdefault(tuple(matrix.shape[-2:]), []).append(to_working(matrix))
            for (m, n), group in groups.items():
                singular_values = self._largest_singular_values(f"{key} {m}x{n}", torch.stack(group))
                terms.append((singular_values**self.k - 1).square().sum())
            biases, scales = (list(map(to_working, vectors)) for vectors in biases_and_scales(root))
            if biases:
                terms.append((norms(biases) ** (2 * self.k)).sum())
            terms += [(scale - 1).square().sum() for scale in scales]
        return torch.stack(terms).sum() * self.coef

    def _largest_singular_values(self, key: str, W: Tensor) -> Tensor:
        """Estimate the largest singular value of each matrix by power iteration from the vectors of the last step.

        Args:
            key: where `self.vectors` holds the singular vectors of these matrices.
            W: (b, m, n).

        Returns:
            (b,), with gradients.
        """
        with torch.no_grad():
            v, iterations = self.vectors.get(key), self.iterations
            if v is not None and v.shape == (len(W), W.shape[-1]):
                v = self.vectors[key] = v.to(W)  # the network may have moved, or have got another number format
            else:
                # cos(0), cos(1), ... looks random, is the same on every machine and draws no random number
                start = torch.arange(W.shape[-1], device=W.device).cos().to(W.dtype)
                v = self.vectors[key] = start.expand(len(W), -1).clone()
                iterations = max(FIRST_ITERATIONS, iterations)
            for _ in range(iterations):
                product = (W.mT @ (W @ v[..., None]))[..., 0]  # (b, n)
                length = product.norm(dim=-1, keepdim=True)
                v.copy_(torch.where(length > TINY, product / length.clamp(min=TINY), v))  # a zero matrix leaves v as is
        singular_values: Tensor = torch.linalg.vector_norm(W @ v[..., None].clone(), dim=(-2, -1))
        return singular_values


def biases_and_scales(root: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return all biases (shifts of norms too) and all scales of norms, shared ones once."""
    biases: dict[Tensor, None] = {}
    scales: dict[Tensor, None] = {}
    for module in root.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if not isinstance(weight, Tensor):
            continue
        if weight.ndim == 1 and is_norm(module):
            scales[weight] = None
        if isinstance(bias, Tensor):
            biases[bias] = None
    return list(biases), list(scales)
