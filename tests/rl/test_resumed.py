"""A run on a stream of tasks that is stopped and started again ends as one left alone, bit for bit."""

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.programs import DQN, SAC, Program, assert_same

CONTROL = "benchmark=continual_control"
STREAM = f"{CONTROL} benchmark.tasks=3 benchmark.steps=40 benchmark.size=13 metrics=cheap "
OF_DQN = STREAM + "total_steps=120 learning_starts=20 "
HIDDEN = "benchmark.boundaries=hidden "
OF_SAC = STREAM + "env_steps=120 random_steps=20 env=hopper eval_episodes=1 networks=mlp "
RUNS = {
    "dqn fire": (DQN, OF_DQN + "method=fire"),
    "dqn fresh": (DQN, OF_DQN + "method=fresh"),
    "dqn trigger": (DQN, OF_DQN + HIDDEN + "method=chain method.of=fire+muon trigger=every trigger.steps=30"),
    "dqn c_chain": (DQN, OF_DQN + HIDDEN + "method=c_chain method.warmup=5"),  # it keeps earlier weights and inputs
    "sac fire": (SAC, OF_SAC + "method=fire benchmark.physics={gravity:[0.5,2.0]}"),
    "sac sequence": (SAC, OF_SAC + "benchmark.size=17 benchmark.sequence=[Walker2d-v5,HalfCheetah-v5]"),
    "sac c_chain": (SAC, OF_SAC + HIDDEN + "method=c_chain method.warmup=5"),
    "sac chain": (
        SAC,
        OF_SAC + HIDDEN + "method=chain method.of=trac+cbp method.parts.cbp.rate=0.02 method.parts.cbp.maturity=5",
    ),
    "sac snr fire_paper": (SAC, OF_SAC + HIDDEN + "method=snr variant=fire_paper method.max_age=64"),
}


@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_was_stopped_ends_the_same(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a task, and at the end of one."""
    program, options = RUNS[run]
    whole = start(program, tmp_path / "whole", options)
    trainer = importlib.import_module(f"rl.{program.name}.train")
    plain, stops = trainer.interact, [52, 80]

    def interact(task: Any, learner: Any, acts: bool) -> Any:
        loss = plain(task, learner, acts)
        if stops and learner.step == stops[0]:
            del stops[0]
            os.kill(os.getpid(), signal.SIGTERM)
        return loss

    monkeypatch.setattr(trainer, "interact", interact)
    for _ in range(len(stops)):
        with pytest.raises(SystemExit):
            start(program, tmp_path / "stopped", options)
    assert_same(start(program, tmp_path / "stopped", options), whole)


def start(program: Program, runs: Path, options: str) -> Path:
    return program.run(runs, *options.split())
