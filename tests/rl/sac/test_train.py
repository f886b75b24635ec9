"""The SAC program: each method through the midpoint, what restarts there, sharing, pre-emption, errors, composition."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from fire_core.methods.contrib.adamo import IsometricAdam
from fire_core.methods.contrib.upgd import PerturbedDescent
from fire_core.triggers import Firing
from rl.sac import train as sac
from rl.sac.control import Control
from rl.sac.learner import Learner
from rl.sac.task import Task
from tests.programs import SAC, compose, final_state, rows, same

METHODS = ("base", "pi", "fire", "fire_exact", "redo")
SHORT = ("env_steps=160", "eval_every=40", "random_steps=40", "updates=1", "eval_episodes=2")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each method; the first half is trained once."""
    root = tmp_path_factory.mktemp("sweep")
    return {method: SAC.run(root, f"method={method}", "metrics=cheap", *SHORT) for method in METHODS}


def test_methods_share_the_first_half_and_differ_after_it(sweep: dict[str, Path]) -> None:
    (entry,) = (sweep["base"].parents[1] / ".cache").iterdir()
    assert (entry / "DONE").exists()
    first = [[row for row in rows(folder) if row["phase"] == 0] for folder in sweep.values()]
    assert all(part == first[0] for part in first)
    assert [row.get("env_steps") for row in rows(sweep["base"])] == [40, 80, None, 120, 160]
    last = {method: json.dumps(rows(folder)[-1]["train/q"]) for method, folder in sweep.items()}
    last.pop("redo")  # may find nothing dormant
    assert len(set(last.values())) >= len(last) - 1, last


def test_rows_have_what_the_analysis_reads(sweep: dict[str, Path]) -> None:
    for method, folder in sweep.items():
        found = rows(folder)
        boundary = found.pop(2)
        assert (boundary["kind"], boundary["step"], boundary["phase"]) == ("boundary", found[1]["step"], 1)
        for row in found:
            assert {"step", "phase", "env_steps", "eval/return", "eval/return_std", "eval/length"} <= row.keys()
        assert {"boundary/dfi_before", "boundary/dfi_after", "boundary/sfe"} <= boundary.keys(), method
    assert "method/dormant_ratio" in rows(sweep["redo"])[-1]
    config = OmegaConf.load(sweep["fire"] / "config.yaml")
    assert (config.env.name, config.method.name) == ("InvertedDoublePendulum-v5", "fire")
    assert "boundary/dormant_ratio_before" in rows(sweep["fire"])[2]


def test_fire_exact_reaches_isometry_and_pi_leaves_the_weights(sweep: dict[str, Path]) -> None:
    exact, pi = rows(sweep["fire_exact"])[2], rows(sweep["pi"])[2]
    assert exact["boundary/dfi_after"] < 1e-6 < exact["boundary/dfi_before"]
    assert pi["boundary/sfe"] == 0
    names = final_state(sweep["pi"])["modules"]["critic0"]
    assert {"head.old.weight", "head.new.weight", "head.frozen.weight"} <= names.keys()


def trained_learner(method: str, *overrides: str) -> tuple[Task, Learner]:
    """A learner that has made some updates."""
    task = Task.from_config(SAC.compose(f"method={method}", "networks.critic_depth=2", *overrides))
    learner = Learner.new(task)
    sac.begin_phase(task, learner, 0, None)
    for _ in range(60):
        actions = sac.choose_actions(task, learner)
        learner.workers.send(actions)
        sac.remember(task, learner, actions, learner.workers.receive())
    for _ in range(10):
        sac.learn(task, learner, False)
    return task, learner


def midpoint(method: str, *overrides: str) -> tuple[Task, Learner, dict[str, torch.Tensor]]:
    """A learner just behind the midpoint, and its weights before it."""
    task, learner = trained_learner(method, *overrides)
    before = {
        k: v.clone() for name, m in learner.net.modules.items() for k, v in m.state_dict(prefix=f"{name}.").items()
    }
    sac.begin_phase(task, learner, 1, None)
    learner.close()
    return task, learner, before


def test_a_run_closes_its_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HumanoidBench's hold OpenGL, which complains at the end of the process of those that are still open."""
    real, opened, closed = Control.make, list[Any](), list[Any]()

    def make(control: Control) -> Any:
        env = real(control)
        env.close = lambda: closed.append(env)
        opened.append(env)
        return env

    monkeypatch.setattr(Control, "make", make)
    SAC.run(tmp_path, *SHORT)
    assert len(opened) == len(closed) > 2
    assert {id(env) for env in opened} == {id(env) for env in closed}


@pytest.mark.parametrize("method", ["base", "full_reset", "snp", "fire"])
def test_what_restarts_at_the_midpoint_is_the_same_for_every_method(method: str) -> None:
    """As golden's sac_facts.json says of the three resets (tests/parity holds the numbers)."""
    task, learner, before = midpoint(method)
    assert all(not optimizer.state for optimizer in learner.optimizers.values())
    assert learner.temperature().item() == pytest.approx(task.config.temperature, rel=1e-7)
    assert same(learner.critics.state_dict(), learner.target_critics.state_dict())
    assert learner.statistics.count > 1
    for name, module in learner.net.modules.items():
        for key, value in module.state_dict().items():
            kept, initial = torch.equal(value, before[f"{name}.{key}"]), torch.equal(value, learner.net.init[name][key])
            expected = {"full_reset": (False, True), "snp": (False, False), "fire": (value.ndim == 1, False)}
            assert (kept, initial) == expected.get(method, (True, False)), (name, key)


def test_base_runs_on_unbroken_as_in_the_paper() -> None:
    task, learner = trained_learner("base", "boundary=sac_paper")
    before = copy.deepcopy(
        {key: learner.state_dict()[key] for key in ("optimizers", "temperature", "targets", "modules")}
    )
    sac.begin_phase(task, learner, 1, None)
    learner.close()
    after = learner.state_dict()
    assert all(same(value, after[key]) for key, value in before.items())
    assert all(optimizer["state"] for optimizer in after["optimizers"].values())
    assert learner.temperature().item() != pytest.approx(task.config.temperature, rel=1e-7)


def test_steps_are_decisions_of_all_environments(tmp_path: Path) -> None:
    options = ("num_envs=2", "env.action_repeat=2", "random_steps=21", "batch_size=4", "method=weight_clipping")
    found = [row for row in rows(SAC.run(tmp_path, *options)) if "kind" not in row]
    assert [(row["step"], row["env_steps"]) for row in found] == [(50, 100), (100, 200), (150, 300), (200, 400)]
    assert [row["phase"] for row in found] == [0, 0, 1, 1]
    assert found[-1]["updates"] == (200 - 22) // 2  # one for a decision in each environment


def test_a_firing_restarts_the_networks_and_leaves_the_data() -> None:
    """Whatever the method does: base with a trigger is the control of the others."""
    options = ("trigger=every", "trigger.steps=50", "boundary.statistics=new", "boundary.replay=new")
    task, learner = trained_learner("base", *options)
    sac.act(task, learner, None, Firing(30, "every", "as a test", {}))
    learner.close()
    assert all(not optimizer.state for optimizer in learner.optimizers.values())
    assert learner.temperature().item() == pytest.approx(task.config.temperature, rel=1e-7)
    assert same(learner.critics.state_dict(), learner.target_critics.state_dict())
    assert learner.statistics.count > 1
    assert learner.replay.first_sampled == [0]


def test_injection_leaves_outputs_as_they_are() -> None:
    task, learner, _ = midpoint("base", "boundary.target=keep")
    _, injected, _ = midpoint("pi")
    x, action = torch.randn(5, task.observations), torch.rand(5, task.actions)
    for one, other in zip(learner.actor(x), injected.actor(x), strict=True):
        torch.testing.assert_close(other, one)
    for kind in ("critics", "target_critics"):
        for own, other in zip(getattr(learner, kind), getattr(injected, kind), strict=True):
            torch.testing.assert_close(other(x, action), own(x, action))
    frozen = dict(injected.critics[0].named_parameters())["head.old.weight"].clone()
    sac.learn(task, injected, False)
    after = dict(injected.critics[0].named_parameters())
    assert torch.equal(after["head.old.weight"], frozen)
    assert not torch.equal(after["head.new.weight"], after["head.frozen.weight"])


@pytest.mark.parametrize("method", ["full_reset", "fire"])
def test_kept_and_forgetful_optimizers(method: str) -> None:
    """keep: nothing is forgotten, whatever the method changed; forget: what it changed."""
    _, kept, _ = midpoint(method, "boundary.optimizer=keep")
    _, forgot, _ = midpoint(method, "boundary.optimizer=forget")
    for name in ("actor", "critics"):
        parameters = list(getattr(kept, name).parameters())
        assert len(kept.optimizers[name].state) == len(parameters)
        left = sum(p.ndim == 1 for p in parameters) if method == "fire" else 0
        assert len(forgot.optimizers[name].state) == left


@pytest.mark.parametrize(("method", "kind"), [("adamo", IsometricAdam), ("upgd", PerturbedDescent)])
def test_a_method_s_own_optimizer_comes_with_the_second_half(method: str, kind: type) -> None:
    """Of each network; the temperature keeps AdamW. A run that is resumed there has it too."""
    task, learner, _ = midpoint(method)
    kinds = {name: type(optimizer) for name, optimizer in learner.optimizers.items()}
    assert kinds == {"actor": kind, "critics": kind, "temperature": torch.optim.AdamW}
    again = Learner.new(task)
    assert not again.optimizers
    again.replay = learner.replay
    sac.learn(task, learner, True)
    state = copy.deepcopy(learner.state_dict())
    sac.learn(task, learner, True)
    again.load_state_dict(task, state)
    sac.learn(task, again, True)
    again.close()
    assert same(again.critics.state_dict(), learner.critics.state_dict())


def test_experiments_are_the_papers() -> None:
    """As in docs/paper.md, figure 4b."""
    for name, task in (("walk", "h1-walk-v0"), ("balance", "h1-balance_simple-v0"), ("run", "h1-run-v0")):
        for method in ("snp", "fire") if name == "walk" else ("base",):
            c = compose("sac", f"experiment=fig4b_h1_{name}", f"method={method}")
            assert (c.env.task, c.env_steps, c.env.action_repeat, c.updates) == (task, 1_000_000, 2, 2)
            assert (c.batch_size, c.replay_size, c.random_steps, c.tau) == (256, 1_000_000, 5000, 0.005)
            assert c.eval_every == 20_000
            assert (c.lr, c.weight_decay, c.temperature, c.target_entropy) == (1e-4, 1e-2, 0.01, -0.5)
            sizes = c.networks
            assert (sizes.kind, sizes.actor_width, sizes.actor_depth) == ("simba", 128, 1)
            assert (sizes.critic_width, sizes.critic_depth, c.eval_episodes) == (512, 2, 10)
            if method == "snp":
                assert c.method.coef == 0.8
            if method == "fire":
                assert (c.method.iterations, c.method.scale) == (10, "modular")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["fire", "pi", "redo"])
def test_a_gpu_trains_and_resumes(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled and with CUDA graphs in one case, which takes its time."""
    options = (f"method={method}", "device=cuda", f"compile={'reduce-overhead' if method == 'fire' else 'off'}")
    interact = sac.interact

    def interrupted(task: Task, learner: Learner, acts: bool) -> None:
        if learner.step == 350:
            raise KeyboardInterrupt
        interact(task, learner, acts)

    with monkeypatch.context() as patch:
        patch.setattr(sac, "interact", interrupted)
        with pytest.raises(KeyboardInterrupt):
            SAC.run(tmp_path, *options, "checkpoint.every_seconds=0")
    found = [row["env_steps"] for row in rows(SAC.run(tmp_path, *options)) if "env_steps" in row]
    assert found == [100, 200, 300, 400]


def test_what_is_measured_at_the_midpoint_does_not_part_first_halves(tmp_path: Path, sweep: dict[str, Path]) -> None:
    (entry,) = (sweep["base"].parents[1] / ".cache").iterdir()
    folder = SAC.run(tmp_path, f"paths.cache={entry.parent}", "metrics=off", *SHORT)
    assert [folder.name for folder in entry.parent.iterdir()] == [entry.name]
    assert not any("boundary/dfi_after" in row for row in rows(folder))
