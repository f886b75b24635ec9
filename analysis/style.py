"""The look of figures: one colour per method in all of them, readable without colour vision and in print."""

import math
import re
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes

COLUMN, PAGE = 3.4, 7.0  # widths in inches, in a two-column paper

# Black and grey for the two reference methods, Okabe and Ito (2008), Tol's muted colours. From `pi` on those that lie
# farthest from all before them in CIE L*a*b*, to every kind of colour vision.
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
    "fire_exact": "#8C2D04",
    "pi": "#8810E8",
    "upgd": "#A0D088",
    "nap": "#E8B8B8",
    "regrama": "#401058",
    "weight_decay": "#885840",
    "cpr": "#581010",
    "hare_tortoise": "#8858E8",
    "c_chain": "#40E858",
    "weight_clipping": "#70A058",
    "spectral": "#882888",
    "l2_er": "#D010B8",
    "trac": "#8888E8",
    "random_isometry": "#58D028",
    "optimizer_reset": "#D0B8D0",
    "swr": "#5810B8",
    "adamo": "#885888",
    "fuse": "#A05828",
    "fresh": "#00403C",
    "fire_half": "#F0A070",
}
SPARE = ("#44AA99", "#AA4499", "#117733", "#CC6677", "#88CCEE")  # for chains, and for methods that users add
# Methods whose colours are hard to tell apart have a mark too.
MARKS = dict(zip([*COLOURS][12:], "os^vDPX<>phd*8H1234", strict=True))
# Colours of a method's variants after the first, which has the method's own colour.
VARIANTS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
DASHES = {"base": (0, (4, 1.5)), "full_reset": (0, (1.2, 1.2))}
VARIANT_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)), (0, (8, 2)))
NAMES = {
    "base": "Base",
    "full_reset": "Full reset",
    "fire": "FIRE",
    "fire_exact": "FIRE exact",
    "fire_half": "FIRE, half of the way",
    "snp": "S&P",
    "dash": "DASH",
    "parseval": "Parseval",
    "l2init": "L2 init",
    "cbp": "CBP",
    "redo": "ReDo",
    "snr": "SNR",
    "muon": "Muon",
    "pi": "Plasticity inj.",
    "upgd": "UPGD",
    "nap": "NaP",
    "regrama": "ReGraMa",
    "weight_decay": "Weight decay",
    "cpr": "CPR",
    "hare_tortoise": "Hare & Tortoise",
    "c_chain": "C-CHAIN",
    "weight_clipping": "Weight clipping",
    "spectral": "Spectral reg.",
    "l2_er": "L2-ER",
    "trac": "TRAC",
    "random_isometry": "Random isometry",
    "optimizer_reset": "Optimizer reset",
    "swr": "SWR",
    "adamo": "AdamO",
    "fuse": "Fusion",
    "fresh": "New network",
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
    "fashion_mnist": "Fashion-MNIST",
    "bits": "bits",
    "digits": "digits",
    "domains": "domains",
    "finetuning": "Fine-tuning",
    "continual_control": "Continual control",
    "continual_pretraining": "Continual pre-training",
    "one_text": "One text",
    "permuted_text": "Permuted text",
    "tiny_permuted_text": "Permuted text, tiny model",
    "openwebtext": "OpenWebText",
    "pydoc": "pydoc",
    "stdlib": "standard library",
    "pydoc_stdlib": "pydoc, then standard library",
    "text": "text",
    "texts": "texts",
    "wiki_owt": "WikiText-103, then both texts",
    "wiki_then_owt": "WikiText-103, then OpenWebText",
    "wikitext103": "WikiText-103",
    "wikitext103_tokenised": "WikiText-103, tokenised",
    "acrobot": "Acrobot",
    "asterix": "Asterix",
    "beam_rider": "BeamRider",
    "breakout": "Breakout",
    "cartpole": "CartPole",
    "demon_attack": "DemonAttack",
    "lunarlander": "LunarLander",
    "pong": "Pong",
    "minatar_asterix": "MinAtar Asterix",
    "minatar_breakout": "MinAtar Breakout",
    "minatar_freeway": "MinAtar Freeway",
    "minatar_seaquest": "MinAtar Seaquest",
    "minatar_space_invaders": "MinAtar Space Invaders",
    "gpt_0.1b": "GPT-0.1B",
    "gpt_tiny": "GPT-tiny",
    "minatar_cnn": "MinAtar CNN",
    "mlp": "MLP",
    "q_mlp": "MLP",
    "q_mlp_64": "MLP",
    "nature_cnn": "nature CNN",
    "resnet18": "ResNet-18",
    "small_resnet": "small ResNet",
    "vgg16": "VGG-16",
    "vit_tiny": "ViT-Tiny",
    "simba": "SimBa",
}
COUNTS = {
    "task": "Tasks",
    "epoch": "Epochs",
    "iteration": "Iterations",
    "step": "Steps",
    "env_steps": "Environment steps",
}
AXES = {"task": "Task", "epoch": "Epoch", "iteration": "Iteration", "step": "Step", "env_steps": "Environment steps"}

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
}


def name(key: str) -> str:
    """Return how a method, benchmark, data set, environment or model is written in figures."""
    return NAMES.get(key, key.replace("_", " "))


def sentence_case(text: str) -> str:
    """Return a title with its first word capitalised, unless that is a name such as h1-walk-v0."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+(\W? |$)", text) else text


class Palette:
    """The colours of methods, the same in all figures of one call.

    Args:
        methods: names of all methods that will be drawn.
    """

    def __init__(self, methods: Iterable[str]) -> None:
        methods = {*methods}
        others = sorted(methods - set(COLOURS))
        self.colours = COLOURS | {method: SPARE[i % len(SPARE)] for i, method in enumerate(others)}
        taken = {self.colours[method] for method in methods}
        self.variants = [colour for colour in VARIANTS if colour not in taken] or VARIANTS
        self.spare_round = {method: i // len(SPARE) for i, method in enumerate(others)}

    def line(self, method: str, place: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return keyword arguments for drawing a method's line.

        Args:
            method: name of the method; it decides colour and mark.
            place: indices of a variant's colour and dash (`differences.looks`).
        """
        number, dash = place
        turn = dash + self.spare_round.get(method, 0)
        colour = self.variants[(number - 1) % len(self.variants)] if number else self.colours[method]
        dashes = DASHES.get(method, "-") if turn == 0 else VARIANT_DASHES[turn % len(VARIANT_DASHES)]
        on_top = 3 if method.startswith("fire") else 2
        mark = {"marker": MARKS[method], "markevery": 0.14, "markersize": 3} if method in MARKS else {}
        return {"color": colour, "linestyle": dashes, "zorder": on_top, **mark}


def number_tasks(axes: Axes, tasks: float) -> None:
    """Set the limits and ticks of a stream's horizontal axis to whole numbers of tasks, from 1."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, math.inf) if tasks / step <= 7)
    axes.set_xlim(0.5, tasks + 0.5)
    axes.set_xticks([1, *(step * i for i in range(1, int(tasks / step) + 1) if step * i > 1)])


def use() -> None:
    """Apply the style to all figures from now on, and draw without a display."""
    mpl.use("Agg")
    mpl.rcParams.update(RC)
