"""The meter of a method's work within phases."""

import pytest
import torch

from harness.training import measure
from harness.training.measure import Meter


def test_meter_adds_blocks_up_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.5, 7.0, 7.25, 9.0, 9.125])
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    meter = Meter(torch.device("cpu"))
    assert meter.take() == 0
    for _ in range(2):
        with meter:
            pass
    assert meter.take() == 0.75
    with meter:
        pass
    assert meter.take() == 0.125
    assert meter.take() == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_meter_of_a_gpu_counts_its_work_and_not_what_lies_between() -> None:
    meter, work = Meter(torch.device("cuda")), torch.randn(2048, 2048, device="cuda")
    for _ in range(3):
        with meter:
            for _ in range(20):
                work @ work
    assert meter.take() > 0
    assert meter.take() == 0
