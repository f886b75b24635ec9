"""Which `scale=` to take: every scale of `fire_` on small networks that have lost plasticity, on sklearn's digits.

    python scripts/compare_scales.py                # the table of docs/scales.md, about a minute on one core
    python scripts/compare_scales.py --seeds 2      # quicker

A network learns random labels of a third of the images until it knows them by heart, is projected, and then learns the
true labels of all training images for a few epochs. Compared: test accuracy after the first of these epochs and after
the last, for a fresh network, the untouched one, and each scale. And warm: a network that knows a tenth of the images
is projected; its test accuracy right before and right after says how much of what it knows stays.

Means over seeds, with the standard deviation over seeds of the last epoch's accuracy.
"""

import argparse
import copy
import statistics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fire_core import fire_
from fire_core.reinit.scales import SCALES

Data = tuple[Tensor, Tensor]
NETWORKS = ("plain", "layer norm")
COLUMNS = ("after random labels: epoch 1", "last epoch", "sd", "warm: before", "right after")


def digits() -> tuple[Data, Data]:
    """Training and test images, (n, 64), and labels."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 8 - 1, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (x[order[:1200]], y[order[:1200]]), (x[order[1200:]], y[order[1200:]])


def network(kind: str, seed: int) -> nn.Sequential:
    """64 -> 128 -> 128 -> 128 -> 10, torch's default initialisation."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for width in (64, 128, 128):
        layers += [nn.Linear(width, 128), *([nn.LayerNorm(128)] if kind == "layer norm" else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(128, 10))


def train(net: nn.Module, data: Data, epochs: int, seed: int) -> None:
    x, y = data
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(100):
            loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.no_grad()
def accuracy(net: nn.Module, data: Data) -> float:
    x, y = data
    right: Tensor = net(x).argmax(1) == y
    return right.float().mean().item()


def compare(kind: str, seed: int, epochs: int) -> dict[str, list[float]]:
    """For each intervention the columns of the table without the deviation."""
    training, test = digits()
    x, y = training
    fresh = network(kind, seed)
    init = copy.deepcopy(fresh.state_dict())
    random_labels = torch.randint(10, (400,), generator=torch.Generator().manual_seed(seed))
    stiff, warm = copy.deepcopy(fresh), copy.deepcopy(fresh)
    train(stiff, (x[:400], random_labels), 150, seed)
    train(warm, (x[:120], y[:120]), 60, seed)
    rows = {}
    for name in ("fresh network", "untouched", *SCALES):
        net, knows = copy.deepcopy(fresh if name == "fresh network" else stiff), copy.deepcopy(warm)
        if name in SCALES:
            fire_(net, "exact", scale=name, init=init, measure=False)
            fire_(knows, "exact", scale=name, init=init, measure=False)
        train(net, training, 1, seed)
        first = accuracy(net, test)
        train(net, training, epochs - 1, seed + 1)
        now = accuracy(fresh if name == "fresh network" else knows, test)
        rows[name] = [first, accuracy(net, test), accuracy(warm, test), now]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    if options.seeds < 1 or options.epochs < 2:
        raise SystemExit("error: --seeds must be at least 1 and --epochs at least 2")
    torch.set_num_threads(1)
    print(f"{options.seeds} seeds, {options.epochs} epochs, exact projection of all layers, test accuracy in %\n")
    print(f"| network | scale | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * len(COLUMNS)}")
    for kind in NETWORKS:
        runs = [compare(kind, seed, options.epochs) for seed in range(options.seeds)]
        for name in runs[0]:
            first, last, before, after = (100 * statistics.mean(run[name][i] for run in runs) for i in range(4))
            spread = 100 * statistics.stdev(run[name][1] for run in runs) if len(runs) > 1 else 0.0
            print(f"| {kind} | {name} | {first:.1f} | {last:.1f} | {spread:.1f} | {before:.1f} | {after:.1f} |")


if __name__ == "__main__":
    main()
