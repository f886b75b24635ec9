"""Reset what an optimizer has stored about given parameters.

After a projection the momentum of a weight belongs to a place where the weight no longer is. The paper starts a new
optimizer at each phase; inside a run, only the state of the projected weights is stale, and only that is reset here.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.errors import FireWarning
from fire_core.weights import distributed
from fire_core.weights.as_new import MASTER, not_as_new

Rows = Tensor | slice | Sequence[int]
# Counters that some optimizers (timm's Lamb and Adan, schedule-free, torch_optimizer's Lookahead) keep for a whole
# group, with their first values.
_GROUP_COUNTERS = {"step": 0, "k": 0, "counter": 0, "weight_sum": 0.0, "lr_max": -1.0}
# State of a weight's shape that does not begin at zero: by name the group's option, Adagrad's and Rprop's.
_FIRST_VALUES = {"sum": "initial_accumulator_value", "step_size": "lr"}
# And state that is a copy of the weight: schedule-free's, Lookahead's slow weights, ASGD's average.
_WEIGHTS = {"z", "lookahead_slow_buff", "slow_param", "slow_buffer", "cached_params", "ax"}


def reset_optimizer_state(
    optimizers: Optimizer | Iterable[Optimizer],
    params: Iterable[Tensor],
    rows: Rows | None = None,
    dim: int = 0,
    *,
    verify: bool = False,
) -> int:
    """Make optimizers treat parameters as if they had never seen them; all other state stays as it is.

    The next step then changes these parameters exactly as a new optimizer with the same settings would, step counters
    and bias correction included. Works with every `torch.optim` optimizer that makes its state at the first step (SGD,
    Adam, AdamW, RMSprop, Muon, ..., in their foreach, fused and capturable variants), with Adagrad, and with the
    optimizers inside a wrapper or a chain (Lookahead, accelerate, Lightning, Megatron's chained ones): Lookahead's slow
    weights start again from the new ones. Optimizers that count steps once for a group (timm's Lamb and Adan,
    schedule-free) are reset fully where all parameters of the group are; else their bias correction continues, which a
    `FireWarning` says.

    With `rows`, only these rows of the state (moments, slow weights) get their first values: for methods that replace
    single units. The step counter belongs to the whole parameter and is kept. State without such rows (8 bits,
    factored) is reset whole, which a `FireWarning` says.

    Args:
        optimizers: one optimizer or several; a parameter that an optimizer does not hold is passed over.
        params: the parameters, tied ones once or twice alike.
        rows: index, boolean mask or slice along `dim`, the same for all `params`; None for the whole state.
        dim: the dimension that `rows` counts along: 0 for the outputs of a layer, 1 for its inputs.
        verify: build a new optimizer of the same kind beside each, on copies of the parameters, and warn of what is not
            as in the new one: states, counters, or the change of a parameter by one step on the same gradient. Takes
            the memory of the parameters and states three times.

    Returns:
        How many (optimizer, parameter) states were reset.

    Raises:
        TypeError: not optimizers, or not a list of parameters (a module, one bare tensor, names).
        ValueError: `rows` that a parameter does not have; `verify` with `rows`, whose other rows are not new.
    """
    if verify and rows is not None:
        raise ValueError("verify compares whole parameters with those of a new optimizer: not with rows=")
    optimizers, unique = optimizers_of(optimizers), _parameters(params)
    count, notes = reset_states(optimizers, unique.values(), rows, dim)
    if verify:
        parts = list(with_inner(*optimizers_of(optimizers)))
        if not count and any(part.state for part in parts):
            notes.append("the optimizers keep nothing of these parameters: if they train copies, give the copies too")
        for part in parts:
            if len([*with_inner(part)]) == 1:  # a wrapper is no new one without what is inside
                notes += not_as_new(part, set(unique))
    for note in notes:
        warnings.warn(note, FireWarning, stacklevel=2)
    return count


@torch.no_grad()
def reset_states(
    optimizers: Optimizer | Iterable[Optimizer], params: Iterable[Tensor], rows: Rows | None = None, dim: int = 0
) -> tuple[int, list[str]]:
    """`reset_optimizer_state`, which returns its warnings instead of giving them."""
    unique = _parameters(params)
    if rows is not None:
        if not isinstance(rows, slice):
            rows = rows if isinstance(rows, Tensor) else torch.tensor(rows, device="cpu")
            rows = rows if rows.numel() else rows.long()  # [] is float
        for p in unique.values():
            _check_rows(rows, p, dim)
    count, notes = 0, []
    for optimizer in optimizers_of(optimizers):
        done: set[int] = set()
        for part in with_inner(optimizer):
            for group in part.param_groups:
                held = [p for p in group["params"] if part.state.get(p)]
                mine = [p for p in held if id(p) in unique]
                if isinstance(part, torch.optim.LBFGS) and any(id(p) in unique for p in group["params"]):
                    mine = held  # of all its parameters it keeps one history, under the first
                for p in mine:
                    if rows is None:
                        _forget(part, group, p)
                    else:
                        notes += _forget_rows(part, group, p, rows, dim)
                done |= {id(p) for p in mine}
                if mine and rows is None:
                    notes += _reset_counters(part, group, whole=len(mine) == len(held))
        count += len(done)
    return count, list(dict.fromkeys(notes))


def optimizers_of(optimizers: Optimizer | Iterable[Optimizer]) -> list[Optimizer]:
    """One optimizer or several as a list.

    Raises:
        TypeError: something that is no optimizer.
    """
    one = _is_optimizer(optimizers) or isinstance(optimizers, nn.Module) or not isinstance(optimizers, Iterable)
    several = [optimizers] if one else list(cast(Iterable[Optimizer], optimizers))
    for optimizer in several:
        if not _is_optimizer(optimizer):
            raise TypeError(f"expected an optimizer (with param_groups and state), got {type(optimizer).__name__}")
    return cast(list[Optimizer], several)


def _is_optimizer(thing: object) -> bool:
    """By what it has: wrappers need not inherit from `Optimizer`."""
    return hasattr(thing, "param_groups") and hasattr(thing, "state")


def _parameters(params: Iterable[Tensor]) -> dict[int, Tensor]:
    if isinstance(params, nn.Module):
        raise TypeError("params is a module: give its parameters, module.parameters()")
    if isinstance(params, Tensor):
        raise TypeError("params is one tensor, over whose rows a loop would go: give a list, [parameter]")
    several = list(params)
    for p in several:
        if not isinstance(p, Tensor):
            raise TypeError(f"params holds {p!r}, which is no parameter: give tensors, as in model.parameters()")
    return {id(p): p for p in several}


def _check_rows(rows: Tensor | slice, p: Tensor, dim: int) -> None:
    held = p.shape[dim] if dim < p.ndim else 0
    if isinstance(rows, slice):
        fits = dim < p.ndim
    elif rows.dtype == torch.bool:
        fits = rows.shape == (held,)
    else:  # those on a GPU would have to be waited for
        fits = not rows.is_floating_point() and (
            rows.device.type != "cpu" or all(-held <= row < held for row in rows.flatten().tolist())
        )
    if not fits:
        raise ValueError(f"rows: a parameter of shape {tuple(p.shape)} lacks some of them along dim={dim}")


def with_inner(*optimizers: Optimizer) -> Iterator[Optimizer]:
    """Optimizers and those that they hold, by whatever names: a wrapper's one, a chain's several; each once."""
    seen: set[int] = set()
    queue: list[Any] = [*reversed(optimizers)]
    while queue:
        part = queue.pop()
        if id(part) in seen or not _is_optimizer(part):
            continue
        seen.add(id(part))
        yield part
        for held in vars(part).values():
            queue += held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else [held]


def parameters_of(optimizers: Iterable[Optimizer]) -> set[int]:
    """`id` of every parameter that optimizers hold, also those inside a wrapper."""
    return {id(p) for part in with_inner(*optimizers) for group in part.param_groups for p in group["params"]}


def holding(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Those of some optimizers that hold at least one of these parameters."""
    wanted = {id(p) for p in parameters}
    return [optimizer for optimizer in optimizers if parameters_of([optimizer]) & wanted]


def _reset_counters(optimizer: Optimizer, group: dict[str, Any], whole: bool) -> list[str]:
    """Set the counters of a group back if all its parameters were reset; otherwise a line that says what continues."""
    steps = max(float(group.get(name) or 0) for name in ("step", "k", "counter"))
    if steps == 0:
        return []
    if not whole:
        return [
            f"{type(optimizer).__name__} counts steps for a whole parameter group, of which only some parameters were "
            f"reset: their bias correction continues from step {steps:.0f}, so that their first steps are too large. "
            "Put the weights to project into a group of their own, or build a new optimizer"
        ]
    for name, first in _GROUP_COUNTERS.items():
        if isinstance(group.get(name), Tensor):
            group[name].fill_(first)
        elif name in group:
            group[name] = first
    return []


def _forget(optimizer: Optimizer, group: dict[str, Any], p: Tensor) -> None:
    state = optimizer.state[p]
    if isinstance(optimizer, torch.optim.Adagrad):  # makes its state when built, never again
        state["step"].zero_()
        state["sum"].fill_(group["initial_accumulator_value"])
        return
    # A captured CUDA graph holds the addresses of these tensors, so they stay and become zero, where zero is new.
    captured = group.get("capturable") and set(state) <= {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    if not captured and MASTER not in state:
        del optimizer.state[p]
        return
    for name, value in state.items():
        if name != MASTER:
            state[name] = value.zero_() if isinstance(value, Tensor) else 0


def _forget_rows(optimizer: Optimizer, group: dict[str, Any], p: Tensor, rows: Tensor | slice, dim: int) -> list[str]:
    """Give rows of a parameter's state their first values; state that has no such rows is reset whole, and named."""
    state = {name: value for name, value in optimizer.state[p].items() if name != MASTER}
    if odd := [name for name, value in state.items() if not _has_rows(value, p)]:
        _forget(optimizer, group, p)
        return [f"{type(optimizer).__name__} keeps {odd[0]}, which no part of a weight can be reset in: all of it was"]
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == p.shape:
            # writing to rows of a DTensor would write to a copy
            whole = distributed.full(value).clone() if distributed.is_sharded(value) else value
            first: Tensor | float = group.get(_FIRST_VALUES.get(name, ""), 0.0)
            if name in _WEIGHTS:
                now = distributed.full(p).detach().to(whole.dtype).transpose(0, dim)
                is_mask = isinstance(rows, Tensor) and rows.dtype == torch.bool
                first = now if is_mask else now[rows]
            fill_rows_(whole, rows, first, dim)
            if whole is not value:
                distributed.write_(value, whole)
    return []


def _has_rows(value: object, p: Tensor) -> bool:
    """Whether a piece of state is a number for each of the weight's, or one number for all."""
    if not isinstance(value, Tensor):
        return not isinstance(value, (list, tuple, dict))
    plain = type(value) in (Tensor, nn.Parameter) or distributed.is_sharded(value)
    return (value.shape == p.shape and value.is_floating_point() and plain) or value.numel() == 1


def fill_rows_(tensor: Tensor, rows: Tensor | slice, value: Tensor | float, dim: int = 0) -> None:
    """Write a value to rows along `dim`, in place.

    Args:
        tensor: what is written to.
        rows: index, slice, or a boolean mask, with which no number is read from the device.
        value: a number; beside an index, rows; beside a mask, a tensor of the whole shape.
        dim: the dimension that `rows` counts along.
    """
    front = tensor.transpose(0, dim)
    if isinstance(rows, Tensor) and rows.dtype == torch.bool:
        front.copy_(torch.where(rows.to(tensor.device).view(-1, *[1] * (tensor.ndim - 1)), value, front))
    elif isinstance(rows, Tensor) and not isinstance(value, Tensor):
        front.index_fill_(0, rows, value)  # an assignment would send the number to the device, and wait
    else:
        front[rows] = value


def set_rate_factor(optimizer: Optimizer, factor: float) -> None:
    """Every group's learning rate to `factor` times the one that it began with (kept as `initial_lr`)."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def hold_all(optimizers: Iterable[Optimizer], parameters: Iterable[Tensor]) -> bool:
    """Whether the optimizers hold every one of these parameters; a method may have put in new ones."""
    return {id(p) for p in parameters} <= parameters_of(optimizers)
