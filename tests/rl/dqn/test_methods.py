"""Methods that keep inputs or weights of earlier steps: an agent that is cut and goes on ends as one left alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rl.dqn.train
from rl.dqn.learner import Learner
from rl.dqn.task import Task
from tests.programs import DQN, assert_same, rows

METHODS = {"c_chain": ("method.warmup=5",), "l2_er": ("method.every=3",)}
SHORT = ("total_steps=120", "midpoint=60", "learning_starts=20", "eval.steps=10", "cache=off")


class Cut(Exception):
    """The end of the first process."""


@pytest.mark.parametrize("method", ["c_chain", pytest.param("l2_er", marks=pytest.mark.slow)])
def test_cut_and_go_on(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    options = (f"method={method}", *METHODS[method], *SHORT)
    calm = DQN.run(tmp_path / "calm", *options)
    real, last, cuts = rl.dqn.train.train_step, rows(calm)[-1]["updates"], list[int]()

    def step_or_cut(task: Task, learner: Learner, *arguments: Any) -> torch.Tensor:
        if learner.updates == last - 4 and not cuts:
            cuts.append(learner.updates)
            raise Cut
        return real(task, learner, *arguments)

    monkeypatch.setattr(rl.dqn.train, "train_step", step_or_cut)
    monkeypatch.setattr(rl.dqn.train.Run, "checkpoint_due", property(lambda _: True))
    with pytest.raises(Cut):
        DQN.run(tmp_path / "rough", *options)
    assert_same(DQN.run(tmp_path / "rough", *options), calm)
