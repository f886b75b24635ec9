"""A loop by hand that a trigger watches."""

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fire_core.triggers import Firing, Trigger


def mlp(width: int = 24) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))


@dataclass
class Trained:
    """A run: what is left of it, and where the trigger fired."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    trigger: Trigger | None
    step: int = 0
    firings: list[tuple[int, str]] = field(default_factory=list)
    random: torch.Tensor | None = None
    python_random: Any = None


def train(
    trigger: Trigger | None,
    steps: int,
    done: Trained | None = None,
    state: dict[str, Any] | None = None,
    start_first: bool = False,
    act: bool = True,
) -> Trained:
    """Train to `steps`, or go on from a run that is `done` with the trigger's `state`, loaded before or after `start`.

    Where it fires, the first layer is multiplied by 0.7, so that an action changes what follows (if it is to `act`).
    """
    model = mlp() if done is None else copy.deepcopy(done.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    run = Trained(model, optimizer, trigger, done.step if done else 0, list(done.firings) if done else [])
    torch.manual_seed(1)
    random.seed(1)
    if done is not None and trigger is not None:
        if start_first:
            trigger.start(model)
        trigger.load_state_dict(state)
        if not start_first:
            trigger.start(model)
    for step in range(run.step + 1, steps + 1):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 8, generator=generator)
        y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if trigger is not None and (firing := trigger.ask(step, model, loss=loss)) is not None:
            assert isinstance(firing, Firing)
            run.firings.append((step, firing.reason))
            if act:
                with torch.no_grad():
                    model[0].weight.mul_(0.7)
    run.step, run.random, run.python_random = steps, torch.get_rng_state(), random.getstate()
    return run
