"""Singular values of a weight's matrices, and what they say: DfI, ranks, condition number.

All squares of singular values come from the Gram matrix of the smaller side in float64, a seventh of the work of a
singular value decomposition at 2048 x 2048. Squaring costs precision only at the lower end: an eigenvalue is wrong by
about 1e-15 of the largest, so a singular value at 1e-6 of the largest is wrong by 0.05 %, one at 1e-4 by 5e-8. Where
the smallest lies below 1e-6 of the largest, the matrix is decomposed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RULE = (
    "would benefit if one of its matrices is rank-deficient in float32, or has a stable rank below half of a Gaussian "
    "matrix's of its shape, m n / (sqrt m + sqrt n)^2"
)
DEFICIENT = 1 / torch.finfo(torch.float32).eps  # condition number
TRUSTED = 1e6  # up to this condition number the Gram matrix is precise enough
CHUNK = 2**22  # entries of a matrix that are float64 at once


@dataclass(frozen=True)
class Finding:
    """One weight; the numbers of its worst matrix unless said otherwise.

    Attributes:
        name: the weight's name in the checkpoint.
        shape: (m, n) of one matrix.
        matrices: how many it holds.
        dfi: DfI summed over the matrices, each divided by the scale that `fire_` would give it: what a report of
            `fire_` calls `dfi_before`.
        stable_rank: the smallest.
        effective_rank: the smallest (Roy and Vetterli); 0 of a zero matrix.
        condition: the largest ratio of singular values.
        kept: whether `fire_` leaves such a weight as it is, as an embedding.
    """

    name: str
    shape: tuple[int, int]
    matrices: int
    dfi: float
    stable_rank: float
    effective_rank: float
    condition: float
    kept: bool = False

    @property
    def is_zero(self) -> bool:
        """Return whether one of the matrices is zero: a projection would leave it so."""
        return self.stable_rank == 0

    @property
    def benefits(self) -> bool:
        """Return whether `fire_` projects the weight, it meets `RULE`, and none of its matrices is zero."""
        if self.is_zero or self.kept:
            return False
        m, n = self.shape
        gaussian = m * n / (math.sqrt(m) + math.sqrt(n)) ** 2
        return self.stable_rank < gaussian / 2 or self.condition > DEFICIENT


def singular_values(matrix: Tensor) -> Tensor:
    """Return the singular values of a matrix (m, n) in any float type, in float64, descending.

    How precise they are is said at the top of this module.
    """
    W = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    m, n = W.shape
    G = torch.zeros(n, n, dtype=torch.float64, device="cpu")
    rows = max(1, CHUNK // n)
    for i in range(0, m, rows):
        part = W[i : i + rows].to(torch.float64)
        G.addmm_(part.mT, part)
    squares: Tensor = torch.linalg.eigvalsh(G)
    if float(squares[0]) * TRUSTED**2 < float(squares[-1]):
        exact: Tensor = torch.linalg.svdvals(W.to(torch.float64))
        return exact
    return squares.clamp_min(0).sqrt().flip(0)


def finding(name: str, matrices: Tensor, scale: float) -> Finding:
    """Return what the spectra of a weight's matrices (count, m, n) say.

    Args:
        name: the weight's name, for the finding.
        matrices: finite, in any float type.
        scale: what `fire_` would make of each singular value.
    """
    values = torch.stack([singular_values(matrix) for matrix in matrices])  # (count, k), descending
    top, last = values[:, 0], values[:, -1]
    condition = torch.where(last > 0, top / last, math.inf)
    share = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    return Finding(
        name=name,
        shape=(matrices.shape[-2], matrices.shape[-1]),
        matrices=len(matrices),
        dfi=float(((values / scale) ** 2 - 1).square().sum()),
        stable_rank=float((values.square().sum(-1) / top.square().clamp_min(torch.finfo(torch.float64).tiny)).min()),
        effective_rank=float(torch.where(top > 0, torch.special.entr(share).sum(-1).exp(), 0).min()),
        condition=float(condition.max()),
    )
