"""How far does each solver get, on which weights? The counterpart of the paper's table 10.

    fire convergence                                      # random families
    fire convergence model.pt other.safetensors --out results
    fire convergence --families square --size 64 --draws 100 --solvers newton_schulz

Solver x norm_init x iterations on random families and on the matrices of given checkpoints: what DfI, SFE and extreme
singular values each reaches, at which cost. Writes convergence.md, .csv, .png and .pdf into --out. All
figures are measured: DfI, SFE and singular values in float64 on the float32 results, matmul FLOPs by torch's
counter (eigenvalue, LU and SVD routines are not matmuls and not in it), seconds by the clock.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from fire_core.metrics import dfi, sfe
from fire_core.polar.factor import polar_factor, solve
from fire_core.polar.options import NORM_INITS, SOLVERS, PolarOptions
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import MOST_ITERATIONS, Parser, at_least
from fire_core.tools.reader import add_choice, matrices_of, read_cuts

FAMILIES = ("square", "tall", "wide", "ill-conditioned", "rank-deficient")
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#6E6E6E", "#E69F00")  # Okabe and Ito (2008)
CONVERGED_DFI_PER_N = 1e-6  # what "converged" means in the step counts


@dataclass(frozen=True)
class Row:
    """One solver on one set of matrices; n is the smaller side of a matrix, means and extremes are over matrices."""

    weights: str
    solver: str
    norm_init: str
    iterations: int
    dfi_mean: float
    dfi_per_n: float  # the largest
    sfe_mean: float
    sigma_min: float
    sigma_max: float
    matmul_gflop: float
    seconds: float


@dataclass(frozen=True)
class Steps:
    """Newton-Schulz steps until DfI / n <= 1e-6, matrix by matrix; limit + 1 where the limit was not enough."""

    weights: str
    matrices: int
    condition: float  # median
    median: dict[str, float]  # by norm_init
    worst: dict[str, int]


def family(name: str, size: int, draws: int, seed: int) -> Tensor:
    """Return random matrices (draws, m, n) in float32, with entries of variance 1 / max(m, n) unless said otherwise.

    Args:
        name: `square` n x n, `tall` 4n x n and `wide` n x 4n are Gaussian; `ill-conditioned` is n x n with singular
            values spaced geometrically from 1 to 1e-4; `rank-deficient` n x n of rank 3n / 5, a product of Gaussians.
        size: n.
        draws: number of matrices.
        seed: seed of the random generator.

    Raises:
        ValueError: the name is unknown.
    """
    generator = torch.Generator().manual_seed(seed)

    def gaussian(m: int, n: int) -> Tensor:
        return torch.randn(draws, m, n, generator=generator, dtype=torch.float64) / math.sqrt(max(m, n))

    if name in ("square", "tall", "wide"):
        return gaussian(size * (4 if name == "tall" else 1), size * (4 if name == "wide" else 1)).float()
    if name == "rank-deficient":
        rank = 3 * size // 5
        return (gaussian(size, rank) @ gaussian(rank, size)).float()
    if name == "ill-conditioned":
        U, V = torch.linalg.qr(gaussian(size, size))[0], torch.linalg.qr(gaussian(size, size))[0]
        W: Tensor = (U * torch.logspace(0, -4, size, dtype=torch.float64)) @ V.mT
        return W.float()
    raise ValueError(f"family {name!r}: expected one of {', '.join(FAMILIES)}")


def from_checkpoint(path: Path, limit: int, **choice: Any) -> list[Tensor]:
    """Return the matrices of a checkpoint in float32, in one batch (count, m, n) for each shape.

    Args:
        path: see `checkpoint.source.load`.
        limit: how many matrices of each shape are taken, evenly spaced.
        choice: options of `reader.read_cuts`.

    Raises:
        CheckpointError: the checkpoint cannot be used, holds no matrices, or a NaN or Inf in one.
    """
    by_shape: dict[tuple[int, int], list[Tensor]] = {}
    cuts = read_cuts(path, **choice)
    for note in cuts.notes:
        print(f"note: {note}", file=sys.stderr)
    for weight_cut in cuts.cuts:
        for name, matrices, _ in matrices_of(weight_cut, cuts.without_model):
            if not bool(matrices.isfinite().all()):
                raise CheckpointError(f"{path}: NaN or Inf in {name}")
            by_shape.setdefault((matrices.shape[-2], matrices.shape[-1]), []).extend(matrices.float())
    if not by_shape:
        raise CheckpointError(f"{path}: holds no weight matrices")
    batches = []
    for group in by_shape.values():
        count = min(limit, len(group))
        batches.append(torch.stack([group[i * len(group) // count] for i in range(count)]))
    return batches


def measure(label: str, batches: Sequence[Tensor], solver: str, norm_init: str, iterations: int) -> Row:
    """Run one solver on all batches (count, m, n), and return what its results are and what they cost."""
    dfis, sfes, per_n, low, high = [], [], [], math.inf, 0.0
    begin = time.perf_counter()
    results = [polar_factor(W, solver, iterations=iterations, norm_init=norm_init) for W in batches]
    seconds = time.perf_counter() - begin
    flops = 0
    for W in batches:
        with FlopCounterMode(display=False) as counter:
            polar_factor(W[:1], solver, iterations=iterations, norm_init=norm_init)
        flops += counter.get_total_flops() * len(W)
    for W, X in zip(batches, results, strict=True):
        d = dfi(X.double())
        s = torch.linalg.svdvals(X.double())
        dfis += d.tolist()
        per_n += (d / min(W.shape[-2:])).tolist()
        sfes += sfe(W.double(), X.double()).tolist()
        low, high = min(low, float(s.min())), max(high, float(s.max()))
    means = statistics.fmean(dfis), max(per_n), statistics.fmean(sfes)
    return Row(label, solver, norm_init, iterations, *means, low, high, flops / 1e9, seconds)


def count_steps(label: str, batches: Sequence[Tensor], norm_inits: Sequence[str], limit: int = 200) -> Steps:
    """Count how many Newton-Schulz steps each matrix needs, from each start, until DfI / n is at most 1e-6.

    Args:
        label: name of the set of weights.
        batches: the matrices, (count, m, n) each.
        norm_inits: the starts: what a matrix is divided by before the first step.
        limit: most steps.
    """
    taken: dict[str, list[int]] = {norm_init: [] for norm_init in norm_inits}
    conditions = []
    for W in batches:
        s = torch.linalg.svdvals(W.double())
        conditions += (s[:, 0] / s[:, -1].clamp_min(1e-300)).tolist()
        tol = CONVERGED_DFI_PER_N * min(W.shape[-2:])
        for norm_init, counts in taken.items():
            for matrix in W:
                X, report = solve(matrix, PolarOptions("newton_schulz", limit, norm_init, tol))
                arrived = report.iterations < limit or float(dfi(X.double())) <= tol
                counts.append(report.iterations if arrived else limit + 1)
    return Steps(
        label,
        len(conditions),
        statistics.median(conditions),
        {norm_init: statistics.median(counts) for norm_init, counts in taken.items()},
        {norm_init: max(counts) for norm_init, counts in taken.items()},
    )


# ----------------------------------------------------------------------------------------------------------- writing


def markdown(steps: Sequence[Steps], command: str) -> str:
    """Return the step counts as a Markdown page with one table."""
    starts = list(steps[0].median)
    lines = ["# Convergence", "", f"Made by `{command}` with torch {torch.__version__}.", ""]
    lines += [f"## Newton-Schulz steps until DfI / n <= {CONVERGED_DFI_PER_N:g}: median (worst matrix)", ""]
    lines += ["| weights | matrices | median condition | " + " | ".join(starts) + " |"]
    lines += ["|---|---:|---:|" + "---:|" * len(starts)]
    for entry in steps:
        cells = [f"{entry.median[start]:g} ({entry.worst[start]})" for start in starts]
        lines.append(f"| {entry.weights} | {entry.matrices} | {entry.condition:.3g} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", "201: 200 steps were not enough.", ""])


def plot(rows: Sequence[Row], paths: Sequence[Path]) -> None:
    """Draw the largest DfI / n over iterations: a panel for each set of weights, a line for each solver and start.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    labels = list(dict.fromkeys(row.weights for row in rows))
    columns = min(3, len(labels))
    height = -(-len(labels) // columns)
    figure, axes = plt.subplots(
        height, columns, figsize=(3.4 * columns, 2.6 * height), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, label in zip(axes.flat, labels, strict=False):
        lines: dict[str, list[tuple[int, float]]] = {}
        for row in (row for row in rows if row.weights == label):
            name = row.norm_init if row.solver == "newton_schulz" else row.solver
            lines.setdefault(name, []).append((row.iterations, max(row.dfi_per_n, 1e-16)))
        for i, (name, points) in enumerate(lines.items()):
            if name == "exact":
                axis.axhline(points[0][1], color="black", ls="--", lw=1, label=name)
            else:
                look, colour = ("o-", "s-", "^-", "v-", "x:")[min(i, 4)], COLOURS[i % len(COLOURS)]
                axis.plot(*zip(*points, strict=True), look, ms=3, lw=1, color=colour, label=name)
        axis.set(yscale="log", title=label, xlabel="iterations")
        axis.title.set_fontsize(8)
    for axis in axes.flat[len(labels) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("largest DfI / n")
    axes[0, 0].legend(fontsize=6, frameon=False)
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # TrueType in the file: text stays text
        for path in paths:
            figure.savefig(path, dpi=150)
    plt.close(figure)


def write(rows: Sequence[Row], steps: Sequence[Steps], out: Path, command: str) -> None:
    """Write all files into `out`; without matplotlib, no pictures, and without the paper's solver, no step counts.

    What an earlier call has left there of files that are not written now is removed, because it is of other rows.
    """
    for suffix in ("md", "csv", "png", "pdf"):
        (out / f"convergence.{suffix}").unlink(missing_ok=True)
    if steps:
        (out / "convergence.md").write_text(markdown(steps, command))
    with (out / "convergence.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    try:
        plot(rows, [out / "convergence.png", out / "convergence.pdf"])
    except ImportError:
        print("no .png and .pdf: pip install matplotlib", file=sys.stderr)


# ----------------------------------------------------------------------------------------------------------- command


def run(weights: Mapping[str, Sequence[Tensor]], options: argparse.Namespace) -> tuple[list[Row], list[Steps]]:
    """Measure every solver and start that the options ask for on every set of weights, and print each result."""
    rows, steps = [], []
    for label, batches in weights.items():
        for solver in options.solvers:
            starts = options.norm_inits if solver == "newton_schulz" else ["frobenius" if solver == "muon" else "-"]
            for norm_init in starts:
                for iterations in [0] if solver == "exact" else options.iterations:
                    start = NORM_INITS[0] if norm_init == "-" else norm_init
                    row = measure(label, batches, solver, start, iterations)
                    rows.append(Row(**(asdict(row) | {"norm_init": norm_init})))
                    told = f"{label}, {solver}, {norm_init}, {iterations}: DfI {row.dfi_mean:.4g}"
                    print(told, file=sys.stderr if options.json else sys.stdout, flush=True)
        if "newton_schulz" in options.solvers:
            steps.append(count_steps(label, batches, options.norm_inits))
    return rows, steps


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line on stderr for a file that cannot be used."""
    parser = Parser(prog="fire convergence", description=__doc__.split("\n")[0])
    parser.add_argument("checkpoints", nargs="*", type=Path, help="folders and files of weights, as `fire audit` takes")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--size", type=at_least(2), nargs="+", default=[256], help="n of the random families")
    add_choice(parser)
    parser.add_argument("--draws", type=at_least(1), default=8, help="matrices of each family")
    parser.add_argument("--limit", type=at_least(1), default=6, help="matrices of each shape in a checkpoint")
    parser.add_argument("--solvers", nargs="+", default=list(SOLVERS), choices=SOLVERS)
    parser.add_argument("--norm-inits", nargs="+", default=list(NORM_INITS), choices=NORM_INITS)
    parser.add_argument(
        "--iterations", type=at_least(0, MOST_ITERATIONS), nargs="+", default=[1, 2, 5, 8, 10, 12, 15, 20, 25, 30]
    )
    parser.add_argument("--seed", type=at_least(0, 2**63 - 1), default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/convergence"))
    parser.add_argument("--json", action="store_true", help="the rows as a JSON list at the end, progress on stderr")
    options = parser.parse_args(arguments)
    options.iterations = sorted(set(options.iterations))
    weights: dict[str, Sequence[Tensor]] = {}
    for size in options.size:
        for name in options.families:
            W = family(name, size, options.draws, options.seed)
            weights[f"{name} {W.shape[-2]}x{W.shape[-1]}"] = [W]
    choice = {name: getattr(options, name) for name in ("model", "only", "transposed")} | {
        "blocks": dict(options.blocks)
    }
    stems = [path.stem for path in options.checkpoints]
    try:
        for stem, path in zip(stems, options.checkpoints, strict=True):
            weights[stem if stems.count(stem) == 1 else str(path)] = from_checkpoint(path, options.limit, **choice)
    except CheckpointError as error:
        print(error, file=sys.stderr)
        return 2
    if not weights:
        parser.error("--families: none, and no checkpoint: nothing to do")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}")
    given = sys.argv[1:] if arguments is None else arguments
    command = " ".join(["fire convergence", *(Path(a).name if Path(a).is_absolute() else a for a in given)])
    rows, steps = run(weights, options)
    write(rows, steps, options.out, command)
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else f"wrote {options.out}/convergence.*")
    return 0
