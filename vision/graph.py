"""Run a training step as one CUDA graph, because with small batches a GPU mostly waits for Python.

A graph is a recording of all kernels of a step, with the addresses that they read and write. A replay launches all of
them together. So everything that changes from step to step must stay in the same tensors: the batch, the learning rate,
the sums of the row, the optimizer's state.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fire_core.methods.protocol import tensors_of
from vision.learner import Learner
from vision.task import Task

WARM_UP = 3  # steps before the recording, in which libraries choose their kernels and optimizers create their state
Step = Callable[[Task, Learner, tuple[Tensor, Tensor], bool], Tensor]


class GraphedStep:
    """`vision.train.train_step` on batches of one size, recorded once and replayed.

    The steps before the recording and the recording itself leave the network, the optimizer and the sums as they were.

    Args:
        task: the task of the run.
        learner: the learner, whose network and optimizer must stay the same objects.
        train_step: the step to record.
        batch: a batch; all later ones must have its size.
        record: records a step; None takes `record_on_gpu`. Tests replace it where there is no GPU.
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
        self.images, self.labels = (tensor.clone() for tensor in batch)
        make_capturable(learner.optimizer)
        state_before = snapshot(learner)
        self.replay, self.loss = (record or record_on_gpu)(
            lambda: train_step(task, learner, (self.images, self.labels), False)
        )
        restore(learner, state_before)

    def __call__(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Make one step on another batch, and return its loss in a tensor that the next step overwrites."""
        self.images.copy_(batch[0])
        self.labels.copy_(batch[1])
        self.replay()
        self.learner.seen += len(self.labels)
        return self.loss


def record_on_gpu(step: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
    """Record a step as torch's notes on CUDA graphs say: a few steps in a side stream, then the capture.

    Returns:
        A function that replays the step, and the tensor that holds the loss after a replay.
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
    """Move Adam's learning rate and step counter into tensors on the device, where a replay reads them."""
    for group in optimizer.param_groups:
        group["capturable"] = True
        if not isinstance(group["lr"], Tensor):
            group.setdefault("initial_lr", group["lr"])
            group["lr"] = torch.tensor(float(group["lr"]), device=group["params"][0].device)


def snapshot(learner: Learner) -> dict[str, Any]:
    """Return copies of everything that a step changes."""
    state = learner.optimizer.state
    return {
        "weights": {name: value.clone() for name, value in tensors_of(learner.model).items()},
        "optimizer": {p: {key: value.clone() for key, value in state[p].items()} for p in state},
        "sums": (learner.loss_sum.clone(), learner.correct.clone(), learner.seen),
    }


@torch.no_grad()
def restore(learner: Learner, state: dict[str, Any]) -> None:
    """Write a snapshot back into the same tensors; optimizer state that did not exist then is set to zero, as new."""
    for name, value in tensors_of(learner.model).items():
        value.copy_(state["weights"][name])
    for parameter, entries in learner.optimizer.state.items():
        old_entries = state["optimizer"].get(parameter)
        for key, value in entries.items():
            value.zero_() if old_entries is None else value.copy_(old_entries[key])
    loss_sum, correct, learner.seen = state["sums"]
    learner.loss_sum.copy_(loss_sum)
    learner.correct.copy_(correct)
