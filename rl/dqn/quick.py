"""Updates of small Q-networks without autograd, of one run or of several seeds at once: the same numbers bit for bit.

Only where one step makes several updates, convolutions round the targets of all at once in another way than one by one.
Small networks cost what calling torch costs. `rl.dqn.train` takes these updates where nothing needs autograd's.
"""

import torch
from torch import Tensor

from fire_core.harness.stacked.network import StackedNetworks, View, shares_weights
from fire_core.harness.stacked.optimizer import StackedAdam, Steps, can_step_together
from fire_core.methods import Method
from rl.dqn.task import Task

HOOKS = ("penalty", "after_step", "after_epoch", "watch")  # of methods that act within a phase


class QuickUpdates:
    """Makes updates of S networks, each on its own transitions.

    Args:
        online: the networks that are trained.
        target: those that the targets come from.
        optimizer: of the networks.
        gamma: discount.
    """

    def __init__(
        self,
        online: StackedNetworks,
        target: StackedNetworks,
        optimizer: Steps,
        gamma: float,
    ) -> None:
        self.online, self.target, self.optimizer, self.gamma = online, target, optimizer, gamma

    @torch.no_grad()
    def targets(self, observations: Tensor, rewards: Tensor, terminated: Tensor) -> Tensor:
        """`rl.dqn.update.td_target` of next observations (S, B, ...), rewards and terminated (S, B)."""
        best = self.target.forward(observations, training=False).amax(2)
        found: Tensor = rewards + self.gamma * best * (1 - terminated.to(best.dtype))
        return found

    @torch.no_grad()
    def gradients(self, observations: Tensor, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Write the gradients of the Huber loss, see `rl.dqn.update.huber`.

        Args:
            observations: (S, B, ...).
            actions: (S, B).
            targets: (S, B).

        Returns:
            The losses and the mean values of the actions, (S,) each.
        """
        outputs = self.online.forward(observations)  # (S, B, actions)
        values = outputs.gather(2, actions[..., None])[..., 0]
        apart = values - targets
        bent = apart.clamp(-1, 1)
        by_values = bent * (1 / actions.shape[1])
        self.online.backward(torch.zeros_like(outputs).scatter_(2, actions[..., None], by_values[..., None]))
        size = apart.abs()
        losses = torch.where(size < 1, 0.5 * apart * apart, size - 0.5).mean(1)
        return losses, values.mean(1)

    def step(self, observations: Tensor, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One optimizer step of each; see `gradients`."""
        found = self.gradients(observations, actions, targets)
        self.optimizer.step()
        return found

    def greedy(self, observations: Tensor) -> Tensor:
        """The actions (S, n) of the largest value for observations (S, n, ...)."""
        return self.online.forward(observations, training=False).argmax(2)

    def write_back(self) -> None:
        """Bring the single optimizers up to date."""
        self.optimizer.write_back()


def acts_on_steps(method: Method) -> bool:
    """Whether a method does something in the steps of a phase, or touches the optimizer between them."""
    return any(method.overrides(hook) for hook in HOOKS)


def takes_quick_steps(task: Task) -> bool:
    """Whether the options allow such updates."""
    config = task.config
    return (config.compile, config.precision, task.device.type) == ("off", "float32", "cpu")


def quick_updates(
    task: Task, q: torch.nn.Module, target: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> QuickUpdates | None:
    """The updates of one run; None where they need autograd, or would round in another way.

    Args:
        task: of the run.
        q: the network that is trained.
        target: the one that its targets come from.
        optimizer: of the network.
    """
    if not takes_quick_steps(task) or task.config.batch_size == 1 or not can_step_together(optimizer):
        return None
    if shares_weights(q) or not all(parameter.requires_grad for parameter in q.parameters()):
        return None
    online = View(q)
    if online.layers is None:
        return None
    return QuickUpdates(online, View(target), StackedAdam([optimizer], online), task.config.gamma)
