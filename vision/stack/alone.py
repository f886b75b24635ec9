"""Steps of one perceptron without autograd, by the passes of a stack of one: the same bit for bit, in half the time.

Small networks cost what calling torch costs. `vision.train` takes these steps where nothing needs autograd's.
"""

import math

import torch
from torch import Tensor

from fire_core.harness.stacked.network import View, clip_gradients, shares_weights
from fire_core.harness.stacked.optimizer import StackedAdam, can_step_together
from fire_core.harness.training.measure import check_finite
from vision.learner import Learner
from vision.stack.loss import cross_entropy
from vision.task import Task

HOOKS = ("penalty", "after_step", "watch")  # of methods that act at each step


class Steps:
    """Makes the steps of a phase.

    Args:
        task: of the run.
        learner: with its optimizer, at the beginning of the phase or where it was interrupted.
        network: of the learner.
    """

    def __init__(self, task: Task, learner: Learner, network: View) -> None:
        assert learner.optimizer is not None
        self.task, self.learner, self.network = task, learner, network
        self.optimizer = StackedAdam([learner.optimizer], network)
        names = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        held = [names[id(p)] for group in learner.optimizer.param_groups for p in group["params"]]
        self.gradients = [g for name in held if (g := network.parameters[name].grad) is not None]

    @torch.no_grad()
    def take(self, images: Tensor, labels: Tensor) -> None:
        """One optimizer step; the learner's sums go on."""
        task, learner = self.task, self.learner
        outputs = self.network.forward(images[None])
        losses, gradient = cross_entropy(outputs, labels[None])
        if not math.isfinite(losses.item()):
            check_finite(learner.step, losses)
        self.network.backward(gradient)
        norm = clip_gradients(self.gradients, task.config.grad_clip)
        if not math.isfinite(norm.item()):
            check_finite(learner.step, norm)
        self.optimizer.step()
        learner.loss_sum += losses[0] * len(labels)
        learner.correct += (outputs[0].argmax(1) == labels).sum()
        learner.seen += len(labels)

    def write_back(self) -> None:
        """Bring the learner's optimizer up to date."""
        self.optimizer.write_back()

    def read_again(self) -> None:
        """Take over the state of the learner's optimizer, which a method may have changed after an epoch."""
        self.optimizer = StackedAdam(self.optimizer.optimizers, self.network)


def steps_without_autograd(task: Task, learner: Learner, acts: bool) -> Steps | None:
    """For the phase that begins or goes on; None where the steps need autograd.

    Args:
        task: of the run.
        learner: with its optimizer.
        acts: whether the method acts within the phase, after steps or epochs.
    """
    config, method, model = task.config, learner.method, learner.model
    plain = (config.compile, config.precision, config.on_nan, task.device.type) == (False, "float32", "stop", "cpu")
    if not plain or not task.classifies or config.batch_size == 1:  # the last two would differ by rounding
        return None
    if (acts and any(method.overrides(hook) for hook in HOOKS)) or shares_weights(model):
        return None
    if not all(parameter.requires_grad for parameter in model.parameters()):
        return None
    if learner.optimizer is None or not can_step_together(learner.optimizer):
        return None
    network = View(model)
    return None if network.layers is None else Steps(task, learner, network)
