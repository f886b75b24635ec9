"""Forget what an optimizer remembers of given parameters.

After a projection the momentum of a weight points at a place where it no longer is. The paper starts a new optimizer at
each phase; inside a run, only the state of the projected weights is stale, and only that is removed here.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from fire_core.weights import distributed

Rows = Tensor | slice | Sequence[int]


@torch.no_grad()
def reset_optimizer_state(
    optimizers: Optimizer | Iterable[Optimizer], params: Iterable[Tensor], rows: Rows | None = None, dim: int = 0
) -> int:
    """Make optimizers treat parameters as if they had never seen them; all other state stays as it is.

    The next step then changes these parameters exactly as a new optimizer with the same settings would, step counters
    and bias correction included. Works with every `torch.optim` optimizer that makes its state at the first step (SGD,
    Adam, AdamW, RMSprop, Muon, ..., in their foreach, fused and capturable variants), and with Adagrad.

    With `rows`, only these rows of the state tensors that have the parameter's shape (moments, momentum) become zero:
    for methods that replace single units. The step counter belongs to the whole parameter and goes on.

    Args:
        optimizers: one optimizer or several; a parameter that an optimizer does not hold is passed over.
        params: the parameters, tied ones once or twice alike.
        rows: index, boolean mask or slice along `dim`, the same for all `params`; None for the whole state.
        dim: the dimension that `rows` counts along: 0 for the outputs of a layer, 1 for its inputs.

    Returns:
        How many (optimizer, parameter) states were reset.
    """
    if isinstance(optimizers, Optimizer):
        optimizers = [optimizers]
    unique = {id(p): p for p in params}
    count = 0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if id(p) not in unique or not optimizer.state.get(p):
                    continue
                if rows is None:
                    _forget(optimizer, group, p)
                else:
                    _forget_rows(optimizer.state[p], p, rows, dim)
                count += 1
    return count


def _forget(optimizer: Optimizer, group: dict[str, object], p: Tensor) -> None:
    state = optimizer.state[p]
    if isinstance(optimizer, torch.optim.Adagrad):  # makes its state when built, never again
        state["step"].zero_()
        state["sum"].fill_(group["initial_accumulator_value"])
        return
    # A captured CUDA graph holds the addresses of these tensors, so they stay and become zero, where zero is new.
    if group.get("capturable") and set(state) <= {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}:
        for value in state.values():
            value.zero_()
        return
    del optimizer.state[p]


def _forget_rows(state: dict[str, object], p: Tensor, rows: Rows, dim: int) -> None:
    index = torch.as_tensor(rows, device=p.device) if not isinstance(rows, (slice, Tensor)) else rows
    where = (slice(None),) * dim + (index,)
    for value in state.values():
        if isinstance(value, Tensor) and value.shape == p.shape:
            if not distributed.is_sharded(value):
                value[where] = 0
                continue
            whole = distributed.full(value).clone()  # writing to rows of a DTensor would write to a copy
            whole[where] = 0
            distributed.write_(value, whole)


def set_rate_factor(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Every group's learning rate to `factor` times the one that it began with (kept as `initial_lr`)."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def parts_of(optimizer: torch.optim.Optimizer | None) -> list[torch.optim.Optimizer]:
    """The optimizers that hold state: a combined one's `parts`, or itself."""
    return [] if optimizer is None else list(getattr(optimizer, "parts", [optimizer]))
