"""FIRE, or another method, in any torch loop: on the optimizer's own step hook. Also for accelerate and timm.

    hook = FireHook(optimizer, model, Every(1000), solver="exact", copies=[ema])

Needs torch alone (2.9 or later).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.integrations.intervention import Intervention
from fire_core.triggers.trigger import Trigger
from fire_core.weights.optimizers import optimizers_of, with_inner

KEY = "fire_hook"  # in the optimizer's state_dict


class FireHook:
    """Asks the trigger after each step of an optimizer, and acts where it fires.

    Its state goes into the optimizer's `state_dict()` and comes back with `load_state_dict`, so whatever saves the
    optimizer (accelerate's `save_state`, timm's saver) saves it too. A resumed run does not fire again. Torch's
    distributed checkpoints (`get_optimizer_state_dict`; accelerate under FSDP) drop it: save `hook.state_dict()` beside
    them, and load it after the optimizer's state.

    Args:
        optimizer: or several; the steps of the first one count, the state of the changed weights is reset in all.
        model: bare or wrapped (DistributedDataParallel, compiled). On several ranks each has its own hook.
        trigger: when to act. For `Plateau` call `observe(loss=loss)` before each `optimizer.step()`.
        total_steps: of the run, where known: a trigger that cannot fire is then refused.
        log: takes the step and the numbers of each action: `log=lambda step, numbers: wandb.log(numbers, step)`.
        options: of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`.

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
        total_steps: int | None = None,
        log: Callable[[int, dict[str, float]], None] | None = None,
        **options: Any,
    ) -> None:
        several = optimizers_of(optimizer)
        self.intervention = Intervention(trigger, **options)
        self.intervention.begin({"model": model}, several, total_steps=total_steps, log=log)
        self.step = 0
        part = hooked_part(several[0])
        self._removals = [
            after_each_step(several[0], self._after_step),
            part.register_state_dict_post_hook(lambda _, state: {**state, KEY: self.state_dict()}).remove,
            part.register_load_state_dict_pre_hook(self._load).remove,
        ]

    def observe(self, **metrics: Tensor | float | None) -> None:
        """Metrics of the step that comes, for the trigger; tensors are not read unless a measurement is due."""
        self.intervention.observe(**metrics)

    def _after_step(self) -> None:
        self.step += 1
        self.intervention.ask(self.step)

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


def hooked_part(optimizer: Optimizer) -> Optimizer:
    """The optimizer, or the one inside a wrapper (accelerate, Lookahead), whose step and state_dict run torch's hooks.

    Raises:
        TypeError: there is none.
    """
    for part in with_inner(optimizer):
        if getattr(type(part).step, "hooked", False) and hasattr(part, "_optimizer_step_post_hooks"):
            return part
    raise TypeError(f"{type(optimizer).__name__} has no step hooks: it is no torch.optim.Optimizer")


def after_each_step(optimizer: Optimizer, call: Callable[[], None]) -> Callable[[], None]:
    """Have `call` called after each step; returns a function that ends this.

    A wrapper's step may do nothing (accelerate, while gradients add up), or go on after the inner one (Lookahead mixes
    its slow weights in). There `call` is called at the end of the wrapper's step, if the inner optimizer has stepped.
    """
    inner = hooked_part(optimizer)
    if inner is optimizer:
        return inner.register_step_post_hook(lambda *_: call()).remove
    stepped: list[bool] = []
    handle = inner.register_step_post_hook(lambda *_: stepped.append(True))
    original = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if stepped:
            stepped.clear()
            call()
        return result

    def remove() -> None:
        handle.remove()
        optimizer.step = original  # type: ignore[method-assign]

    optimizer.step = step  # type: ignore[method-assign]
    return remove
