"""Measure how fast the projection is, relative to the plain loop of the paper's listing, in turns in one process.

    python scripts/bench_projection.py --as-called --threads 2          # torchvision's ResNet-18, as a user calls it
    python scripts/bench_projection.py                                  # every model of the paper, initial weights
    python scripts/bench_projection.py --weights trained --models resnet18 vgg16 vit --train-steps 150
    # half of the way against the exact projection alone
    python scripts/bench_projection.py --models resnet18 vit gpt --threads 1 --rounds 15 --methods exact half

The plain loop iterates over layers and kernel positions in Python: cubic, Frobenius, 10 steps. `fire_` projects the
same modules in batches. "/ loop" is the median over rounds of the ratio within a round, "/ exact" the ratio of the
least times, which other load on the machine disturbs least.
"""

import argparse
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import torch
from torch import Tensor, nn

from fire_core import dfi, fire_
from fire_core.tools.output import keep_output
from scripts.interleaved import seconds_of

FACTS = Path(__file__).parents[1] / "tests" / "golden"
MODELS = {  # name: (file, key, regular expression for the parameters to project)
    "resnet18": ("models_facts.json", "resnet18_cifar10", ""),
    "vgg16": ("models_facts.json", "vgg16_tinyimagenet", ""),
    "vit": ("models_facts.json", "tinyvit_cifar100", "to_[qk]"),
    "gpt": ("models_facts.json", "gpt_0.1b_bias_false", ""),
    "dqn": ("dqn_facts.json", "qnetwork", "^conv"),
}
METHODS: dict[str, Callable[[nn.Module], object]] = {
    "fire_ (paper)": lambda net: fire_(net, "newton_schulz", 10, measure=False),
    "fire_ (paper, measured)": lambda net: fire_(net, "newton_schulz", 10),
    "fire_ (exact)": lambda net: fire_(net, "exact", measure=False),
    "fire_ (exact, measured)": lambda net: fire_(net, "exact"),
    "fire_ (half)": lambda net: fire_(net, blend=0.5, measure=False),
    "fire_ (half, measured)": lambda net: fire_(net, blend=0.5),
}
WORDS = {
    "paper": "fire_ (paper",
    "exact": "fire_ (exact",
    "half": "fire_ (half",
}  # a word of --methods -> how the names of its methods begin


class Measured(NamedTuple):
    """A method's time, and the DfI that it reached; a ratio is NaN if the method to compare with was not run."""

    seconds: float  # median over rounds
    to_loop: float  # median ratio to the plain loop's time
    to_exact: float  # ratio of the least time to that of fire_ (exact)
    dfi: float  # summed over the model's matrices


def shapes(model: str) -> dict[str, list[int]]:
    """Return name -> shape of the weights that the paper projects; a fused qkv counts as its three blocks."""
    file, key, pattern = MODELS[model]
    projected: dict[str, list[int]] = {}
    for name, shape in json.loads((FACTS / file).read_text())[key]["params"]:
        if len(shape) not in (2, 4) or name.endswith("wpe.weight") or not name.endswith("weight"):
            continue
        if not re.search(pattern, name):
            continue
        if "c_attn" in name:
            d = shape[1]
            projected |= {f"{name}.{block}": [shape[0] // 3, d] for block in "qkv"}
        else:
            projected[name] = shape
    return projected


def build(model: str, state: dict[str, Tensor] | None) -> nn.Module:
    """Return Linear and Conv2d layers that have the shapes of a model's weights, and its values if `state` has them."""
    torch.manual_seed(0)
    layers = []
    for name, shape in shapes(model).items():
        layer = (
            nn.Linear(shape[1], shape[0], bias=False)
            if len(shape) == 2
            else nn.Conv2d(shape[1], shape[0], (shape[2], shape[3]), bias=False)
        )
        if state is not None:
            layer.load_state_dict({"weight": state[name]})
        layers.append(layer)
    return nn.Sequential(*layers)


def trained(model: str, steps: int) -> dict[str, Tensor]:
    """Return the weights of the paper's network after a short training on enlarged digits, named as in `FACTS`."""
    from sklearn.datasets import load_digits

    import vision.models as zoo

    nets: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
        "resnet18": (lambda: zoo.ResNet18(num_classes=10), 16, 32),
        "vgg16": (lambda: zoo.VGG16(num_classes=200, image_size=64), 64, 16),
        "vit": (lambda: zoo.ViT(num_classes=100, image_size=32), 32, 32),
    }
    build_net, size, batch_size = nets[model]
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16 - 0.5
    x, y = nn.functional.interpolate(x, size=size).expand(-1, 3, -1, -1), torch.tensor(labels)
    torch.manual_seed(0)
    net = build_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(steps):
        batch = torch.randint(len(x), (batch_size,))
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            print(f"  {model} step {step + 1} loss {loss.item():.3f}", file=sys.stderr)
    file, key, _ = MODELS[model]
    parameters = json.loads((FACTS / file).read_text())[key]["params"]
    facts = [(name, shape) for name, shape in parameters if len(shape) in (2, 4)]
    weights = [weight.detach() for weight in net.state_dict().values() if weight.ndim in (2, 4)]
    assert [list(weight.shape) for weight in weights] == [shape for _, shape in facts]
    return {name: weight for (name, _), weight in zip(facts, weights, strict=True)}


def weights_of(net: nn.Module) -> list[Tensor]:
    """Return the weights of all Linear and Conv2d layers."""
    return [layer.weight for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


@torch.no_grad()
def plain_loop(net: nn.Module, iterations: int = 10) -> None:
    """Project a network in place as the paper's listing does: layer by layer, kernel position by kernel position."""
    for W in weights_of(net):
        d_out, d_in = W.shape[:2]
        new = torch.zeros_like(W)
        positions = [(i, j) for i in range(W.shape[2]) for j in range(W.shape[3])] if W.ndim == 4 else [()]
        for at in positions:
            X = W[(slice(None), slice(None), *at)].clone()
            X = X.T if d_in > d_out else X
            X = X / X.norm()
            for _ in range(iterations):
                A = X.T @ X
                X = 1.5 * X - 0.5 * X @ A
            new[(slice(None), slice(None), *at)] = X.T if d_in > d_out else X
        new *= (d_out / d_in) ** 0.5 / len(positions)
        W.copy_(new)


def total_dfi(net: nn.Module) -> float:
    """Return the DfI of a network's matrices, divided by their FIRE scales, summed over the network."""
    total = 0.0
    for W in weights_of(net):
        W = W.detach()
        W = W.flatten(2).permute(2, 0, 1) if W.ndim == 4 else W[None]
        W = W / ((W.shape[1] / W.shape[2]) ** 0.5 / len(W))
        total += float(dfi(W).sum())
    return total


def bench(net: nn.Module, rounds: int, threads: int, words: Sequence[str] = ()) -> dict[str, Measured]:
    """Time the plain loop and all methods in turns; with words of `WORDS`, only their methods."""
    prefixes = tuple(WORDS[word] for word in words)
    methods = {name: run for name, run in METHODS.items() if not words or name.startswith(prefixes)}
    runs = methods if words else {"plain loop": plain_loop} | methods
    before = {name: value.clone() for name, value in net.state_dict().items()}
    reached: dict[str, float] = {}

    def project(run: Callable[[nn.Module], object]) -> None:
        net.load_state_dict(before)
        run(net)

    for name, run in runs.items():
        project(run)
        reached[name] = total_dfi(net)
    seconds = seconds_of({name: partial(project, run) for name, run in runs.items()}, rounds, threads)
    not_run = [math.nan] * rounds
    loop, measured_exact = seconds.get("plain loop", not_run), seconds.get("fire_ (exact, measured)", not_run)
    results = {}
    for name, times in seconds.items():
        exact = measured_exact if "measured" in name else seconds.get("fire_ (exact)", not_run)
        to_loop = statistics.median(t / of_loop for t, of_loop in zip(times, loop, strict=True))
        results[name] = Measured(statistics.median(times), to_loop, min(times) / min(exact), reached[name])
    return results


def main() -> None:
    """Print the table of all models and methods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--as-called", action="store_true", help="torchvision's ResNet-18, with the report")
    add("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    add("--weights", default="init", choices=["init", "trained"])
    add("--train-steps", type=int, default=150)
    add("--save", type=Path, help="folder for the trained weights, MODEL-trained.pt")
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=torch.get_num_threads(), help="with one, processor time is measured")
    add("--methods", nargs="+", default=[], choices=list(WORDS), help="these alone, without the plain loop")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads; weights: {args.weights}\n")
    print("| model | method | seconds | / loop | / exact | DfI reached |\n|---|---|---:|---:|---:|---:|")
    for model in ["torchvision-resnet18"] if args.as_called else args.models:
        state = None
        if args.weights == "trained":
            state = trained(model, args.train_steps)
            if args.save:
                args.save.mkdir(parents=True, exist_ok=True)
                torch.save(state, args.save / f"{model}-trained.pt")
        if args.as_called:
            from torchvision.models import resnet18

            torch.manual_seed(0)
            net = resnet18()
        else:
            net = build(model, state)
        for method, measured in bench(net, args.rounds, args.threads, args.methods).items():
            ratios = f"{measured.to_loop:.2f} | {measured.to_exact:.2f}"
            print(f"| {model} | {method} | {measured.seconds:.3f} | {ratios} | {measured.dfi:.2g} |", flush=True)


if __name__ == "__main__":
    keep_output()
    main()
