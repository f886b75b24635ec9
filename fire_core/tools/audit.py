"""Look into a checkpoint: which of its matrices have drifted from isometry, and which would a projection help?

    python -m fire_core.audit checkpoint.pt
    python -m fire_core.audit model.safetensors --plot spectra.png

Reads .safetensors, and .pt files with `weights_only=True`, so that no code in a file is ever run. Every weight with two
or more dimensions is cut as in the paper: a convolution into its kernel positions, all else (embeddings too) as one
matrix, except fused q, k, v projections of three equal blocks. A checkpoint knows no module types, so shapes and names
have to do: biases, optimizer moments, depthwise convolutions and other stacks of vectors are left out.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

RULE = (
    "would benefit if one of its matrices is rank-deficient in float32, or has a stable rank below half of a Gaussian "
    "matrix's of its shape, m n / (sqrt m + sqrt n)^2"
)
DEFICIENT = 1 / torch.finfo(torch.float32).eps  # condition number


class CheckpointError(Exception):
    """A file that cannot be read, or not safely; the message is one line."""


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


def load_tensors(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by dotted names, nested dictionaries such as {"model": {...}} flattened.

    Args:
        path: a .safetensors file, or one written by `torch.save`.

    Raises:
        CheckpointError: the file is missing, is no checkpoint, holds no tensors, or would run code.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        content = _read(path)
    except ImportError as error:
        raise CheckpointError(f"{path}: reading .safetensors needs `pip install safetensors`") from error
    except Exception as error:  # a broken file can fail in any way
        if isinstance(error, pickle.UnpicklingError) and any(
            word in str(error) for word in ("GLOBAL", "class", "global")
        ):
            raise CheckpointError(f"{path}: refused, because it holds more than tensors and could run code") from error
        raise CheckpointError(f"{path}: no readable checkpoint ({type(error).__name__})") from error
    tensors = dict(_flatten(content))
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    return tensors


def _read(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters ends in an error
        return torch.load(path, map_location="cpu", weights_only=True)


def _flatten(content: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield prefix, content
    elif isinstance(content, Mapping):
        for key, value in content.items():
            yield from _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(content, (list, tuple)):
        for i, value in enumerate(content):
            yield from _flatten(value, f"{prefix}.{i}" if prefix else str(i))


def examine(tensors: Mapping[str, Tensor], stacked: str | None = None) -> tuple[list[Finding], list[str]]:
    """A finding for each weight, and a line for each one that could not be examined.

    Optimizer states (names with `exp_avg`, `momentum_buffer` and the like) are passed over; tied copies count once.

    Args:
        tensors: by name.
        stacked: see `matrices_of`.
    """
    findings, refused = [], []
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in tensors.items():
        matrices = matrices_of(name, tensor, stacked)
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if matrices is None or key in seen:
            continue
        seen.add(key)
        if not torch.isfinite(matrices).all():
            refused.append(f"{name}: holds NaN or Inf")
            continue
        for block, part in _blocks(name, matrices):
            findings.append(_finding(name + block, part))
    return findings, refused


_STATE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum")


def chosen(tensors: Mapping[str, Tensor], only: str | None) -> dict[str, Tensor]:
    """The tensors whose names match the pattern; a run's checkpoint also holds initial weights and target networks.

    Raises:
        CheckpointError: none does.
    """
    found = {name: tensor for name, tensor in tensors.items() if fnmatchcase(name, only or "*")}
    if not found:
        raise CheckpointError(f"--only={only}: no name matches; there are {', '.join(list(tensors)[:6])}, ...")
    return found


def matrices_of(name: str, tensor: Tensor, stacked: str | None = None) -> Tensor | None:
    """The matrices (count, m, n) of a weight in float64, or None for what is none.

    Args:
        name: in the checkpoint.
        tensor: the weight.
        stacked: pattern of names whose 3-dimensional weights are layers side by side, (count, m, n), and not kernels
            of Conv1d, (m, n, positions): shapes cannot tell.
    """
    last = name.rsplit(".", 1)[-1]
    if tensor.ndim < 2 or tensor.ndim > 5 or not tensor.is_floating_point() or last.endswith("bias") or last in _STATE:
        return None
    if min(tensor.shape) == 0 or min(tensor.shape[:2]) < 2:
        return None  # vectors, depthwise convolutions, class tokens
    weight = tensor.detach().to(torch.float64)
    if weight.ndim == 3 and stacked is not None and fnmatchcase(name, stacked):
        return weight
    return weight[None] if weight.ndim == 2 else weight.flatten(2).movedim(-1, 0)


_FUSED = ("qkv", "c_attn", "in_proj", "Wqkv")


def _blocks(name: str, matrices: Tensor) -> list[tuple[str, Tensor]]:
    parts = name.replace("in_proj_weight", "in_proj.weight").split(".")
    if matrices.shape[0] == 1 and matrices.shape[1] == 3 * matrices.shape[2] and set(_FUSED) & set(parts):
        return [(f"[{key}]", block) for key, block in zip("qkv", matrices.chunk(3, dim=1), strict=True)]
    return [("", matrices)]


def _finding(name: str, matrices: Tensor) -> Finding:
    values = torch.linalg.svdvals(matrices)  # (count, k), descending
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


def table(findings: list[Finding]) -> str:
    """The findings as an aligned table, with the rule that marks them."""
    head = ("name", "shape", "n", "DfI*", "stable rank", "effective rank", "condition", "would benefit")
    lines = [head] + [
        (
            f.name,
            f"{f.shape[0]}x{f.shape[1]}",
            str(f.matrices),
            f"{f.dfi:.4g}",
            f"{f.stable_rank:.1f}",
            f"{f.effective_rank:.1f}",
            f"{f.condition:.3g}",
            "yes" if f.benefits else "",
        )
        for f in findings
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rows = [" ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    rows = [line[0].ljust(widths[0]) + row[widths[0] :] for line, row in zip(lines, rows, strict=True)]
    count = sum(f.benefits for f in findings)
    notes = [
        "",
        f"{count} of {len(findings)} weights would benefit from a projection.",
        "DfI*: with the root mean square singular value scaled to 1, mean over a weight's n matrices.",
        "Ranks and condition number: of the worst of the n matrices.",
        *textwrap.wrap(f"A weight {RULE}.", 110),
    ]
    return "\n".join([row.rstrip() for row in rows] + notes)


def plot(findings: list[Finding], path: str | Path) -> None:
    """Singular values of each weight's worst matrix, divided by the largest, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
    colours = plt.get_cmap("viridis")
    for i, f in enumerate(findings):
        values = (f.spectrum / f.spectrum[0].clamp_min(1e-300)).clamp_min(1e-9)
        x = torch.linspace(0, 1, len(values)) if len(values) > 1 else torch.zeros(1)
        label = f.name if len(findings) <= 12 else None
        axes.plot(x.tolist(), values.tolist(), color=colours(i / max(1, len(findings) - 1)), lw=1, label=label)
    axes.axhline(1, color="black", lw=0.8, ls="--")
    axes.set(yscale="log", xlabel="index / smaller side", ylabel="singular value / largest")
    axes.set_title("Dashed: isometry. Dark: first weight of the file, light: last", fontsize=9)
    if len(findings) <= 12:
        axes.legend(fontsize=6, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """The options `--only` and `--stacked`."""
    parser.add_argument("--only", metavar="PATTERN", help="weights whose names match, such as '*.trainer.model.*'")
    parser.add_argument(
        "--stacked", metavar="PATTERN", help="3-dimensional weights of these names are layers side by side, not Conv1d"
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; 0, or 2 with one line on stderr for a file that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m fire_core.audit", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", help="a .safetensors file or a .pt file of tensors")
    add_choice(parser)
    parser.add_argument("--plot", metavar="FILE", help="draw the spectra into this .png or .pdf")
    options = parser.parse_args(arguments)
    try:
        findings, refused = examine(chosen(load_tensors(options.checkpoint), options.only), options.stacked)
        if not findings and not refused:
            raise CheckpointError(f"{options.checkpoint}: holds no weight matrices")
        if options.plot:
            plot(findings, options.plot)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    except (OSError, ValueError, ImportError) as error:
        print(f"--plot={options.plot}: {error}", file=sys.stderr)
        return 2
    print(table(findings))
    for line in refused:
        print(f"not examined: {line}")
    return 0
