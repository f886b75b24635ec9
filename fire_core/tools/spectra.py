"""Singular values of a weight's matrices, and what they say: DfI, ranks, condition number.

All squares of singular values come from the Gram matrix of the smaller side in float64, a seventh of the work of a
singular value decomposition at 2048 x 2048. Squaring costs precision only at the lower end: an eigenvalue is wrong by
about 1e-15 of the largest, so a singular value at 1e-6 of the largest is wrong by 0.05 %, one at 1e-4 by 5e-8. Where
the smallest lies below 1e-6 of the largest, the matrix is decomposed in float64.

A Llama of 470 M numbers in bfloat16 (8 layers of width 2048, a table of 32,000): 58 s of processor time, 0.9 GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
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
        name: in the checkpoint.
        shape: (m, n) of one matrix.
        matrices: how many it holds.
        dfi: DfI of the matrices divided by the root mean square of their singular values, mean over matrices. Without
            that division DfI would mostly say how large the weights are.
        stable_rank: the smallest.
        effective_rank: the smallest (Roy and Vetterli).
        condition: the largest ratio of singular values.
        spectrum: singular values of the worst matrix (by condition), descending.
    """

    name: str
    shape: tuple[int, int]
    matrices: int
    dfi: float
    stable_rank: float
    effective_rank: float
    condition: float
    spectrum: Tensor

    @property
    def benefits(self) -> bool:
        """Whether the weight meets `RULE`."""
        m, n = self.shape
        gaussian = m * n / (math.sqrt(m) + math.sqrt(n)) ** 2
        return self.stable_rank < gaussian / 2 or self.condition > DEFICIENT


@contextmanager
def one_thread() -> Iterator[None]:
    """LAPACK's eigenvalues on one thread: two that share busy cores wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values of one matrix (m, n) in any float type, float64, descending, to the precision said above."""
    W = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.mT
    m, n = W.shape
    peak = float(W.abs().max()) if W.numel() else 0.0
    if peak == 0 or not math.isfinite(peak):
        return torch.full((n,), peak, dtype=torch.float64)
    unit = 2.0 ** math.floor(math.log2(peak))  # else squares of tiny and huge numbers leave the range of float64
    G = torch.zeros(n, n, dtype=torch.float64)
    rows = max(1, CHUNK // n)
    for i in range(0, m, rows):
        part = W[i : i + rows].to(torch.float64) / unit
        G.addmm_(part.mT, part)
    squares: Tensor = torch.linalg.eigvalsh(G)
    if float(squares[0]) * TRUSTED**2 < float(squares[-1]):
        exact: Tensor = torch.linalg.svdvals(_triangle(W, unit))
        return exact * unit
    return squares.clamp_min(0).sqrt().flip(0) * unit


def _triangle(W: Tensor, unit: float) -> Tensor:
    """A matrix of at most 2n rows with W's singular values: R of its QR decomposition, chunk by chunk."""
    m, n = W.shape
    R = W[:0].to(torch.float64)
    rows = max(n, CHUNK // n)
    for i in range(0, m, rows):
        R = torch.cat([R, W[i : i + rows].to(torch.float64) / unit])
        if m > n:
            R = torch.linalg.qr(R, mode="r")[1]
    return R


def finding(name: str, matrices: Tensor) -> Finding:
    """What the spectra of a weight's matrices (count, m, n) say.

    Args:
        name: for the finding.
        matrices: finite, in any float type.
    """
    with one_thread():
        values = torch.stack([singular_values(matrix) for matrix in matrices])  # (count, k), descending
    top, last = values[:, 0], values[:, -1]
    condition = torch.where(last > 0, top / last, math.inf)
    share = values / values.sum(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    mean_square = values.square().mean(-1, keepdim=True)
    size = torch.where(mean_square > 0, mean_square.sqrt(), 1)
    return Finding(
        name=name,
        shape=(matrices.shape[-2], matrices.shape[-1]),
        matrices=len(matrices),
        dfi=float(((values / size) ** 2 - 1).square().sum(-1).mean()),
        stable_rank=float((values.square().sum(-1) / top.square().clamp_min(torch.finfo(torch.float64).tiny)).min()),
        effective_rank=float(torch.special.entr(share).sum(-1).exp().min()),
        condition=float(condition.max()),
        spectrum=values[condition.argmax()],
    )
