"""`compile=true` changes how fast a run is, and rounding, but neither what it is nor what it leaves."""

from pathlib import Path

import pytest
import torch

from tests.harness.runner import final_state, only_run, rows, tiny
from tests.harness.zygote import Zygote


@pytest.fixture(scope="module")
def zygote():
    process = Zygote("vision.train", "vision.data", "vision.models", "vision.benchmarks")
    yield process
    process.close()


@pytest.mark.parametrize("method", ["fire", "redo", "parseval"])
def test_a_compiled_run_is_the_same_run(method: str, tmp_path: Path, zygote: Zygote) -> None:
    for compiled in (False, True):
        options = tiny(f"method={method}", f"compile={compiled}", "epochs=3", "cache=off")
        answer = zygote.run(tmp_path / str(compiled), "vision.train", *options, before="traces_only")
        assert answer.code == 0, answer.err
    plain, traced = (only_run(tmp_path / name / "runs") for name in ("False", "True"))
    for one, other in zip(rows(plain), rows(traced), strict=True):
        assert one.keys() == other.keys()
        assert other["train/loss"] == pytest.approx(one["train/loss"], rel=1e-3)
    one, other = final_state(plain)["model"], final_state(traced)["model"]
    assert one.keys() == other.keys(), "the bare network's names, so that a compiled run's checkpoint serves others"
    for name, tensor in one.items():
        torch.testing.assert_close(
            other[name], tensor, rtol=1e-2, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
