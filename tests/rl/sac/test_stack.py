"""Seeds of SAC trained together leave what each leaves alone, bit for bit."""

import os
import signal
from pathlib import Path

import pytest

import rl.sac.stack.train
from fire_core.harness.options.cli import EXIT_TRAINING
from fire_core.harness.run.stack import execute_stack
from rl.sac.train import PROGRAM, STACKING
from tests.programs import SAC, assert_same, rows

# Sizes at which products of one network and of several are rounded alike.
STREAM = (
    "experiment=continual_double_pendulum", "benchmark.tasks=2", "benchmark.steps=80", "env_steps=160",
    "random_steps=20", "networks.actor_width=64", "networks.critic_width=64", "networks.actor_depth=2",
    "networks.critic_depth=2", "replay_size=100", "updates=2", "batch_size=64", "eval_every=40", "eval_episodes=1",
    "metrics=cheap",
)  # fmt: skip

# ReDo acts on each critic alone, after rows.
SLOW = ("snp", "l2init", "redo")


def together(runs: Path, *options: str, seeds: int = 2) -> dict[str, Path]:
    """The folders of the seeds from 0 on, by seed."""
    execute_stack(SAC.compose(*STREAM, *options, f"stack={seeds}", f"paths.runs={runs}"), PROGRAM, STACKING)
    return {path.name.split("-")[-2].removeprefix("s"): path for path in (runs / "sac").iterdir()}


@pytest.mark.parametrize("method", ["fire", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_each_seed_is_its_own_run(method: str, tmp_path: Path) -> None:
    options = (f"method={method}", *(("method.threshold=0.5",) if method == "redo" else ()))
    assert STACKING.why_not(STACKING.make_tasks(SAC.compose(*STREAM, *options, "stack=2"))) is None
    stacked = together(tmp_path / "stack", *options)
    assert sorted(stacked) == ["0", "1"]
    for seed, folder in stacked.items():
        assert_same(folder, SAC.run(tmp_path / seed, *STREAM, *options, f"seed={seed}"))
    assert len([row for row in rows(stacked["1"]) if "task/return" in row]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("trigger=every", "trigger.steps=37", "method=fire", "benchmark.boundaries=hidden"),
        ("trigger=dormancy", "trigger.above=0.01", "trigger.every=25", "method=fire", "boundary.optimizer=new"),
    ],
    ids=lambda options: options[0],
)
def test_hidden_boundaries_and_triggers(options: tuple[str, ...], tmp_path: Path) -> None:
    stacked = together(tmp_path / "stack", *options)
    for seed, folder in stacked.items():
        assert_same(folder, SAC.run(tmp_path / seed, *STREAM, *options, f"seed={seed}"))


@pytest.mark.slow
def test_a_seed_that_diverges_ends_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = rl.sac.stack.train.Stack
    plain = stack.interact

    def interact(self: rl.sac.stack.train.Stack) -> None:
        seeds = [task.config.seed for task in self.tasks]
        if self.step == 50 and 1 in seeds:
            next(self.learners[seeds.index(1)].agent.actor.parameters()).data.fill_(float("nan"))
        plain(self)

    monkeypatch.setattr(stack, "interact", interact)
    with pytest.raises(SystemExit) as end:
        together(tmp_path / "stack", "method=base", seeds=3)
    assert end.value.code == EXIT_TRAINING
    folders = {path.name.split("-")[-2]: path for path in (tmp_path / "stack" / "sac").iterdir()}
    assert "not finite at step 50" in (folders["s1"] / "FAILED").read_text()
    for seed in ("0", "2"):
        assert_same(folders[f"s{seed}"], SAC.run(tmp_path / seed, *STREAM, "method=base", f"seed={seed}"))


@pytest.mark.slow
def test_stacked_and_single_runs_resume_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = rl.sac.stack.train.Stack
    plain = stack.interact

    def stop_at(step: int) -> None:
        def interact(self: rl.sac.stack.train.Stack) -> None:
            plain(self)
            if self.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(stack, "interact", interact)

    options = ("method=redo", "method.threshold=0.5")
    for step in (50, 80, 131):
        stop_at(step)
        with pytest.raises(SystemExit):
            together(tmp_path / "stopped", *options, seeds=3)
    monkeypatch.undo()
    one = SAC.run(tmp_path / "stopped", *STREAM, *options, "seed=1")  # which the stack has begun
    stopped, whole = (together(tmp_path / name, *options, seeds=3) for name in ("stopped", "whole"))
    assert one == stopped["1"]
    for seed, folder in whole.items():
        assert_same(stopped[seed], folder)


def test_what_cannot_be_stacked_is_named() -> None:
    for options, said in (
        (("num_envs=2",), "needs num_envs=1"),
        (("method=pi",), "new modules"),
        (("networks=simba",), "no plain perceptrons"),
    ):
        reason = STACKING.why_not(STACKING.make_tasks(SAC.compose(*STREAM, "stack=2", *options)))
        assert reason is not None
        assert said in reason
