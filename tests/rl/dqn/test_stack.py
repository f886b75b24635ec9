"""Seeds trained together leave what each leaves alone, bit for bit."""

import os
import signal
from pathlib import Path

import pytest
import torch

import rl.dqn.stack.train
from fire_core.harness.run.stack import execute_stack
from rl.dqn.frames import FrameReplay
from rl.dqn.stack.check import why_not
from rl.dqn.stacked_replay import StackedReplay
from rl.dqn.train import PROGRAM, STACKING
from tests.programs import DQN, assert_same, rows

# Sizes at which products of one network and of several are rounded alike.
STREAM = (
    "benchmark=continual_control", "benchmark.tasks=3", "benchmark.steps=150", "benchmark.size=8", "total_steps=450",
    "learning_starts=40", "num_envs=1", "model.hidden=64", "batch_size=32", "replay.capacity=100", "updates_per_step=1",
    "epsilon.fraction=0.3", "eval.episodes=2", "log_every=50",
)  # fmt: skip

# Methods that act at each step: on all networks at once, but for ReDo, which acts after rows.
SLOW = ("redo", "l2init", "weight_clipping", "c_chain", "snr", "muon", "parseval", "upgd", "trac", "regrama")


def folders(runs: Path) -> dict[str, Path]:
    return {path.name.split("-")[-2].removeprefix("s"): path for path in (runs / "dqn").iterdir()}


def together(runs: Path, *options: str) -> dict[str, Path]:
    """The folders of seeds 0 to 2, by seed."""
    execute_stack(DQN.compose(*STREAM, *options, "stack=3", f"paths.runs={runs}"), PROGRAM, STACKING)
    return folders(runs)


@pytest.mark.parametrize(
    "method",
    ["fire", "cbp", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)],
)
def test_each_seed_is_its_own_run(method: str, tmp_path: Path) -> None:
    options = (f"method={method}", *(("method.threshold=0.5",) if method == "redo" else ()))
    assert why_not(STACKING.make_tasks(DQN.compose(*STREAM, *options, "stack=2"))) is None
    stacked = together(tmp_path / "stack", *options)
    assert sorted(stacked) == ["0", "1", "2"]
    for seed in ("0", "2"):
        assert_same(stacked[seed], DQN.run(tmp_path / seed, *STREAM, *options, f"seed={seed}"))


@pytest.mark.slow
def test_each_seed_fires_at_steps_of_its_own(tmp_path: Path) -> None:
    options = (
        "benchmark.tasks=2",
        "total_steps=300",
        "method=fire",
        "trigger=drift",
        "trigger.above=0.3",
        "trigger.every=10",
        "boundary.optimizer=new",
    )
    stacked = together(tmp_path / "stack", *options)
    firings = {seed: [row for row in rows(folder) if row.get("kind") == "firing"] for seed, folder in stacked.items()}
    fired = {seed: [row["step"] for row in several] for seed, several in firings.items()}
    assert fired["0"]
    assert fired["0"] != fired["2"]
    for seed in ("0", "2"):
        assert_same(stacked[seed], DQN.run(tmp_path / seed, *STREAM, *options, f"seed={seed}"))


def test_a_stack_that_was_stopped_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = rl.dqn.stack.train.Stack
    plain = stack.interact

    def stop_at(step: int) -> None:
        def interact(self: rl.dqn.stack.train.Stack) -> None:
            plain(self)
            if self.step == step:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(stack, "interact", interact)

    for step in (70, 150, 333):
        stop_at(step)
        with pytest.raises(SystemExit):
            together(tmp_path / "stopped", "method=fire", "cache=off")
    monkeypatch.undo()
    stopped, whole = (together(tmp_path / name, "method=fire", "cache=off") for name in ("stopped", "whole"))
    for seed, folder in whole.items():
        assert_same(stopped[seed], folder)


def test_what_cannot_be_stacked_is_trained_one_by_one(tmp_path: Path) -> None:
    for option, said in (
        ("num_envs=2", "needs num_envs=1"),
        ("method=pi", "new modules"),
        ("trigger=every trigger.steps=90 method=chain method.of=[fire,redo]", "differs between seeds"),
        ("epsilon.fraction=0.5", "nothing"),
    ):
        reason = why_not(STACKING.make_tasks(DQN.compose(*STREAM, "stack=2", *option.split())))
        assert reason is None or said in reason
    found = together(tmp_path, "benchmark.tasks=1", "total_steps=150", "method=muon")
    assert all((folder / "DONE").exists() for folder in found.values())


def test_transitions_are_those_of_each_replay() -> None:
    draw = torch.Generator().manual_seed(0)
    alone = [FrameReplay(20, 1, (3,), torch.float32, 1) for _ in range(3)]
    stacked = [FrameReplay(20, 1, (3,), torch.float32, 1) for _ in range(3)]
    both = StackedReplay(stacked)
    for step in range(70):
        for i in range(3):
            if step % (4 + i) == 0:
                first = torch.rand(1, 3, generator=draw)
                for replays in (alone, stacked):
                    replays[i].start(torch.arange(1), first)
        frames, rewards = torch.rand(3, 3, generator=draw), torch.rand(3, generator=draw)
        actions, ends = torch.randint(4, (3,), generator=draw), torch.rand(3, generator=draw) < 0.3
        for i, replay in enumerate(alone):
            replay.append(frames[i : i + 1], actions[i : i + 1], rewards[i : i + 1], ends[i : i + 1])
        both.append(frames.numpy(), actions.numpy(), rewards.numpy(), ends.numpy())
        if step == 40:
            for replay in (*alone[:1], *stacked[:1]):
                replay.forget()
                replay.start(torch.arange(1), torch.zeros(1, 3))
        if step in (5, 30, 69):
            generators = [[torch.Generator().manual_seed(i) for i in range(3)] for _ in range(2)]
            x, following, taken, reward, ended = both.sample(9, generators[0])
            for i, replay in enumerate(alone):
                batch = replay.sample(9, generators[1][i])
                assert torch.equal(batch.frames[:, :-1], x[i])
                assert torch.equal(batch.frames[:, 1:], following[i])
                assert torch.equal(batch.actions, taken[i])
                assert torch.equal(batch.rewards, reward[i])
                assert torch.equal(batch.terminated, ended[i])
                assert torch.equal(generators[0][i].get_state(), generators[1][i].get_state())
