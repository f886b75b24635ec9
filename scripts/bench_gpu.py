"""Measure on a GPU the time and peak memory of training steps, of `fire_`, and of comparable operations.

    python -m scripts.bench_gpu --out b_costs.csv            about a minute on one GPU
    python -m scripts.bench_gpu --out b_costs.csv --long     compiled steps, width 16, TF32 and larger matrices too

Each row is written when it is measured: what, units per second, seconds of one call, peak memory in MiB, speed relative
to the first row of its block. The speeds of several processes are added up.
"""

import argparse
import contextlib
import csv
import importlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

import vision.train as trainer
from fire_core import fire_
from fire_core.weights.optimizers import set_rate_factor
from harness.program.by_name import program_of
from harness.program.jobs import compose
from language.model import GPT
from scripts.bench_vision import synthetic
from vision.graph import GraphedStep
from vision.learner import Learner
from vision.phase import batches
from vision.task import Task, compiled

NOTES = {"sac": ", environment without physics"}
COLUMNS = ("what", "per_second", "unit", "seconds", "peak_mib", "ratio", "card")


@dataclass
class Costs:
    """The table of costs, which is written after each row.

    Attributes:
        out: the csv file.
        device: the device that is measured.
        small: whether this is a rehearsal with small sizes.
        each: seconds for which an operation is repeated.
        longer: seconds for which the steps of a language model and of agents are repeated.
        baseline: seconds of the first row of the block; 0 before it.
        rows: the rows so far.
    """

    out: Path
    device: torch.device
    small: bool
    each: float
    longer: float
    baseline: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Begin a block of rows, whose ratios are relative to the first of them."""
        self.baseline = 0.0
        yield

    def measure(
        self, what: str, unit: str, amount: float, operation: Callable[[], object], seconds: float | None = None
    ) -> None:
        """Measure an operation that does `amount` units in a call; if it cannot run here, its row says why."""
        try:
            spent, peak = seconds_of(operation, self.each if seconds is None else seconds, self.device)
        except (RuntimeError, ImportError, ValueError) as error:
            self.write(what, unit, None, None, None, note=str(error).split("\n")[0][:80])
            return
        self.write(what, unit, amount / spent, spent, peak)

    def write(
        self, what: str, unit: str, speed: float | None, seconds: float | None, peak: float | None, note: str = ""
    ) -> None:
        """Append a row and write the table."""
        self.baseline = self.baseline or seconds or 0.0
        ratio = self.baseline / seconds if seconds else None
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        values = (f"{what}{': ' + note if note else ''}", speed, unit, seconds, peak, ratio, name)
        shown = [f"{value:.6g}" if isinstance(value, float) else value for value in values]
        self.rows.append(dict(zip(COLUMNS, shown, strict=True)))
        with self.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        print(*(value for value in shown if value is not None), flush=True)


def seconds_of(operation: Callable[[], object], seconds: float, device: torch.device) -> tuple[float, float]:
    """Return the mean seconds of a call and the peak memory in MiB.

    After one call that warms up, the operation is called for `seconds`, at least once.
    """

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    operation()
    wait()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began, calls = time.perf_counter(), 0
    while calls < 1 or time.perf_counter() - began < seconds:
        operation()
        calls += 1
        if calls % 10 == 0:
            wait()  # otherwise calls are queued faster than the GPU does them
    wait()
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0
    return (time.perf_counter() - began) / calls, peak


# ------------------------------------------------------------------------------------------------------------- images


def resnet_step(small: bool, device: str, graph: bool, *options: str) -> tuple[Callable[[], object], int]:
    """Return a function that makes a training step of ResNet-18 on CIFAR's shape, and the images in a step."""
    width, batch = (4, 32) if small else (64, 256)
    words = (
        *("experiment=fig2a_cifar10", "benchmark=continual", "benchmark.chunks=1", "dataset=digits"),
        *(f"model.width={width}", f"batch_size={batch}"),
        *("tracker=none", "progress=false", f"device={device}", "threads=1", *options),
    )
    config = compose("vision", words)
    task = Task.from_config(config, synthetic(4 * batch, 32, 10))
    learner = Learner.new(task)
    trainer.begin_phase(task, learner, 0, None)
    if config.compile != "off":
        learner.forward = compiled(learner.model, config.compile)
    endless_batches = iterate(task)
    graphed: list[GraphedStep] = []

    def once() -> None:
        batch_of_step = next(endless_batches)
        set_rate_factor(learner.optimizer, 1.0)
        if graph:
            if not graphed:
                graphed.append(GraphedStep(task, learner, trainer.train_step, batch_of_step))
            graphed[0](batch_of_step)
        else:
            trainer.train_step(task, learner, batch_of_step, False)

    return once, batch


def iterate(task: Task) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield full batches of phase 0 without end."""
    while True:
        yield from (batch for batch in batches(task, 0) if len(batch[1]) == task.config.batch_size)


def serve(small: bool, device: str, graph: bool, seconds: float, ready: Any, results: Any) -> None:
    """Make steps in one of several processes once all are ready; put its images per second into `results`."""
    once, images = resnet_step(small, device, graph, *([] if small else ["precision=bfloat16"]))
    once()
    ready.wait()
    spent, _ = seconds_of(once, seconds, torch.device(device))
    results.put(images / spent)


def measure_processes(costs: Costs, graph: bool, count: int) -> None:
    """Measure the total speed of several processes."""
    spawn = multiprocessing.get_context("spawn")
    ready, results = spawn.Barrier(count), spawn.Queue()
    arguments = (costs.small, costs.device.type, graph, costs.each, ready, results)
    processes = [spawn.Process(target=serve, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(180)
    what = f"resnet18 {'graph' if graph else 'eager'}, processes {count}"
    if any(process.exitcode for process in processes):
        costs.write(what, "images", None, None, None, note="a process failed")
        return
    speed = sum(results.get() for _ in processes)
    images = 32 if costs.small else 256
    costs.write(what, "images", speed, images / speed, None)


# ----------------------------------------------------------------------------------------------------------- matrices


def measure_matrix(costs: Costs, rows: int, columns: int, with_svd: bool) -> None:
    """Measure `fire_` on one matrix, Muon's five steps, and with `with_svd` an SVD, which takes seconds."""
    layer = nn.Linear(columns, rows, bias=False, device=costs.device)
    start = layer.weight.detach().clone()
    shape = f"{rows} x {columns}"

    def act(**options: Any) -> Callable[[], object]:
        def once() -> None:
            with torch.no_grad():
                layer.weight.copy_(start)
            fire_(layer, layout="all", measure=False, **options)

        return once

    gradient = torch.randn_like(start)
    muon = torch.optim.Muon([layer.weight], lr=1e-3)

    def muon_step() -> None:
        layer.weight.grad = gradient
        muon.step()

    with costs.block():
        costs.measure(f"fire_ {shape}, paper", "acts", 1, act())
        costs.measure(f"fire_ {shape}, exact", "acts", 1, act(solver="exact"))
        costs.measure(f"fire_ {shape}, half", "acts", 1, act(blend=0.5))
        costs.measure(f"Muon's five steps {shape}", "steps", 1, muon_step)
        if with_svd:
            costs.measure(f"torch.linalg.svd {shape}", "acts", 1, lambda: torch.linalg.svd(start, full_matrices=False))


# ------------------------------------------------------------------------------------------------- language and agents


def gpt_step(small: bool, device: torch.device) -> tuple[Callable[[], object], int]:
    """Return a function that makes a training step of GPT-0.1B in bfloat16, and the tokens in a step."""
    model = (GPT(256, 32, 1, 2, 32) if small else GPT()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    batch, block = (2, 32) if small else (16, 1024)
    tokens = torch.randint(256, (batch, block + 1), device=device)

    def once() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])[1]
        assert loss is not None
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return once, batch * block


class Still(gymnasium.Env[Any, Any]):
    """Humanoid's spaces without its physics, so that SAC's updates are measured where MuJoCo is not installed."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (348,))
    action_space = gymnasium.spaces.Box(-0.4, 0.4, (17,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.seen(), 1.0, False, False, {}

    def seen(self) -> Any:
        """Return a random observation, (348,) float32."""
        return self.np_random.uniform(-1.0, 1.0, 348).astype("float32")


gymnasium.register("Still-v0", lambda **_: Still(), max_episode_steps=1000)


def agent_steps(program: str, *options: str) -> Callable[[], object]:
    """Return a function that makes ten decisions of an agent with their updates; the first random ones are done."""
    module = importlib.import_module(f"rl.{program}.train")
    task = program_of(program).make_task(compose(program, (*options, "tracker=none", "progress=false")))
    learner = importlib.import_module(f"rl.{program}.learner").Learner.new(task)
    module.begin_phase(task, learner, 0, None)
    while not learner.updates:
        module.interact(task, learner, False)

    def once() -> None:
        for _ in range(10):
            module.interact(task, learner, False)

    return once


def main() -> None:
    """Measure everything, the most important first, as the time may end before all is done."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, small")
    parser.add_argument("--long", action="store_true")
    args = parser.parse_args()
    small = args.rehearse
    device = torch.device("cpu" if small else "cuda")
    costs = Costs(args.out, device, small, each=0.05 if small else 2.0, longer=0.05 if small else 5.0)
    half = () if small else ("precision=bfloat16",)
    graphs = (False,) if small else (False, True)  # a CPU has no CUDA graphs
    with costs.block():
        for graph in graphs:
            once, images = resnet_step(small, device.type, graph, *half)
            costs.measure(f"resnet18 {'graph' if graph else 'eager'}", "images", images, once)
        for graph in graphs:
            for count in (2, 3) if graph else (3,):
                measure_processes(costs, graph, count)
    with costs.block():
        once, tokens = gpt_step(small, device)
        costs.measure("gpt-0.1b step" if not small else "gpt step, tiny", "tokens", tokens, once, costs.longer)
    scale = ("scale=smoke",) if small else ("scale=paper",)
    agents: dict[str, tuple[str, ...]] = {
        "dqn": ("env=asterix", *scale, "learning_starts=200", "replay.capacity=20000"),
        "sac": ("env=humanoid", "env.task=Still-v0", *scale, "random_steps=100", "replay_size=20000"),
    }
    for program, options in agents.items():
        with costs.block():
            try:
                steps = agent_steps(program, *options, f"device={device.type}")
            except Exception as error:  # a package may be missing where a GPU is lent
                costs.write(program, "decisions", None, None, None, note=str(error).split("\n")[0][:80])
                continue
            what = f"{program} at the {'smallest' if small else 'paper'} size{NOTES.get(program, '')}"
            costs.measure(what, "decisions", 10, steps, costs.longer)
    side = 64 if small else 4096
    measure_matrix(costs, side, side, with_svd=True)
    if args.long:
        with costs.block():
            for name, options in {
                "compiled": ("compile=default", *half),
                "TF32": (),
                "width 16": ("model.width=16", *half),
            }.items():
                once, images = resnet_step(small, device.type, False, *options)
                costs.measure(f"resnet18 {name}", "images", images, once)
        measure_matrix(costs, 8192, 28672, with_svd=False)


if __name__ == "__main__":
    main()
