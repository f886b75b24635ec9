"""`compile=default` changes how fast a run is, and rounding, but neither what it is nor what it leaves."""

from pathlib import Path

import pytest
import torch

from tests.programs import SMALL, VISION, Program, final_state, only_run, rows
from tests.zygote import Zygote


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_run_replayed_as_cuda_graphs_is_the_same_run(tmp_path: Path) -> None:
    losses = []
    for mode in ("default", "reduce-overhead"):
        options = ("device=cuda", f"compile={mode}", "method=cbp", "epochs=3", "cache=off")
        losses.append(rows(VISION.run(tmp_path / mode, *options))[-1]["train/loss"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-2), "a GPU sums in no fixed order"


@pytest.mark.parametrize(
    ("program", "method"), [pytest.param(VISION, "fire", marks=pytest.mark.slow), (SMALL, "redo")], ids=["fire", "redo"]
)
def test_a_compiled_run_is_the_same_run(program: Program, method: str, tmp_path: Path, zygote: Zygote) -> None:
    for mode in ("off", "default"):
        options = program.tiny(f"method={method}", f"compile={mode}", "epochs=3", "cache=off")
        answer = zygote.run(tmp_path / mode, "vision.train", *options, before="traces_only")
        assert answer.code == 0, answer.err
    plain, traced = (only_run(tmp_path / name / "runs") for name in ("off", "default"))
    for one, other in zip(rows(plain), rows(traced), strict=True):
        assert one.keys() == other.keys()
        if "kind" not in one:  # a boundary has no loss
            assert other["train/loss"] == pytest.approx(one["train/loss"], rel=1e-3)
    one, other = final_state(plain)["modules"]["model"], final_state(traced)["modules"]["model"]
    assert one.keys() == other.keys(), "the bare network's names, so that a compiled run's checkpoint serves others"
    for name, tensor in one.items():
        torch.testing.assert_close(
            other[name], tensor, rtol=1e-2, atol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )
