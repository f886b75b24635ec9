"""For every test: one thread, so that workers share the cores and sums do not depend on their number."""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator

import pytest
import torch

from tests.zygote import Zygote, read_options_once

torch.set_num_threads(1)
read_options_once()
PROGRAMS = (
    "vision.train",
    "vision.data",
    "vision.models",
    "vision.benchmarks",
    "vision.streams",
    "language.train",
)
PROGRAMS += ("rl.dqn.train", "rl.sac.train", "gymnasium.envs.mujoco", "torch.distributed.run", "torch._inductor")


def pytest_collection_finish() -> None:
    """What was imported by now stays: the garbage collector need not look at a million objects again and again."""
    gc.freeze()


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs the programs in children that have imported everything."""
    process = Zygote(*PROGRAMS)
    yield process
    process.close()
