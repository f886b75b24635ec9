"""The look of figures: one colour per method in all of them, readable without colour vision and in print."""

from collections.abc import Iterable
from typing import Any

import matplotlib as mpl

COLUMN, PAGE = 3.4, 7.0  # inches, of a two-column paper

# Okabe and Ito (2008), black and grey for the two reference methods; Tol's muted colours for the rest.
COLOURS = {
    "base": "#6E6E6E",
    "full_reset": "#000000",
    "fire": "#D55E00",
    "snp": "#0072B2",
    "dash": "#009E73",
    "parseval": "#CC79A7",
    "l2init": "#56B4E9",
    "cbp": "#E69F00",
    "redo": "#882255",
    "snr": "#999933",
    "muon": "#332288",
    "pi": "#009E73",  # plasticity injection is never in one figure with dash
    "fire_exact": "#8C2D04",
}
SPARE = ("#44AA99", "#AA4499", "#117733", "#CC6677", "#88CCEE")
DASHES = {"base": (0, (4, 1.5)), "full_reset": (0, (1.2, 1.2))}
VARIANT_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)), (0, (8, 2)))
NAMES = {
    "base": "Base",
    "full_reset": "Full reset",
    "fire": "FIRE",
    "fire_exact": "FIRE (exact)",
    "snp": "S&P",
    "dash": "DASH",
    "parseval": "Parseval",
    "l2init": "L2 init",
    "cbp": "CBP",
    "redo": "ReDo",
    "snr": "SNR",
    "muon": "Muon",
    "pi": "Plasticity inj.",
    "warm_start": "Warm start",
    "continual": "Continual",
    "class_incremental": "Class-incremental",
    "random_labels": "Random labels",
    "permuted": "Permuted pixels",
    "permuted_online": "Permuted pixels, online",
    "slowly_changing_regression": "Slowly changing regression",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tinyimagenet": "Tiny-ImageNet",
    "digits": "digits",
}
AXES = {"task": "Task", "epoch": "Epoch", "iteration": "Iteration", "step": "Step", "env_steps": "Environment steps"}
BANDS = {"sem": "± standard error", "bootstrap": "95 % bootstrap interval", "minmax": "min to max"}

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # names come from runs: a $ in them is a $
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E8E8E8",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "lines.linewidth": 1.3,
    "lines.solid_capstyle": "round",
    "figure.dpi": 100,
    "savefig.dpi": 300,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.04,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "path",  # looks the same where the font is missing
    "svg.hashsalt": "fire",  # the same input gives the same file
}


def name(key: str) -> str:
    """How a method, benchmark or data set is written in a figure."""
    return NAMES.get(key, key.replace("_", " "))


class Palette:
    """Colours of all methods of one call, so that a method has the same one in each figure."""

    def __init__(self, methods: Iterable[str]) -> None:
        others = sorted(set(methods) - set(COLOURS))
        self.colours = COLOURS | {method: SPARE[i % len(SPARE)] for i, method in enumerate(others)}
        self.spare_round = {method: i // len(SPARE) for i, method in enumerate(others)}

    def line(self, method: str, rank: int = 0) -> dict[str, Any]:
        """Keyword arguments of a line: the colour shows the method, dashes the variant."""
        turn = rank + self.spare_round.get(method, 0)
        dashes = DASHES.get(method, "-") if turn == 0 else VARIANT_DASHES[turn % len(VARIANT_DASHES)]
        on_top = 3 if method.startswith("fire") else 2
        return {"color": self.colours[method], "linestyle": dashes, "zorder": on_top}


def use() -> None:
    """Applies the style; needs no display."""
    mpl.use("Agg")
    mpl.rcParams.update(RC)
