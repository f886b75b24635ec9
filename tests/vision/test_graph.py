"""The whole step as a CUDA graph; where there is no GPU, with a stand-in that records a step as the step itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vision.graph
from fire_core.weights.optimizers import set_rate_factor
from harness.config.errors import ConfigError
from tests.programs import SMALL, rows
from vision.graph import GraphedStep
from vision.learner import Learner
from vision.phase import batches, make_row
from vision.task import Task
from vision.train import begin_phase, train_step

# eps: without it Adam turns the rounding of a gradient that is zero into a step.
OPTIONS = ("batch_size=100", "warmup=0.5", "model.norm=true", "grad_clip=0.5", "+optimizer.eps=1e-3")


def as_the_step_itself(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """A recording that runs the step again and again, into one tensor for the loss."""
    loss = torch.zeros(())

    def replay() -> None:
        seen.append(None)
        loss.copy_(step())
        learner_of[0].seen -= 100  # a graph does not count in Python

    seen: list[None] = []
    for _ in range(3):
        step()
    return replay, loss


learner_of: list[Learner] = []


def trained(task: Task, graph: bool, skip: int = 0) -> tuple[Learner, list[float]]:
    """A phase with a smaller last batch and a rate that changes; the losses."""
    learner = Learner.new(task)
    learner_of[:] = [learner]
    begin_phase(task, learner, 0, None)
    graphed, losses = None, []
    for step, batch in enumerate(batches(task, 0)):
        set_rate_factor(learner.optimizer, task.rate_factor(0, step))
        if graph and len(batch[1]) == 100 and step >= skip:
            graphed = graphed or GraphedStep(task, learner, train_step, batch, as_the_step_itself)
            loss = graphed(batch)
        else:
            loss = train_step(task, learner, batch, False)
        losses.append(loss.item())
        learner.phase_step += 1
        learner.step += 1
    return learner, losses


@pytest.mark.parametrize("skip", [0, 2], ids=["new optimizer", "optimizer with state"])
def test_recording_changes_nothing_and_replays_are_the_steps(skip: int) -> None:
    task = Task.from_config(SMALL.compose(*OPTIONS))
    (plain, expected), (graphed, losses) = trained(task, graph=False), trained(task, graph=True, skip=skip)
    assert len({len(batch[1]) for batch in batches(task, 0)}) == 2, "the last batch of a pass is smaller"
    assert losses == pytest.approx(expected, rel=1e-4), "the rate is rounded to float32, and nothing else"
    for name, weight in plain.model.state_dict().items():
        assert torch.allclose(weight, graphed.model.state_dict()[name], atol=1e-4), name
    ends = [make_row(task, learner) for learner in (plain, graphed)]
    for row in ends:
        row.pop("seconds")
    assert ends[0] == pytest.approx(ends[1], rel=1e-3)


def test_a_rate_that_is_a_tensor_stays_the_tensor() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=0.5)
    vision.graph.make_capturable(optimizer)
    rate = optimizer.param_groups[0]["lr"]
    for factor in (0.5, 0.25):
        set_rate_factor(optimizer, factor)
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == 0.5 * factor


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "needs a CUDA GPU"),
        (("compile=default",), "not with compile=default"),
        (("method=l2init",), "not method=l2init"),
        (("method=muon",), "not method=muon"),
        (("optimizer=sgd",), "needs optimizer=adam or adamw"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task.from_config(SMALL.compose(*options))
    task.config.cuda_graph = True
    if options:
        monkeypatch.setattr(task, "device", torch.device("cuda"))
    with pytest.raises(ConfigError, match=says):
        task.check_cuda_graph()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_on_a_gpu_the_numbers_are_the_eager_ones(precision: str, tmp_path: Path) -> None:
    losses: dict[str, list[float]] = {}
    for graph in ("false", "true"):
        folder = SMALL.run(tmp_path / graph, *OPTIONS, f"cuda_graph={graph}", f"precision={precision}", "device=cuda")
        losses[graph] = [row["train/loss"] for row in rows(folder)]
    assert losses["true"] == pytest.approx(losses["false"], rel=1e-2)
