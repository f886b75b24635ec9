"""Does what triggers measure say how well a network will learn? The validation of docs/results/triggers.md.

    python -m scripts.triggers_signals out=FOLDER [smoke=true]

At the end of each task of a stream, the network's signals are taken as a trigger would see them, on a batch of the task
that ends. Then a copy of it is trained for 100 steps on a task that is not in the stream, with a new optimizer: the
probe. One line of `signals.jsonl` a checkpoint; started again, it goes on with the next run.
"""

import copy
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fire_core.methods import Net
from fire_core.triggers import Dormancy, Drift, EffectiveRank, GradientNorm
from harness.run import provenance
from harness.training import seeding
from scripts.triggers_runs import Runs
from scripts.triggers_streams import METHODS, STREAMS
from vision.learner import Learner
from vision.phase import batches
from vision.task import Task
from vision.train import begin_phase, train_step

BATCH = 256  # images on which a trigger's signals are taken
PROBE = 100  # steps
SMALL, DRAWS = 4, 128  # mini-batches of optimization readiness
SEEDS = range(10)


def checkpoints(task: Task) -> list[dict[str, Any]]:
    """A row for each task of a run."""
    found, learner = [], Learner.new(task)
    for index, phase in enumerate(task.phases[:-1]):
        begin_phase(task, learner, index, None)
        for images, labels in batches(task, index):
            train_step(task, learner, (images, labels), acts=False)
            learner.phase_step += 1
            learner.step += 1
        # The last task is kept for the probe; it is another one than any that the network has seen.
        found.append({"step": learner.step, **signals(task, learner, index), **probe(task, learner)})
        assert learner.phase_step == phase.steps(task.config.batch_size)
    return found


def signals(task: Task, learner: Learner, index: int) -> dict[str, float]:
    """What triggers measure, on the task that ends, and readiness on the probe's task."""
    images, labels = first_images(task, index)
    model, net = copy.deepcopy(learner.model), Net({"model": learner.model}, {}, learner.net.layout)
    measured = {}
    for trigger in (Dormancy(above=1), EffectiveRank(below=0)):
        trigger.start(net, probe=lambda: learner.model(images))
        measured[trigger.name] = number(trigger.measure(net))
    drift = Drift(above=1)
    drift.baseline = 0.0  # so that it is the deviation itself
    measured["deviation"] = number(drift.measure(net))
    loss = task.loss(model(images), labels)
    loss.backward()
    measured["loss"] = loss.item()
    measured["gradient_norm"] = number(GradientNorm(above=1).measure(Net({"model": model}, {})))
    return measured | {"readiness": readiness(task, learner, len(task.phases) - 1)}


def number(value: Tensor | None) -> float:
    """A measurement."""
    assert value is not None
    return float(value)


def first_images(task: Task, index: int) -> tuple[Tensor, Tensor]:
    """The first training images of a task."""
    return task.train_batch(index, torch.from_numpy(task.phases[index].train[:BATCH]))


def readiness(task: Task, learner: Learner, index: int) -> float:
    """Optimization readiness on a task: |g|^2 / loss times |g|^2 / E |g_B|^2.

    g is the gradient of all samples, g_B that of a mini-batch. For a loss with an L-Lipschitz gradient, one step of
    stochastic gradient descent at its best rate lowers the expected loss by at least this share / 2 L (from
    E f(x - r g_B) <= f - r |g|^2 + r^2 L E|g_B|^2 / 2). Wang et al., "Predicting plasticity in deep continual
    learning", arXiv 2605.09044; the formula is from two public repositories that quote it, not from the paper.
    """
    model = copy.deepcopy(learner.model)
    everything = torch.from_numpy(task.phases[index].train)

    def gradient(pick: Tensor) -> tuple[float, float]:
        model.zero_grad()
        images, labels = task.train_batch(index, pick)
        loss = task.loss(model(images), labels)
        loss.backward()
        return loss.item(), sum(p.grad.square().sum().item() for p in model.parameters() if p.grad is not None)

    generator = seeding.generator(task.config.seed, "readiness", learner.step)
    loss, whole = gradient(everything)
    picks = (torch.randint(len(everything), (SMALL,), generator=generator) for _ in range(DRAWS))
    squares = sum(gradient(everything[pick])[1] for pick in picks) / DRAWS
    return whole / loss * whole / squares


def probe(task: Task, learner: Learner) -> dict[str, float]:
    """How well a copy learns a new task within some steps: the loss at their end, and their mean accuracy."""
    one = dataclasses.replace(learner, net=Net.of({"model": copy.deepcopy(learner.model)}, learner.net.layout))
    one.forward, one.phase = one.model, len(task.phases) - 1
    one.renew_optimizers(task)
    one.clear_sums()
    for step, (images, labels) in enumerate(batches(task, one.phase)):
        if step == PROBE:
            break
        train_step(task, one, (images, labels), acts=False)
    with torch.no_grad():
        images, labels = task.train_batch(one.phase, torch.from_numpy(task.phases[one.phase].train))
        return {
            "probe_loss": task.loss(one.model(images), labels).item(),
            "probe_accuracy": one.correct.item() / one.seen,
        }


def main(out: Path, smoke: bool = False) -> None:
    """All streams and seeds, under each method at known boundaries and without an intervention."""
    runs, file = Runs(out, smoke), out / "signals.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    done = {(row["stream"], row["method"], row["seed"]) for row in map(json.loads, lines)}
    for seed in SEEDS[:2] if smoke else SEEDS:
        for stream in (name for name, kind in STREAMS.items() if kind.program == "vision"):
            for method in ("base", *(METHODS[:1] if smoke else METHODS)):
                if (stream, method, seed) in done:
                    continue
                config = runs.compose(stream, method)
                config.seed = seed
                task, head = Task.from_config(config), {"stream": stream, "method": method, "seed": seed}
                rows = "".join(json.dumps(head | row) + "\n" for row in checkpoints(task))
                with open(file, "a") as kept:  # one write, so that a kill leaves whole runs
                    kept.write(rows)
                provenance.write(file, provenance.of_process("vision"), stream, more=True)


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(Path(given["out"]), given.get("smoke") == "true")
