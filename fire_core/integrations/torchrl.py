"""FIRE, or another method, in TorchRL's Trainer.

    hook = FireHook(actor, Every(10_000))
    hook.register(trainer)

Needs, in a clone, `pip install -e ".[torchrl]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torchrl.trainers import Trainer, TrainerHookBase

from fire_core.integrations.intervention import Intervention
from fire_core.triggers.trigger import Trigger
from fire_core.weights.optimizers import optimizers_of


class FireHook(TrainerHookBase):
    """Asks the trigger after each optimizer step, and acts where it fires.

    The target parameters of the trainer's loss module are found and get the changed weights too. `Plateau` can follow
    the loss module's `out_keys`, averaged over a batch's steps. State goes into the trainer's checkpoint, numbers to
    its log.

    The network must be the one that the loss module trains. Losses that stack several copies of a network (the Q
    networks of `SACLoss`) train other parameters, and are refused.

    Args:
        model: the trained network, or several by name.
        trigger: says when to act.
        optimizers: all optimizers that train it; None takes the trainer's.
        options: options of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        trigger: Trigger,
        *,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
        **options: Any,
    ) -> None:
        self.intervention = Intervention(trigger, **options)
        self.modules = {"model": model} if isinstance(model, nn.Module) else dict(model)
        self.optimizers, self.step = optimizers, 0
        self._numbers: dict[str, float] | None = None  # of an action, until the trainer logs them

    def register(self, trainer: Trainer, name: str = "fire") -> None:
        """Check everything, and register the hooks and, under `name`, the state with the trainer."""
        optimizers = optimizers_of(self.optimizers or trainer.optimizer)
        copies = {}
        for key, module in self.modules.items():
            if target_parameters := targets(trainer, module):
                copies[key] = [target_parameters]
        metrics = trainer.loss_module.out_keys
        self.intervention.begin(self.modules, optimizers, copies, metrics, log=self._keep_numbers)
        trainer.register_op("post_optim", self)
        trainer.register_op("post_optim_complete_log", self._after_batch)
        trainer.register_module(name, self)

    def __call__(self) -> None:
        self.step += 1
        self.intervention.ask(self.step)

    def _after_batch(self, steps: int, losses: Any) -> dict[str, float] | None:
        """Give the trigger the losses of a batch, and return the numbers of an action for the trainer's log.

        Args:
            steps: optimizer steps so far; not used.
            losses: TensorDict of losses by name, averaged over the batch's steps; None if there were none.

        Returns:
            The numbers of the last action since the call before; None if there was none.
        """
        if losses is not None:
            self.intervention.observe(**dict(losses.items()))
        numbers, self._numbers = self._numbers, None
        return numbers

    def _keep_numbers(self, step: int, numbers: dict[str, float]) -> None:
        """Keep the numbers of an action until the trainer asks for what is to be logged."""
        self._numbers = numbers

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, **self.intervention.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]
        self.intervention.load_state_dict(state_dict)


def targets(trainer: Trainer, module: nn.Module) -> dict[str, Tensor]:
    """Return the target parameters of a module in the trainer's loss, by the module's own parameter names."""
    names = {id(p): name for name, p in module.named_parameters()}
    buffers = dict(trainer.loss_module.named_buffers())
    target_parameters = {}
    for name_in_loss, p in trainer.loss_module.named_parameters():
        if id(p) in names and f"target_{name_in_loss}" in buffers:
            target_parameters[names[id(p)]] = buffers[f"target_{name_in_loss}"]
    return target_parameters
