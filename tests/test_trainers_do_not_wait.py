"""A trainer's step neither reads a number from the device nor copies between devices: on a GPU either makes it wait.

The networks, their batches and the optimizer are on torch's `meta` device, which stands in for a GPU: its tensors have
no numbers, so that a read fails, and a copy from or to the CPU shows as one between two devices.
"""

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.programs import DQN, LANGUAGE, SAC, VISION, Program

META = torch.device("meta")
STEPS = 10
# Adam's fused kernel has no shapes without numbers; the step counter of the others stands on the CPU, and is not read.
PLAIN_ADAM = ("optimizer.fused=false", "+optimizer.foreach=true")


class Crossings(TorchDispatchMode):
    """Counts operations that read a number of a tensor on `meta`, or that mix it with tensors of the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        several = [tensor for tensor in (*given, *made) if tensor.ndim or tensor.device == META]
        if len({tensor.device for tensor in several}) > 1:
            self.found.append(f"{func} {[(tuple(t.shape), t.device.type) for t in several]}")
        return result


def vision_step() -> Callable[[], object]:
    train, (task, learner) = importlib.import_module("vision.train"), parts(VISION, "vision")
    images, labels = (part.to(META) for part in task.train_batch(0, torch.arange(64)))
    return lambda: train.train_step(task, learner, (images, labels), False)


def language_step() -> Callable[[], object]:
    train, (task, learner) = importlib.import_module("language.train"), parts(LANGUAGE, "language")
    tokens = torch.zeros(2, 32, dtype=torch.int64, device=META)
    return lambda: train.train_step(task, learner, [(tokens, tokens)], False)


def dqn_step() -> Callable[[], object]:
    from rl.dqn.frames import Batch

    train, (task, learner) = importlib.import_module("rl.dqn.train"), parts(DQN, "rl.dqn")
    frames = torch.zeros(8, 2, *task.emulator.frame, device=META)
    actions = torch.zeros(8, dtype=torch.int64, device=META)
    batch = Batch(frames, actions, torch.zeros(8, device=META), torch.zeros(8, dtype=torch.bool, device=META))
    return lambda: train.train_step(task, learner, batch, False)


def sac_step() -> Callable[[], object]:
    from rl.sac.transitions import Batch

    train, (task, learner) = importlib.import_module("rl.sac.train"), parts(SAC, "rl.sac", options=("networks=mlp",))
    observation = torch.zeros(16, task.observations, device=META)
    number = torch.zeros(16, device=META)
    batch = Batch(observation, torch.zeros(16, task.actions, device=META), number, number, observation)
    return lambda: train.train_step(task, learner, batch, False)


def parts(program: Program, package: str, options: tuple[str, ...] = PLAIN_ADAM) -> tuple[Any, Any]:
    """A task and a learner whose networks and sums are on `meta`, as if that were the run's device."""
    task = importlib.import_module(f"{package}.task").Task.from_config(program.compose(*options, "tracker=none"))
    learner = importlib.import_module(f"{package}.learner").Learner.new(task)
    for networks in (learner.net.modules, learner.net.targets):
        for module in networks.values():
            module.to(META)
    for name, value in vars(learner).items():
        if isinstance(value, Tensor | nn.Module):
            setattr(learner, name, value.to(META))
    stand_in(task)
    learner.renew_optimizers(task)
    return task, learner


def stand_in(task: Any) -> None:
    """Let the task say that its device is `meta`."""
    if "device" in vars(task):
        task.device = META
    else:
        task.group = dataclasses.replace(task.group, device=META)


def plain_adamw(parameters: Iterable[nn.Parameter], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """SAC's optimizer without the fused kernel."""
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, foreach=True)


STEP = {"vision": vision_step, "language": language_step, "dqn": dqn_step, "sac": sac_step}


@pytest.mark.parametrize("trainer", STEP)
def test_ten_steps_read_nothing_and_copy_nothing(trainer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which `meta` has none of
    monkeypatch.setattr("rl.sac.learner.adamw", plain_adamw)
    step = STEP[trainer]()
    step()  # makes the optimizer's state
    with Crossings() as crossings:
        for _ in range(STEPS):
            step()
    # SAC draws its noise on the CPU, so that all devices draw alike: one copy a step, which is not waited for.
    noise = [line for line in crossings.found if line.startswith("aten._to_copy") and "(2, 16, " in line]
    assert len(noise) == (STEPS if trainer == "sac" else 0)
    assert [line for line in crossings.found if line not in noise] == []


def test_the_stand_in_sees_a_read_and_a_copy() -> None:
    number = torch.zeros((), device=META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        number.item()
    with Crossings() as crossings:
        torch.zeros(3).to(META)
    assert crossings.found
