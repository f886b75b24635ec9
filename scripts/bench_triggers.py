"""What the triggers add to a training step of ResNet-18 and of gpt_tiny, as a share of that step, in one run.

    python scripts/bench_triggers.py --threads 2
    python scripts/bench_triggers.py --device cuda --batch 256 --rounds 20

For each trigger with its default options two times are measured: of an `ask` in which nothing is due, and of all that a
measurement adds (hooks on the model's activations, the `ask` that puts them on and the one that reads them). The sum
for a step is ask + measurement / every. The hooks' part is the time of the hooks themselves on the inputs of a real
pass, because the difference of two passes is smaller than the machine's noise. On a CPU it is processor time.

Readiness is measured once, with the mini-batches that `trigger=readiness` takes by default.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fire_core.methods import Net
from fire_core.triggers import At, Dormancy, Drift, EffectiveRank, Every, GradientNorm, Plateau, Readiness, Trigger
from fire_core.triggers.activations import Seen
from harness.config.trigger import CHOICES
from language.model import GPT
from vision.models import ResNet18

TRIGGERS: dict[str, Callable[[], Trigger]] = {
    "At": lambda: At([10**9]),
    "Every": lambda: Every(10**9),
    "Plateau": lambda: Plateau("loss", patience=10**9),
    "GradientNorm": lambda: GradientNorm(above=1e9),
    "Dormancy": lambda: Dormancy(above=1.0),
    "EffectiveRank": lambda: EffectiveRank(below=0.0),
    "Drift": lambda: Drift(above=1e9),
    "all of them": lambda: (
        At([10**9]) | Every(10**9) | Plateau("loss", patience=10**9) | GradientNorm(above=1e9) | Dormancy(above=1.0)
        | EffectiveRank(below=0.0) | Drift(above=1e9)
    ),
}  # fmt: skip
EVERY = 100  # steps between two measurements: the triggers' default
SAMPLES = CHOICES["readiness"]["samples"]


class Clock:
    """Processor time on a CPU; on a GPU wall-clock time, waited for."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def __call__(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()


def hook_seconds(model: nn.Module, inputs: dict[nn.Module, Tensor], clock: Clock) -> float:
    """The time of the hooks that are on the model now, on inputs kept from a pass."""
    begin = clock()
    for layer, x in inputs.items():
        for hook in layer._forward_pre_hooks.values():
            hook(layer, (x,))
    return clock() - begin


def inputs_of(model: nn.Module, pass_: Callable[[], object]) -> dict[nn.Module, Tensor]:
    """What each layer that a hook may sit on reads in a pass."""
    kept: dict[nn.Module, Tensor] = {}
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    handles = [m.register_forward_pre_hook(lambda m, given: kept.update({m: given[0].detach()})) for m in layers]
    pass_()
    for handle in handles:
        handle.remove()
    return kept


def cost(
    trigger: Trigger, model: nn.Module, loss: Tensor, inputs: dict[nn.Module, Tensor], rounds: int, clock: Clock
) -> tuple[float, float]:
    """Seconds of an idle `ask`, and of all that one measurement adds."""
    trigger.start(model, metrics=["loss"])
    idle, measured, step = [], [], 0
    watching = any(isinstance(part, Seen) for part in getattr(trigger, "parts", [trigger]))
    for _ in range(rounds + 1):
        begin, first = clock(), step
        while (step + 1) % EVERY:
            step += 1
            trigger.ask(step, model, loss=loss)
        idle.append((clock() - begin) / (step - first))
        step += 1
        begin = clock()
        trigger.ask(step, model, loss=loss)
        spent = clock() - begin
        spent += hook_seconds(model, inputs, clock)
        if watching:
            step += 1
            begin = clock()
            trigger.ask(step, model, loss=loss)
            spent += clock() - begin
        measured.append(spent)
    return statistics.median(idle[1:]), statistics.median(measured[1:])


def measure(
    name: str,
    model: nn.Module,
    forward: Callable[[], Tensor],
    small: Callable[[], Tensor],
    mini_batches: int,
    rounds: int,
    clock: Clock,
) -> None:
    """Print the table of one model; `small` is the loss of a mini-batch of readiness."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.detach()

    times = []
    for _ in range(rounds + 1):
        begin = clock()
        loss = step()
        times.append(clock() - begin)
    plain = statistics.median(times[1:])
    inputs = inputs_of(model, forward)
    print(f"\n{name}: a step takes {1000 * plain:.1f} ms\n{'trigger':14} {'ask':>9} {'measurement':>12}   per step")
    for label, make in TRIGGERS.items():
        ask, measurement = cost(make(), model, loss, inputs, rounds, clock)
        share = (ask + max(0.0, measurement - ask) / EVERY) / plain
        print(f"{label:14} {1e6 * ask:6.1f} us {1000 * measurement:9.2f} ms {share:9.3%}")
    trigger, begin = Readiness(lambda: (small() for _ in range(mini_batches)), below=1e-9), clock()
    trigger.measure(Net({"model": model}, {}))
    spent = clock() - begin
    share = spent / CHOICES["readiness"]["every"] / plain
    print(f"{'Readiness':14} {'':9} {1000 * spent:9.2f} ms {share:9.3%}  of {mini_batches} x {SAMPLES}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--batch", type=int, default=128, help="images for ResNet-18")
    parser.add_argument("--sequences", type=int, default=8, help="for gpt_tiny, of 128 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mini-batches", type=int, default=CHOICES["readiness"]["batches"], help="of readiness")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device, clock = torch.device(options.device), Clock(torch.device(options.device))
    print(f"{device.type}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    torch.manual_seed(0)
    gpt = GPT(n_layer=4, n_head=4, n_embd=128, block_size=128, vocab_size=256).to(device)
    tokens = torch.randint(256, (options.sequences + SAMPLES, 129), device=device)

    def next_token(rows: slice) -> Tensor:
        loss: Tensor = gpt(tokens[rows, :-1], tokens[rows, 1:])[1]
        return loss

    some, last = slice(options.sequences), slice(options.sequences, None)
    few = options.mini_batches
    name = f"gpt_tiny, {options.sequences} sequences"
    measure(name, gpt, lambda: next_token(some), lambda: next_token(last), few, 4 * options.rounds, clock)
    resnet = ResNet18(10).to(device)
    images = options.batch + SAMPLES
    x, y = torch.randn(images, 3, 32, 32, device=device), torch.randint(10, (images,), device=device)

    def entropy(rows: slice) -> Tensor:
        return F.cross_entropy(resnet(x[rows]), y[rows])

    some, last = slice(options.batch), slice(options.batch, None)
    name = f"ResNet-18, {options.batch} images"
    measure(name, resnet, lambda: entropy(some), lambda: entropy(last), few, options.rounds, clock)


if __name__ == "__main__":
    main()
