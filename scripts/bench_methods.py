"""What the methods add to a training step of ResNet-18 on 32x32 images, each part measured alone.

    python scripts/bench_methods.py --batch 256 --threads 2
    python scripts/bench_methods.py --device cuda --rounds 20

A method's cost is the time of everything it does in a step (hooks in the forward pass, penalty and its gradient, the
work after the step), measured separately and repeated, because the difference of two whole steps is smaller than the
machine's noise. On a CPU it is processor time. Printed: milliseconds, and per cent of a plain step of the same run.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from fire_core.methods import Context, Method, Net
from fire_core.methods.cbp import ContinualBackprop
from fire_core.methods.l2init import L2Init
from fire_core.methods.parseval import Parseval
from fire_core.methods.redo import ReDo
from fire_core.methods.snr import SelfNormalizedResets
from vision.models import ResNet18

STEPS_PER_EPOCH = 196  # of CIFAR-10 at batch 256; ReDo acts once an epoch


def milliseconds(work: Callable[[], object], device: torch.device, rounds: int) -> float:
    """Median time of `work`."""
    times = []
    for _ in range(rounds + 1):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter() if device.type == "cuda" else time.process_time()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() if device.type == "cuda" else time.process_time()) - start)
    return 1000 * statistics.median(times[1:])


def seen_inputs(model: nn.Module, x: torch.Tensor) -> dict[nn.Module, torch.Tensor]:
    """The input of every layer, for its hooks."""
    kept: dict[nn.Module, torch.Tensor] = {}
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    handles = [m.register_forward_pre_hook(lambda m, given: kept.update({m: given[0].detach()})) for m in layers]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return kept


def cost(
    method: Method, net: Net, optimizer: torch.optim.Optimizer, kept: dict[nn.Module, torch.Tensor], context: Context
) -> Callable[[], None]:
    """Everything that a method does in a step, as one call; hooks run on stored inputs."""

    def work() -> None:
        penalty = method.penalty(net)
        if penalty is not None:
            optimizer.zero_grad()
            penalty.backward()
        for layer, given in kept.items():
            for hook in layer._forward_pre_hooks.values():
                hook(layer, (given,))
        method.after_step(net, context)

    return work


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    torch.manual_seed(0)
    x = torch.randn(options.batch, 3, 32, 32, device=device)
    y = torch.randint(10, (options.batch,), device=device)
    model = ResNet18(10).to(device)
    net = Net.of({"model": model})
    adam = torch.optim.Adam(model.parameters(), fused=True)

    def step() -> None:
        adam.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        adam.step()

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(inputs), targets)

    plain = milliseconds(step, device, max(1, options.rounds // 3))
    print(
        f"ResNet-18, batch {options.batch}, {device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"{'plain step':12}{plain:10.1f} ms")
    kept = seen_inputs(model, x)
    generator = torch.Generator().manual_seed(0)
    context = Context(0, 1, generator, lambda: iter([(x, y)] * 2), loss, [adam])
    # The largest rates of the paper's settings; maturity 0, so that units are replaced from the first step on.
    methods = {
        "parseval": Parseval(),
        "l2init": L2Init(),
        "cbp": ContinualBackprop(rate=1e-4, maturity=0),
        "snr": SelfNormalizedResets(),
    }
    for name, method in methods.items():
        with method.watch(net):
            spent = milliseconds(cost(method, net, adam, kept, context), device, 3 * options.rounds)
        print(f"{name:12}{spent:10.1f} ms {100 * spent / plain:8.2f} %")
    redo = ReDo(threshold=0.5)
    spent = milliseconds(lambda: redo.after_epoch(net, context), device, 1) / STEPS_PER_EPOCH
    print(f"{'redo':12}{spent:10.1f} ms {100 * spent / plain:8.2f} %   (once in {STEPS_PER_EPOCH} steps)")


if __name__ == "__main__":
    main()
