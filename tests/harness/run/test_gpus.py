"""Jobs dealt to GPUs, with fake ones."""

import multiprocessing
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from harness.run import gpus
from harness.run.gpus import own_gpu


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """A worker on a machine with two GPUs; the shares of memory that were set."""
    shares = list[tuple[float, int]]()
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "a parent")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, gpu: shares.append((share, gpu)))
    monkeypatch.setattr(gpus.tempfile, "gettempdir", lambda: str(tmp_path))
    return shares


def test_jobs_are_dealt_in_turn_and_take_their_share_of_memory(two: list[tuple[float, int]]) -> None:
    with ExitStack() as running:
        assert [running.enter_context(own_gpu("auto", 2)) for _ in range(2)] == ["cuda:0", "cuda:1"]
        with own_gpu("auto", 2) as third:
            assert third == "cuda:0"
        assert [running.enter_context(own_gpu("cuda", 2)) for _ in range(2)] == ["cuda:0", "cuda:1"]
    assert two == [(0.5, gpu) for gpu in (0, 1, 0, 0, 1)]
    with own_gpu("auto", 1) as again:
        assert again == "cuda:0"
    assert len(two) == 5


def test_a_job_waits_for_a_gpu_and_takes_the_one_that_is_free(
    two: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(own_gpu("auto", 1)), second.enter_context(own_gpu("auto", 1))
    waited = list[float]()
    monkeypatch.setattr(gpus.time, "sleep", lambda seconds: (waited.append(seconds), second.close()))
    with first, own_gpu("auto", 1) as third:
        assert third == "cuda:1"
    assert waited == [1]


def test_what_is_no_choice_stays(two: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cpu", "cuda:1"):
        with own_gpu(device, 1) as same:
            assert same == device
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    with own_gpu("auto", 1) as alone:
        assert alone == "auto"
