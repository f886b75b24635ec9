"""Small runs of the real trainer, and what they leave."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.harness.zygote import Answer, Zygote

CLOCKS = {"seconds", "method/seconds", "tokens_per_second", "mfu"}  # differ from run to run
TINY = (
    "scale=smoke", "tracker=none", "progress=false", "model.n_layer=1", "model.n_head=2", "model.n_embd=32",
    "model.block_size=32", "batch_size=2", "benchmark.iterations=[40,40]", "benchmark.checkpoints=[20]", "lr=1e-3",
)  # fmt: skip


class Runs:
    """Starts `python -m language.train` in children that have imported everything, on one prepared pair of corpora."""

    def __init__(self, zygote: Zygote, data: Path) -> None:
        self.zygote, self.data = zygote, data

    def __call__(self, folder: Path, *options: str, **environment: str) -> Answer:
        return self.zygote.run(folder, "language.train", *self.tiny(*options), **environment)

    def start(self, folder: Path, *options: str, **environment: str) -> int:
        """The process id of a run that goes on beside the test."""
        return self.zygote.start(folder, "language.train", *self.tiny(*options), **environment)

    def tiny(self, *options: str) -> list[str]:
        """All options of a small run."""
        return [*TINY, f"paths.data={self.data}", *options]


def only_run(folder: Path) -> Path:
    """The one run folder below `folder`/runs."""
    (found,) = (folder / "runs" / "language").iterdir()
    return found


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run, without the clocks."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in CLOCKS} for line in lines]


def final_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    return torch.load(newest, weights_only=True)["state"]["trainer"]


def same(one: Any, other: Any) -> bool:
    """Bitwise equality of nested states, clocks apart."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        keys = one.keys() - CLOCKS
        return keys == other.keys() - CLOCKS and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    """Return as soon as `what()` is true; fail after some seconds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)
