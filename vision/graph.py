"""A training step as one CUDA graph: small batches keep a GPU waiting for Python more than they keep it busy.

A graph is a recording of all kernels of a step, with the addresses that they read and write. A replay launches them at
once. So what changes from step to step must stand in the same tensors: the batch, the learning rate, the sums of the
row, the optimizer's state.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vision.learner import Learner
from vision.task import Task

WARM_UP = 3  # steps before the recording, in which libraries choose their kernels and optimizers make their state
Step = Callable[[Task, Learner, tuple[Tensor, Tensor], bool], Tensor]


class GraphedStep:
    """`vision.train.train_step` on batches of one size, recorded once and replayed.

    Neither the steps before the recording nor the recording itself change the network, the optimizer or the sums.

    Args:
        task: of the run.
        learner: whose network and optimizer the step trains; both must stay these objects.
        train_step: the step.
        batch: a batch of the size of all that follow.
        record: `record_on_gpu`; a test's stand-in where there is no GPU.
    """

    def __init__(
        self,
        task: Task,
        learner: Learner,
        train_step: Step,
        batch: tuple[Tensor, Tensor],
        record: "Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]] | None" = None,
    ) -> None:
        self.learner = learner
        self.images, self.labels = (part.clone() for part in batch)
        make_capturable(learner.optimizer)
        before = snapshot(learner)
        self.replay, self.loss = (record or record_on_gpu)(
            lambda: train_step(task, learner, (self.images, self.labels), False)
        )
        restore(learner, before)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """One step on another batch; its loss, in a tensor that the next step overwrites."""
        self.images.copy_(batch[0])
        self.labels.copy_(batch[1])
        self.replay()
        self.learner.seen += len(self.labels)
        return self.loss


def record_on_gpu(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a step as torch's notes on CUDA graphs say: a few steps in a stream of their own, then the capture.

    Returns:
        What replays it, and the tensor that then holds the step's loss.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    return graph.replay, loss


def make_capturable(optimizer: Optimizer) -> None:
    """Let the learning rate and the step counter of Adam stand in tensors on the device, which a replay reads."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        if not isinstance(group["lr"], Tensor):
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)


def snapshot(learner: Learner) -> dict[str, Any]:
    """Copies of all that a step changes."""
    state = learner.optimizer.state
    return {
        "weights": {name: value.clone() for name, value in learner.model.state_dict().items()},
        "optimizer": {p: {key: value.clone() for key, value in state[p].items()} for p in state},
        "sums": (learner.loss_sum.clone(), learner.correct.clone(), learner.seen),
    }


@torch.no_grad()
def restore(learner: Learner, before: dict[str, Any]) -> None:
    """Write a snapshot back into the same tensors; state that the optimizer has made since becomes zero, as new."""
    for name, value in learner.model.state_dict().items():
        value.copy_(before["weights"][name])
    for parameter, entries in learner.optimizer.state.items():
        known = before["optimizer"].get(parameter)
        for key, value in entries.items():
            value.zero_() if known is None else value.copy_(known[key])
    loss_sum, correct, learner.seen = before["sums"]
    learner.loss_sum.copy_(loss_sum)
    learner.correct.copy_(correct)
