"""`compile=true` changes how fast a run is, and rounding, but neither what it is nor what it leaves."""

from pathlib import Path

import pytest
import torch

from tests.harness.runner import final_state, only_run, rows, run, tiny
from tests.harness.zygote import Zygote
from vision.task import compiled


@pytest.fixture(scope="module")
def zygote():
    process = Zygote("vision.train", "vision.data", "vision.models", "vision.benchmarks")
    yield process
    process.close()


def test_cuda_graphs_are_refused_without_a_gpu(tmp_path: Path, zygote: Zygote) -> None:
    for options in (("cuda_graph=true", "device=cpu", "compile=true"), ("cuda_graph=true",)):
        answer = zygote.run(tmp_path, "vision.train", *tiny(*options))
        assert answer.code == 2
        assert answer.err == "error: cuda_graph=true needs compile=true and device=cuda\n"


def test_cuda_graphs_are_a_mode_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(torch, "compile", lambda model, mode: modes.append(mode) or model)
    compiled(torch.nn.Linear(2, 2))
    compiled(torch.nn.Linear(2, 2), cuda_graph=True)
    assert modes == [None, "reduce-overhead"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_run_replayed_as_cuda_graphs_is_the_same_run(tmp_path: Path) -> None:
    losses = []
    for replayed in (False, True):
        options = ("device=cuda", "compile=true", f"cuda_graph={replayed}", f"paths.runs={tmp_path / str(replayed)}")
        losses.append(run(*options, "method=cbp", "epochs=3", "cache=off")["train/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("method", ["fire", "redo", "parseval"])
def test_a_compiled_run_is_the_same_run(method: str, tmp_path: Path, zygote: Zygote) -> None:
    for traced in (False, True):
        options = tiny(f"method={method}", f"compile={traced}", "epochs=3", "cache=off")
        answer = zygote.run(tmp_path / str(traced), "vision.train", *options, before="traces_only")
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
