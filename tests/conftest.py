"""For every test: one thread, so that workers share the cores and sums do not depend on their number."""

import copy
import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from tests.zygote import Zygote

torch.set_num_threads(1)
PROGRAMS = (
    "vision.train",
    "vision.data",
    "vision.models",
    "vision.benchmarks",
    "vision.streams",
    "language.train",
)
PROGRAMS += ("rl.dqn.train", "rl.sac.train", "gymnasium.envs.mujoco", "torch.distributed.run")


def pytest_collection_finish() -> None:
    """What was imported by now stays: the garbage collector need not look at a million objects again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _options_are_read_once() -> None:
    """The same files and options are read in a thousand tests: the half of what a configuration costs."""
    load, parse, known = OmegaConf.load, OverridesParser.parse_rule, dict[Any, Any]()

    def load_once(file: Any) -> Any:
        about = os.stat(file.name if hasattr(file, "read") else file)
        key = (about.st_ino, about.st_mtime_ns, about.st_size)
        if key not in known:
            known[key] = load(file)
        return copy.deepcopy(known[key])

    def parse_once(parser: OverridesParser, text: str, rule: str) -> Any:
        if (text, rule) not in known:
            known[text, rule] = parse(parser, text, rule)
        return copy.deepcopy(known[text, rule])

    OmegaConf.load, OverridesParser.parse_rule = staticmethod(load_once), parse_once


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Runs the programs in children that have imported everything."""
    process = Zygote(*PROGRAMS)
    yield process
    process.close()
