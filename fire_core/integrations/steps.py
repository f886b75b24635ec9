"""Call something after each step of an optimizer, also inside a wrapper."""

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from fire_core.weights.optimizer_state import with_inner


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
    stepped = False

    def note(*_: Any) -> None:
        nonlocal stepped
        stepped = True

    original = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal stepped
        result = original(*args, **kwargs)
        if stepped:
            stepped = False
            call()
        return result

    optimizer.step = step  # type: ignore[method-assign]
    handle = inner.register_step_post_hook(note)

    def remove() -> None:
        handle.remove()
        optimizer.step = original  # type: ignore[method-assign]

    return remove
