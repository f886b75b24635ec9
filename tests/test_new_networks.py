"""`method=fresh` in all programs: at each boundary a network that is built as at the start, by another draw."""

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fire_core.methods import Context
from tests.programs import DQN, LANGUAGE, SAC, SMALL, Program, boundary

Weights = dict[str, dict[str, Tensor]]
STREAM = ("benchmark=continual_control", "benchmark.tasks=3", "benchmark.steps=80")
PROGRAMS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "vision": (SMALL, ("benchmark=random_labels", "benchmark.tasks=3", "benchmark.samples=64")),
    "language": (LANGUAGE, ()),
    "dqn": (DQN, (*STREAM, "total_steps=240", "learning_starts=20")),
    "sac": (SAC, (*STREAM, "env_steps=240", "random_steps=20", "networks=simba")),
}


def part_of(name: str, module: str) -> Any:
    """A module of a program."""
    package = PROGRAMS[name][0].module.removesuffix(".train")
    return importlib.import_module(f"{package}.{module}")


def started(name: str, *options: str) -> tuple[Any, Any]:
    """A task and its learner, before the first step."""
    program, usual = PROGRAMS[name]
    task = part_of(name, "task").Task.from_config(program.compose("method=fresh", *usual, *options))
    return task, part_of(name, "learner").Learner.new(task)


def drawn(name: str, task: Any, learner: Any, phase: int, at: str = "boundary") -> Weights:
    """The newly built networks of a boundary or firing."""
    learner.phase = phase
    context: Context = part_of(name, "phase").make_context(task, learner, at)
    assert context.new_networks is not None
    return context.new_networks()


def end(*learners: Any) -> None:
    for learner in learners:
        getattr(learner, "close", lambda: None)()


def largest(weight: Tensor) -> float:
    return weight.abs().max().item()


def check_vision(new: Weights) -> None:
    """Torch's default: uniform in 1 / sqrt(fan_in), biases too."""
    weights = new["model"]
    for layer in {name.rpartition(".")[0] for name in weights}:
        bound = weights[f"{layer}.weight"].shape[1] ** -0.5
        assert bound * 0.8 < largest(weights[f"{layer}.weight"]) <= bound * 1.0001
        assert 0 < largest(weights[f"{layer}.bias"]) <= bound * 1.0001


def check_language(new: Weights) -> None:
    """GPT-2's: normal with 0.02, projections into the residual stream smaller by sqrt(2 x layers); a tied head."""
    for name, weight in new["model"].items():
        if weight.ndim == 2:
            smaller = 2**0.5 if name.endswith("c_proj.weight") else 1
            assert weight.std().item() == pytest.approx(0.02 / smaller, rel=0.1), name
    assert torch.equal(new["model"]["lm_head.weight"], new["model"]["transformer.wte.weight"])


def check_dqn(new: Weights) -> None:
    """Xavier-uniform weights, biases of zero."""
    for name, weight in new["q"].items():
        if weight.ndim == 1:
            assert (weight == 0).all(), name
        else:
            bound = (6 / sum(weight.shape)) ** 0.5
            assert 0.8 * bound < largest(weight) <= bound * 1.0001, name


def check_sac(new: Weights) -> None:
    """SimBa's: orthogonal input layers and heads, of the actor and of each critic, which no draw of entries gives."""
    for weight in (new[name]["encoder.input.weight"] for name in ("actor", "critic0", "critic1")):
        torch.testing.assert_close(torch.linalg.svdvals(weight), torch.ones(min(weight.shape)))


CHECKS: dict[str, Callable[[Weights], None]] = {
    "vision": check_vision,
    "language": check_language,
    "dqn": check_dqn,
    "sac": check_sac,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_network_is_built_by_its_own_initialiser_from_a_seed_of_run_and_boundary(name: str) -> None:
    (task, learner), (other_task, other) = started(name), started(name, "seed=1")
    torch.manual_seed(3)
    before = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    first, again = (drawn(name, task, learner, 1) for _ in range(2))
    after = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002
    assert torch.equal(after[0], before[0]), "training would draw other numbers"
    assert after[1:] == before[1:]
    of_other_seed = drawn(name, other_task, other, 1)
    of_other_boundary, of_firing = drawn(name, task, learner, 0), drawn(name, task, learner, 1, "firing")
    CHECKS[name](learner.net.init)
    CHECKS[name](first)
    for key, init in learner.net.init.items():
        assert {part: w.shape for part, w in first[key].items()} == {part: w.shape for part, w in init.items()}
        assert all(torch.equal(w, again[key][part]) for part, w in first[key].items())
        random_part = next(part for part, w in init.items() if w.ndim > 1)
        for others in (learner.net.init, of_other_boundary, of_firing, of_other_seed):
            assert not torch.equal(first[key][random_part], others[key][random_part])
    end(learner, other)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_boundary_brings_the_new_network_its_target_and_a_new_optimizer(name: str) -> None:
    task, learner = started(name)
    trainer = part_of(name, "train")
    trainer.begin_phase(task, learner, 0, None)
    for optimizer in learner.optimizers.values():
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    while name in ("dqn", "sac") and learner.step < task.phases[0].end:  # a boundary's measures look at transitions
        trainer.interact(task, learner, False)
    trainer.begin_phase(task, learner, 1, None)
    expected = drawn(name, task, learner, 1)
    for networks in (learner.net.modules, learner.net.targets):
        for key, module in networks.items():
            state = module.state_dict()
            assert all(torch.equal(state[part], weight) for part, weight in expected[key].items()), key
    assert not any(optimizer.state for optimizer in learner.optimizers.values())
    assert set(learner.net.targets) == {"dqn": {"q"}, "sac": {"critic0", "critic1"}}.get(name, set())
    end(learner)


def test_a_target_network_that_the_method_acts_on_gets_the_same_draw() -> None:
    task, learner = started("dqn", "boundary.target=act")
    with torch.no_grad():
        for parameter in (*learner.q.parameters(), *learner.target.parameters()):
            parameter.add_(torch.randn_like(parameter))
    learner.phase = 1
    context = part_of("dqn", "phase").make_context(task, learner, "boundary")
    learner.method.at_boundary(learner.net, context)
    part_of("dqn", "train").restart(task, learner, context)
    for one, other in zip(learner.q.parameters(), learner.target.parameters(), strict=True):
        assert torch.equal(one, other)
    end(learner)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_ends_and_its_boundary_is_measured(name: str, tmp_path: Path) -> None:
    program, options = PROGRAMS[name]
    folder = program.run(tmp_path, "method=fresh", *options)
    assert boundary(folder)["boundary/sfe"] > 0
