"""FIRE, or another method, in any torch loop: on the optimizer's own step hook. Also for accelerate and timm.

    hook = FireHook(optimizer, model, Every(1000), solver="exact", copies=[ema])

Needs torch alone (2.9 or later).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.integrations.copies import Source, copies_of
from fire_core.integrations.intervention import Intervention
from fire_core.integrations.steps import after_each_step, hooked_part
from fire_core.methods.protocol import Method
from fire_core.triggers.trigger import Trigger
from fire_core.weights.optimizer_state import optimizers_of

KEY = "fire_hook"  # in the optimizer's state_dict


class FireHook:
    """Asks the trigger after each step of an optimizer, and acts where it fires.

    Its state goes into the optimizer's `state_dict()` and comes back with `load_state_dict`, so whatever saves the
    optimizer (accelerate's `save_state`, timm's saver) saves it too. A resumed run does not fire again.

    Args:
        optimizer: or several; the steps of the first one count, the state of the changed weights is reset in all.
        model: bare or wrapped (DistributedDataParallel, compiled). On several ranks each has its own hook.
        trigger: when to act. For `Plateau` call `observe(loss=loss)` before each `optimizer.step()`.
        method: any method that acts at a boundary; None: `fire_` with `options`.
        copies: averaged or target models, which take over every weight that the method changes.
        total_steps: of the run, where known: a trigger that cannot fire is then refused.
        log: takes the step and the numbers of each action: `log=lambda step, numbers: wandb.log(numbers, step)`.
        options: of `Intervention` (`trainable_only`, `keep`, `batches`, `loss`, `seed`) and of `fire_`.

    Raises:
        TypeError: the optimizer has no step hooks; an option is unknown.
        ValueError: see `Intervention`.
    """

    def __init__(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        model: nn.Module,
        trigger: Trigger,
        *,
        method: Method | None = None,
        copies: Sequence[Source] = (),
        total_steps: int | None = None,
        log: Callable[[int, dict[str, float]], None] | None = None,
        **options: Any,
    ) -> None:
        several = optimizers_of(optimizer)
        self.intervention = Intervention(trigger, method, **options)
        self.intervention.begin(
            {"model": model}, several, {"model": copies_of(copies)}, total_steps=total_steps, log=log
        )
        self.step, self._observed = 0, dict[str, Tensor | float | None]()
        part = hooked_part(several[0])
        self._removals = [
            after_each_step(several[0], self._after_step),
            part.register_state_dict_post_hook(lambda _, state: {**state, KEY: self.state_dict()}).remove,
            part.register_load_state_dict_pre_hook(self._load).remove,
        ]

    def observe(self, **metrics: Tensor | float | None) -> None:
        """Metrics of the step that comes, for the trigger; tensors are not read unless a measurement is due."""
        self._observed |= metrics

    def _after_step(self) -> None:
        self.step += 1
        observed, self._observed = self._observed, {}
        self.intervention.ask(self.step, **observed)

    def _load(self, _: Optimizer, state: dict[str, Any]) -> None:
        if KEY in state:
            self.load_state_dict(state[KEY])

    def state_dict(self) -> dict[str, Any]:
        """What a resume needs, beside the model's weights; numbers, strings and tensors."""
        return {"step": self.step, **self.intervention.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.step = state["step"]
        self.intervention.load_state_dict(state)

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for remove in self._removals:
            remove()
