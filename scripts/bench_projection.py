"""How fast is the projection? Ratios to the plain loop of the paper's listing, measured in one interleaved run.

    python scripts/bench_projection.py --as-called --threads 2          # torchvision's ResNet-18, as a user calls it
    python scripts/bench_projection.py                                  # every model of the paper, initial weights
    python scripts/bench_projection.py --weights hardened --models vgg16 gpt
    python scripts/bench_projection.py --weights trained --models resnet18 vgg16 vit --train-steps 150
    python scripts/bench_projection.py --models resnet18 --checkpoint runs/.../model.pt

The plain loop iterates over layers and kernel positions in Python: cubic, Frobenius, 10 steps. `fire_` projects the
same modules in batches. Ratios are medians over rounds of (method / loop), both timed in the same round, so that other
load on the machine affects both. Memory is the peak beyond the weights, in a new process.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from fire_core import dfi, fire_

SHORTEST = 0.05  # shortest time to measure, in seconds, over several calls if needed
FACTS = Path(__file__).parents[1] / "tests" / "golden"
MODELS = {  # name: (file, key, regular expression for the parameters to project)
    "resnet18": ("models_facts.json", "resnet18_cifar10", ""),
    "vgg16": ("models_facts.json", "vgg16_tinyimagenet", ""),
    "vit": ("models_facts.json", "tinyvit_cifar100", "to_[qk]"),
    "vit-all": ("models_facts.json", "tinyvit_cifar100", ""),
    "gpt": ("models_facts.json", "gpt_0.1b_bias_false", ""),
    "gpt-head": ("models_facts.json", "gpt_0.1b_bias_false", "wte"),
    "dqn": ("dqn_facts.json", "qnetwork", "^conv"),
    "dqn-all": ("dqn_facts.json", "qnetwork", ""),
}
METHODS: dict[str, Callable[[nn.Module], object]] = {
    "fire_ (paper)": lambda net: fire_(net, "newton_schulz", 10, measure=False),
    "fire_ (paper, measured)": lambda net: fire_(net, "newton_schulz", 10),
    "fire_ (exact)": lambda net: fire_(net, "exact", measure=False),
    "fire_ (exact, measured)": lambda net: fire_(net, "exact"),
}
AS_CALLED = ["fire_ (paper, measured)", "fire_ (exact, measured)", "fire_ (paper)", "fire_ (exact)"]


def shapes(model: str) -> dict[str, list[int]]:
    """Names and shapes of the weights that the paper projects; fused qkv as its three blocks."""
    file, key, part = MODELS[model]
    found: dict[str, list[int]] = {}
    for name, shape in json.loads((FACTS / file).read_text())[key]["params"]:
        if len(shape) not in (2, 4) or name.endswith("wpe.weight") or not name.endswith("weight"):
            continue
        if not re.search(part, name):
            continue
        if "c_attn" in name:
            d = shape[1]
            found |= {f"{name}.{block}": [shape[0] // 3, d] for block in "qkv"}
        else:
            found[name] = shape
    return found


def build(model: str, weights: str, state: dict[str, Tensor] | None, device: str) -> nn.Module:
    """A bag of Linear and Conv2d layers with the model's weights."""
    torch.manual_seed(0)
    layers = []
    for name, shape in shapes(model).items():
        with torch.device(device):
            layer = (
                nn.Linear(shape[1], shape[0], bias=False)
                if len(shape) == 2
                else nn.Conv2d(shape[1], shape[0], (shape[2], shape[3]), bias=False)
            )
        with torch.no_grad():
            if state is not None:
                layer.weight.copy_(weight_of(state, name).to(device))
            elif weights == "hardened":
                harden_(layer.weight)
        layers.append(layer)
    return nn.Sequential(*layers)


@torch.no_grad()
def harden_(weight: Tensor) -> None:
    """Make a weight ill-conditioned, in place, as long training does: input directions fade over two decades."""
    fade = torch.logspace(0, -2, weight.shape[1], device=weight.device)
    weight.mul_(fade.view(1, -1, *[1] * (weight.ndim - 2)))


def weight_of(state: dict[str, Tensor], name: str) -> Tensor:
    if name in state:
        return state[name]
    fused, _, block = name.rpartition(".")
    if fused in state:
        return state[fused].chunk(3)["qkv".index(block)]
    raise SystemExit(f"the checkpoint has no {name!r}")


def renamed(state: dict[str, Tensor], model: str) -> dict[str, Tensor]:
    """The weights under the names of the facts, where this repository's network has others: same order, same shapes."""
    file, key, _ = MODELS[model]
    facts = [(n, tuple(s)) for n, s in json.loads((FACTS / file).read_text())[key]["params"] if len(s) in (2, 4)]
    weights = [value for value in state.values() if value.ndim in (2, 4)]
    if all(name in state for name, _ in facts) or [s for _, s in facts] != [tuple(w.shape) for w in weights]:
        return state
    return {name: weight for (name, _), weight in zip(facts, weights, strict=True)}


def trained(model: str, steps: int) -> dict[str, Tensor]:
    """The paper's network after a short training on sklearn's digits, enlarged; names as in the facts."""
    from sklearn.datasets import load_digits

    import vision.models as zoo

    nets: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
        "resnet18": (lambda: zoo.ResNet18(num_classes=10), 16, 32),
        "vgg16": (lambda: zoo.VGG16(num_classes=200, image_size=64), 64, 16),
        "vit": (lambda: zoo.ViT(num_classes=100, image_size=32), 32, 32),
    }
    build_net, size, batch_size = nets[model.removesuffix("-all")]
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
    return {name: value.detach() for name, value in net.state_dict().items()}


def weights_of(net: nn.Module) -> list[Tensor]:
    return [layer.weight for layer in net.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


@torch.no_grad()
def plain_loop(net: nn.Module, iterations: int = 10) -> None:
    """The plain projection: layer by layer, kernel position by kernel position."""
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


def loop_flops(net: nn.Module, iterations: int = 10) -> float:
    total = 0.0
    for shape in (W.shape for W in weights_of(net)):
        m, n = max(shape[:2]), min(shape[:2])
        total += 4.0 * m * n * n * iterations * (shape[2] * shape[3] if len(shape) == 4 else 1)
    return total


def total_dfi(net: nn.Module) -> float:
    """DfI of the unscaled matrices, summed over the model."""
    total = 0.0
    for W in weights_of(net):
        W = W.detach()
        W = W.flatten(2).permute(2, 0, 1) if W.ndim == 4 else W[None]
        W = W / ((W.shape[1] / W.shape[2]) ** 0.5 / len(W))
        total += float(dfi(W).sum())
    return total


def matmul_peak(device: str, now: Callable[[], float]) -> float:
    """GFLOP/s of this machine's float32 matmul, the best of ten."""
    n = 2048 if device == "cpu" else 8192
    a = torch.randn(n, n, device=device)
    best = min(clock(lambda: a @ a, device, now) for _ in range(10))
    return 2 * n**3 / best / 1e9


def clock(run: Callable[[], object], device: str, now: Callable[[], float] = time.perf_counter) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = now()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return now() - start


class Row(TypedDict):
    """What is printed of a method."""

    method: str
    seconds: float
    ratio: float
    best: float
    dfi: float
    gflops: float


def repeat(run: Callable[[nn.Module], object], net: nn.Module, times: int) -> None:
    for _ in range(times):
        run(net)


def bench(net: nn.Module, device: str, repeats: int, methods: list[str], now: Callable[[], float]) -> list[Row]:
    runs = {"plain loop": plain_loop} | {name: METHODS[name] for name in methods}
    before = {name: value.clone() for name, value in net.state_dict().items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    reached: dict[str, float] = {}
    calls: dict[str, int] = {}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            net.load_state_dict(before)
            if turn == 0:  # warm-up, and the result to inspect
                taken = clock(partial(repeat, run, net, 1), device, now)
                reached[name] = total_dfi(net)
                calls[name] = max(1, round(SHORTEST / max(taken, 1e-6)))
            else:
                taken = clock(partial(repeat, run, net, calls[name]), device, now)
                seconds[name].append(taken / calls[name])
    net.load_state_dict(before)
    loop = seconds["plain loop"]
    return [
        {
            "method": name,
            "seconds": statistics.median(taken),
            "ratio": statistics.median(t / b for t, b in zip(taken, loop, strict=True)),
            "best": min(taken) / min(loop),
            "dfi": reached[name],
            "gflops": loop_flops(net) / statistics.median(taken) / 1e9,
        }
        for name, taken in seconds.items()
    ]


def high_water() -> tuple[int, int]:
    """Resident memory of this process, current and peak, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024, int(lines["VmHWM"].split()[0]) * 1024


def peak_memory(model: str, method: str, weights: str) -> None:
    """In a separate process: print the peak in MB beyond the weights."""
    net = build(model, weights, None, "cpu")
    run = plain_loop if method == "plain loop" else METHODS[method]
    run(nn.Sequential(nn.Linear(512, 512, bias=False)))  # what LAPACK and BLAS allocate once does not count
    Path("/proc/self/clear_refs").write_text("5")
    before, _ = high_water()
    run(net)
    print((high_water()[1] - before) / 1e6)


def memory_of(model: str, method: str, weights: str) -> str:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        return "?"
    command = [sys.executable, __file__, "--measure-memory", model, method, "--weights", weights]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{float(done.stdout):.0f}" if done.returncode == 0 else "?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--as-called", action="store_true", help="torchvision's ResNet-18, two threads, with the report"
    )
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--weights", default="init", choices=["init", "hardened", "trained"])
    parser.add_argument(
        "--checkpoint", type=Path, help="state dict (.pt, read with weights_only) of the one model named"
    )
    parser.add_argument("--methods", nargs="+", default=["fire_ (paper)", "fire_ (exact)"], choices=list(METHODS))
    parser.add_argument("--train-steps", type=int, default=150)
    parser.add_argument("--save", type=Path, help="folder for the trained weights, MODEL-trained.pt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: processor time, for busy machines"
    )
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--measure-memory", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.measure_memory:
        model, method = args.measure_memory
        return peak_memory(model, method, weights="init" if args.weights == "trained" else args.weights)
    now = time.perf_counter if args.clock == "wall" else time.process_time
    peak = matmul_peak(args.device, now)
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads, float32 matmul peak {peak:.0f} GFLOP/s")
    print(
        f"weights: {args.checkpoint or args.weights}; {args.repeats} interleaved rounds, medians of {args.clock} time\n"
    )
    print("| model | method | seconds | / loop | best / best | DfI reached | loop's GFLOP/s | of peak | extra MB |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for model in ["torchvision-resnet18"] if args.as_called else args.models:
        state = None
        if args.checkpoint:
            state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        elif args.weights == "trained":
            state = trained(model, args.train_steps)
            if args.save:
                args.save.mkdir(parents=True, exist_ok=True)
                torch.save(state, args.save / f"{model}-trained.pt")
        if args.as_called:
            from torchvision.models import resnet18

            torch.manual_seed(0)
            net = resnet18().to(args.device)
        else:
            net = build(model, args.weights, state and renamed(state, model), args.device)
        methods = AS_CALLED if args.as_called else args.methods
        for row in bench(net, args.device, args.repeats, methods, now):
            memory = "" if args.no_memory or args.as_called else memory_of(model, row["method"], args.weights)
            print(
                f"| {model} | {row['method']} | {row['seconds']:.3f} | {row['ratio']:.2f} | {row['best']:.2f} "
                f"| {row['dfi']:.2g} | {row['gflops']:.0f} | {row['gflops'] / peak:.0%} | {memory} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
