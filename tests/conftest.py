"""For every test: one thread, so that workers share the cores and sums do not depend on them; no open figures."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.zygote import Zygote

os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # until all is imported
PROGRAMS = ("vision.train", "vision.data", "vision.models", "vision.benchmarks", "vision.streams", "language.train")
PROGRAMS += ("rl.dqn.train", "rl.sac.train", "gymnasium.envs.mujoco", "torch.distributed.run", "torch._inductor")
PROGRAMS += ("sklearn.datasets", "sklearn.model_selection")


def pytest_configure(config: pytest.Config) -> None:
    """Of pytest's processes, that which only hands out tests imports nothing."""
    if config.option.dist == "no":
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """What was imported by now stays: the garbage collector need not look at a million objects again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Close the figures that a test leaves open: pyplot of the next test would draw into them."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="session")
def zygote() -> "Iterator[Zygote]":
    """Runs the programs in children that have imported everything."""
    from tests.zygote import Zygote

    process = Zygote(*PROGRAMS)
    yield process
    process.close()
