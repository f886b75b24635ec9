"""Seeds of SAC trained together leave what each leaves alone, bit for bit."""

from pathlib import Path

import pytest

from fire_core.harness.run.stack import execute_stack
from rl.sac.train import PROGRAM, STACKING
from tests.programs import SAC, assert_same

# Sizes at which products of one network and of several are rounded alike.
STREAM = (
    "experiment=continual_double_pendulum", "benchmark.tasks=2", "benchmark.steps=80", "env_steps=160",
    "random_steps=20", "networks.actor_width=64", "networks.critic_width=64", "networks.actor_depth=2",
    "networks.critic_depth=2", "replay_size=100", "updates=2", "batch_size=64", "eval_every=40", "eval_episodes=1",
    "metrics=cheap",
)  # fmt: skip


def folders(runs: Path) -> dict[str, Path]:
    return {path.name.split("-")[-2].removeprefix("s"): path for path in (runs / "sac").iterdir()}


def together(runs: Path, *options: str, stack: int = 2) -> dict[str, Path]:
    """The folders of seeds 0 and 1, by seed."""
    execute_stack(SAC.compose(*STREAM, *options, f"stack={stack}", f"paths.runs={runs}"), PROGRAM, STACKING)
    return folders(runs)


@pytest.mark.parametrize("method", ["fire"])
def test_each_seed_is_its_own_run(method: str, tmp_path: Path) -> None:
    options = (f"method={method}",)
    assert STACKING.why_not(STACKING.make_tasks(SAC.compose(*STREAM, *options, "stack=2"))) is None
    stacked = together(tmp_path / "stack", *options)
    assert sorted(stacked) == ["0", "1"]
    for seed in stacked:
        assert_same(stacked[seed], SAC.run(tmp_path / seed, *STREAM, *options, f"seed={seed}"))
