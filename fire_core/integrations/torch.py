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

KEY = "fire_hook"  # key of the hook's state in the optimizer's state_dict


class FireHook:
    """Asks the trigger after each step of an optimizer, and acts where it fires.

    Its state goes into the optimizer's `state_dict()` and comes back with `load_state_dict`, so whatever saves the
    optimizer (accelerate's `save_state`, timm's saver) saves it too. A resumed run does not fire again. Torch's
    distributed checkpoints (`get_optimizer_state_dict`; accelerate under FSDP) drop it: save `hook.state_dict()` beside
    them, and load it after the optimizer's state.

    Args:
        optimizer: one or several optimizers. The steps of the first one count; the state of the changed weights is
            reset in all.
        model: the model, bare or wrapped (DistributedDataParallel, compiled). On several ranks each has its own hook.
        trigger: says when to act. For `Plateau` call `observe(loss=loss)` before each `optimizer.step()`.
        total_steps: steps of the run, where known: a trigger that cannot fire is then refused.
        log: called after each action, as in `log=lambda step, numbers: wandb.log(numbers, step)`.
        options: options of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`.

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
        optimizers = optimizers_of(optimizer)
        self.intervention = Intervention(trigger, **options)
        self.intervention.begin({"model": model}, optimizers, total_steps=total_steps, log=log)
        self.step = 0
        hooked = hooked_part(optimizers[0])
        self._removals = [
            after_each_step(optimizers[0], self._after_step),
            hooked.register_state_dict_post_hook(lambda _, state: {**state, KEY: self.state_dict()}).remove,
            hooked.register_load_state_dict_pre_hook(self._load).remove,
        ]

    def observe(self, **metrics: Tensor | float | None) -> None:
        """Give the trigger metrics of the coming step; tensors are not read unless a measurement is due."""
        self.intervention.observe(**metrics)

    def _after_step(self) -> None:
        """Count a step of the first optimizer, and ask the trigger."""
        self.step += 1
        self.intervention.ask(self.step)

    def _load(self, _: Optimizer, state: dict[str, Any]) -> None:
        """Restore the state of the hook from the state of its optimizer that is about to be loaded, if it holds one."""
        if KEY in state:
            self.load_state_dict(state[KEY])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs besides the model's weights: numbers, strings and tensors."""
        return {"step": self.step, **self.intervention.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.step = state["step"]
        self.intervention.load_state_dict(state)

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for remove in self._removals:
            remove()


def hooked_part(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose step runs torch's hooks: this one, or one inside a wrapper (accelerate, Lookahead).

    Raises:
        TypeError: there is none.
    """
    for part in with_inner(optimizer):
        if getattr(type(part).step, "hooked", False) and hasattr(part, "_optimizer_step_post_hooks"):
            return part
    raise TypeError(f"{type(optimizer).__name__} has no step hooks: it is no torch.optim.Optimizer")


def after_each_step(optimizer: Optimizer, call: Callable[[], None]) -> Callable[[], None]:
    """Call `call` after each step of an optimizer.

    A wrapper's step may do nothing (accelerate, while gradients add up), or go on after the inner one (Lookahead mixes
    its slow weights in). There `call` is called at the end of the wrapper's step, if the inner optimizer has stepped.

    Returns:
        A function that ends this.
    """
    inner = hooked_part(optimizer)
    if inner is optimizer:
        return inner.register_step_post_hook(lambda *_: call()).remove
    inner_steps: list[bool] = []  # one entry for each step of the inner optimizer within the wrapper's step
    handle = inner.register_step_post_hook(lambda *_: inner_steps.append(True))
    original_step = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = original_step(*args, **kwargs)
        if inner_steps:
            inner_steps.clear()
            call()
        return result

    def remove() -> None:
        handle.remove()
        optimizer.step = original_step  # type: ignore[method-assign]

    optimizer.step = step  # type: ignore[method-assign]
    return remove
