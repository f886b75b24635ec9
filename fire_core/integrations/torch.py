"""FIRE, or another method, in any torch loop: on the optimizer's own step hook. Also for accelerate and timm.

    hook = FireHook(optimizer, model, Every(1000), solver="exact", copies=[ema])
    hook = FireHook(optimizer, model, method=ShrinkAndPerturb(coef=0.6, perturb=0.1))  # and `hook.act()` at a boundary

Needs torch alone (2.9 or later).
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.integrations.intervention import Intervention
from fire_core.methods.protocol import BoundaryReport
from fire_core.triggers.trigger import Trigger
from fire_core.weights import distributed
from fire_core.weights.optimizers import optimizers_of, with_inner

KEY = "fire_hook"  # key of the hook's state in the optimizer's state_dict
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # attributes of torch's optimizers
STATE_HOOKS = ("_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks")


class FireHook:
    """Asks the trigger after each step of an optimizer, and acts where it fires, or where the loop calls `act`.

    Its state goes into the optimizer's `state_dict()` and comes back with `load_state_dict`, so whatever saves the
    optimizer (accelerate's `save_state`, timm's saver) saves it too. A resumed run does not fire again, if the hook is
    made before the optimizer's state is loaded: the optimizer drops what it does not know. Several hooks
    of one optimizer must be made in the same order when a run is resumed. Torch's distributed checkpoints
    (`get_optimizer_state_dict`; accelerate under FSDP) drop it: save `hook.state_dict()` beside them, and load it after
    the optimizer's state. The step without gradients that these make to fill the optimizer's state is not counted.

    Args:
        optimizer: one or several optimizers, in the order in which the loop steps them. The steps of the last one
            count, so that the act comes after all have stepped; the state of the changed weights is reset in all.
        model: the model, bare or wrapped (DistributedDataParallel, compiled). On several ranks each has its own hook.
        trigger: says when to act. For `Plateau` call `observe(loss=loss)` before each `optimizer.step()`. None: the
            method acts where the loop calls `act` alone.
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
        trigger: Trigger | None = None,
        *,
        total_steps: int | None = None,
        log: Callable[[int, dict[str, float]], None] | None = None,
        **options: Any,
    ) -> None:
        optimizers = optimizers_of(optimizer)
        self.intervention = Intervention(trigger, **options)
        self.intervention.begin({"model": model}, optimizers, total_steps=total_steps, log=log)
        self.step, self._last = 0, optimizers[-1]
        stateful = _part_with(optimizers[0], STATE_HOOKS)
        owners = [getattr(call, "__self__", None) for call in stateful._optimizer_state_dict_post_hooks.values()]
        keys_taken = {hook.key for hook in owners if isinstance(hook, FireHook)}
        self.key: str = next(key for key in _keys() if key not in keys_taken)
        self._removals = [
            AfterSteps(self._last, self._after_step).remove,
            stateful.register_state_dict_post_hook(self._save).remove,
            stateful.register_load_state_dict_pre_hook(self._load).remove,
        ]

    def act(self) -> BoundaryReport:
        """Let the method act now, between two steps of the optimizer, whatever the trigger says.

        Call it where the data change, on every rank. It does what the hook does where the trigger fires: the state of
        the changed weights is reset, and copies follow.

        Returns:
            The method's numbers, and of FIRE a report of each network.

        Raises:
            RuntimeError: the last step has brought weights back to what they were before the last action.
        """
        return self.intervention.act(self.step)

    def observe(self, **metrics: Tensor | float | None) -> None:
        """Give the trigger metrics of the coming step; tensors are not read unless a measurement is due."""
        self.intervention.observe(**metrics)

    def _after_step(self) -> None:
        """Count a step of the last optimizer, and ask the trigger."""
        if is_without_effect(self._last):
            return
        self.step += 1
        self.intervention.ask(self.step)

    def _save(self, _: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the optimizer with the state of the hook."""
        return {**state, self.key: self.state_dict()}

    def _load(self, _: Optimizer, state: dict[str, Any]) -> None:
        """Restore the state of the hook from the state of its optimizer that is about to be loaded, if it holds one."""
        if self.key in state:
            self.load_state_dict(state[self.key])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs besides the model's weights: numbers, strings and tensors."""
        return {"step": self.step, **self.intervention.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.step = state["step"]
        self.intervention.load_state_dict(state)

    def remove(self) -> None:
        """Remove the hooks from the optimizer, and those of a trigger that measures activations from the model."""
        for remove in self._removals:
            remove()
        self.intervention.trigger.close()


def is_without_effect(optimizer: Optimizer) -> bool:
    """Return whether the present step changes no weight: all rates are zero, and all gradients are there and are zero.

    Torch makes such a step to fill an empty optimizer's state, before it saves or loads it for a distributed
    checkpoint. A step of training may have a rate of zero, at the start of a warm-up, but has gradients.
    """
    rates = [group.get("lr", 1) for group in optimizer.param_groups]
    if any(isinstance(rate, Tensor) and rate.device.type != "cpu" for rate in rates):  # to look at it would wait
        return False
    if any(rate != 0 for rate in rates):
        return False
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    are_zero = all(p.grad is not None and not bool(distributed.local(p.grad).any()) for p in trained)
    device = distributed.local(trained[0]).device if trained else None
    flag = torch.tensor([are_zero], dtype=torch.int32, device=device)
    return bool(distributed.all_true_over_ranks(flag, trained))  # a rank may have no part of what has gradients


def _keys() -> Iterator[str]:
    """Yield the keys of the states of an optimizer's hooks: fire_hook, fire_hook_2, ..."""
    yield KEY
    for number in itertools.count(2):
        yield f"{KEY}_{number}"


def _has_step_hooks(part: Optimizer) -> bool:
    """Return whether the step of an optimizer runs torch's hooks. Wrappers often do not call torch's constructor."""
    return getattr(type(part).step, "hooked", False) and all(hasattr(part, name) for name in STEP_HOOKS)


def _part_with(optimizer: Optimizer, attributes: Sequence[str]) -> Optimizer:
    """Return the optimizer, or the first inside a wrapper (accelerate, Lookahead), that has torch's hooks.

    Args:
        optimizer: the optimizer.
        attributes: names of the attributes that hold the hooks.

    Raises:
        TypeError: there is none.
    """
    for part in with_inner(optimizer):
        if _has_step_hooks(part) and all(hasattr(part, name) for name in attributes):
            return part
    raise TypeError(f"{type(optimizer).__name__} has no step hooks: it is no torch.optim.Optimizer")


class AfterSteps:
    """Calls a function after each step of an optimizer, until `remove`.

    A wrapper's step may do nothing (accelerate, while gradients add up), or go on after the inner one (Lookahead mixes
    its slow weights in). There the function is called at the end of the wrapper's step, if the inner optimizer has
    stepped. An inner optimizer that steps outside of the wrapper's step (in `second_step` of SAM) ends a step as well.

    Args:
        optimizer: the optimizer.
        call: the function.
    """

    def __init__(self, optimizer: Optimizer, call: Callable[[], None]) -> None:
        self._call = call
        self._is_within = False  # whether the wrapper's step runs
        self._inner_stepped = False  # whether the inner optimizer has stepped within it
        self._removals: list[Callable[[], None]] = []
        if _part_with(optimizer, ()) is optimizer:
            begin, end = optimizer.register_step_pre_hook(self._begin), optimizer.register_step_post_hook(self._end)
            self._removals += [begin.remove, end.remove]
        else:
            self._removals.append(self._wrap(optimizer))
        inner = next((part for part in with_inner(optimizer) if part is not optimizer and _has_step_hooks(part)), None)
        if inner is not None:
            self._removals.append(inner.register_step_post_hook(self._after_inner).remove)

    def remove(self) -> None:
        """Call the function no more."""
        for remove in self._removals:
            remove()

    def _begin(self, *_: Any) -> None:
        """Note that the step of an optimizer with hooks begins."""
        self._is_within = True

    def _end(self, *_: Any) -> None:
        """Call the function after the step of an optimizer with hooks."""
        self._is_within = False
        self._call()

    def _after_inner(self, *_: Any) -> None:
        """Note a step of the inner optimizer within the wrapper's step; call the function after one outside of it."""
        if self._is_within:
            self._inner_stepped = True
        else:
            self._call()

    def _wrap(self, optimizer: Optimizer) -> Callable[[], None]:
        """Put the call into the step of a wrapper without hooks, and return a function that undoes it."""
        original_step, is_active = optimizer.step, [True]

        def step(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._is_within, self._inner_stepped = True, False
            try:
                result = original_step(*args, **kwargs)
            finally:
                self._is_within = False
            if self._inner_stepped and is_active[0]:
                self._call()
            return result

        # Schedulers wrap a step as well. They need a method, and mark the step that they have wrapped.
        vars(step).update(getattr(original_step, "__dict__", {}))
        wrapped = types.MethodType(step, optimizer)
        optimizer.step = wrapped  # type: ignore[method-assign]

        def unwrap() -> None:
            is_active[0] = False
            if vars(optimizer).get("step") is wrapped:  # else a scheduler has wrapped this step
                optimizer.step = original_step  # type: ignore[method-assign]

        return unwrap
