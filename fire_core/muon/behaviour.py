"""What a Muon optimizer takes for one matrix of a parameter with more than two dimensions, and how it scales the rate.

Packages differ here: of a stack (experts, m, n) one takes every matrix alone, another flattens it to (experts, m n).
What is known of a class or written in its group is taken from there. Any other optimizer is tried, by a new one on
small parameters: whether the update of one part depends on the gradient of another says whether both are one matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.muon.optimizer import ADJUST, SplitMuon
from fire_core.weights.new_optimizer import Builder, CannotBuildError, without_side_effects

SEPARATE, JOINED, REFUSED, UNKNOWN = "one by one", "as one matrix", "not at all", "in a way that is not known"
SPLITS = ("split_sizes", "param_split_fn", "param_recombine_fn")  # entries that fit the true parameter alone
# Small shapes that are tried; not too small, since timm's Muon leaves sides below four to AdamW.
STACK, KERNELS, TALL = (8, 12, 10), (12, 10, 3, 3), (32, 8)
DELAYED = 3  # optimizers may take no step of their own before they have taken so many


class Behaviour(NamedTuple):
    """How an optimizer takes parameters.

    Attributes:
        stack: how the matrices of a parameter (count, m, n) are taken: `SEPARATE`, `JOINED`, `REFUSED`, `UNKNOWN`.
        kernel: how the kernels of a convolution (c_out, c_in, k_h, k_w) are taken: joined to one matrix they are right.
        rate_depends_on_orientation: whether the rate of an m x n matrix is another than that of an n x m matrix.
        factor: (m, n) -> the factor on the rate; None where it is not known.
    """

    stack: str
    kernel: str
    rate_depends_on_orientation: bool
    factor: Callable[[int, int], float] | None = None

    def scales_alike(self, rows: int, columns: int) -> bool:
        """Return whether a matrix (rows, columns) has the same rate as its transpose."""
        if rows == columns or not self.rate_depends_on_orientation:
            return True
        return self.factor is not None and math.isclose(self.factor(rows, columns), self.factor(columns, rows))


def behaviour_of(optimizer: Optimizer | None, group: Mapping[str, Any], parameter: Tensor) -> Behaviour:
    """Return how the optimizer of a group takes parameters.

    Args:
        optimizer: stays as it is; None where a group alone is given.
        group: one of its groups.
        parameter: a parameter of the group, for its device and for what the optimizer knows of it.
    """
    if isinstance(optimizer, SplitMuon | torch.optim.Muon) or (optimizer is None and "cuts" in group):
        factor = ADJUST.get(group.get("adjust_lr_fn"), ADJUST[None])
        if isinstance(optimizer, torch.optim.Muon):
            return Behaviour(REFUSED, REFUSED, True, factor)
        return Behaviour(SEPARATE, JOINED, True, factor)
    if isinstance(group.get("flatten"), bool):  # dion and muonium
        taken = JOINED if group["flatten"] else SEPARATE
        return Behaviour(taken, taken, _rate_depends_on_orientation(optimizer, group, parameter))
    if optimizer is None:
        by_algorithm = SEPARATE if "algorithm" in group else UNKNOWN  # where `flatten` is False unless it is written
        return Behaviour(by_algorithm, by_algorithm if "algorithm" in group else JOINED, _options_say_sides(group))
    return Behaviour(
        _how_taken(optimizer, parameter, STACK, (0,), (1,)),
        _how_taken(optimizer, parameter, KERNELS, (0, 0), (1, 1)),
        _rate_depends_on_orientation(optimizer, group, parameter),
    )


def heeds_splits(optimizer: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> bool:
    """Return whether an optimizer reads what its group says of parts, `split_sizes` or `param_split_fn`.

    If it cannot be tried, it is taken to read them.
    """
    if isinstance(optimizer, torch.optim.Muon):
        return False
    half = TALL[0] // 2
    splits: dict[str, Any] = {"split_sizes": (half, half)}
    if group.get("param_split_fn") is not None:
        splits = {"param_split_fn": lambda matrix: [*matrix.chunk(2)], "param_recombine_fn": torch.cat}
    try:
        return not _are_coupled(optimizer, parameter, TALL, 0, slice(half, None), splits)
    except Exception:  # whatever a foreign class may raise
        return True


def _how_taken(
    optimizer: Optimizer, parameter: Tensor, shape: tuple[int, ...], changed: tuple[int, ...], compared: tuple[int, ...]
) -> str:
    """Return how an optimizer takes the matrices of a parameter, tried on a small one.

    If the update of one matrix depends on the gradient of another one, both are taken as one matrix.

    Args:
        optimizer: a new one of its class makes the step.
        parameter: a parameter of the optimizer, for its device and for what the optimizer knows of it.
        shape: shape of the small parameter.
        changed: index of the matrix whose gradient is changed.
        compared: index of the matrix whose update is compared.

    Returns:
        `SEPARATE`, `JOINED`, or, where the step fails, `REFUSED` if a matrix can be trained, else `UNKNOWN`.
    """
    try:
        return JOINED if _are_coupled(optimizer, parameter, shape, changed, compared) else SEPARATE
    except Exception:  # whatever a foreign class may raise
        return REFUSED if _takes_matrices(optimizer, parameter) else UNKNOWN


def _are_coupled(
    optimizer: Optimizer,
    parameter: Tensor,
    shape: tuple[int, ...],
    changed: Any,
    compared: Any,
    splits: Mapping[str, Any] | None = None,
) -> bool:
    """Return whether the update of one part of a small parameter depends on the gradient of another part.

    Args:
        optimizer: a new one of its class makes the steps.
        parameter: a parameter of the optimizer, for its device and for what the optimizer knows of it.
        shape: shape of the small parameter.
        changed: index of the part whose gradient is changed.
        compared: index of the part whose update is compared.
        splits: see `_trial_update`.

    Raises:
        Exception: whatever `_trial_update` raises.
    """
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    other = gradient.clone()
    other[changed] = gradient[changed].flip(-1) * 3
    update = _trial_update(optimizer, parameter, gradient, splits)[compared]
    update_after = _trial_update(optimizer, parameter, other, splits)[compared]
    return not torch.allclose(update, update_after, rtol=1e-3, atol=1e-6 * float(update.norm()))


def _takes_matrices(optimizer: Optimizer, parameter: Tensor) -> bool:
    """Return whether a new optimizer of the class can be built and changes a matrix (32, 8)."""
    try:
        return bool(_trial_update(optimizer, parameter, torch.ones(TALL)).any())
    except Exception:  # whatever a foreign class may raise
        return False


def _rate_depends_on_orientation(optimizer: Optimizer | None, group: Mapping[str, Any], parameter: Tensor) -> bool:
    """Return whether the rate of an m x n matrix is another than that of an n x m matrix.

    The norms of the updates of a gradient and of its transpose tell it; if no step can be made, the group's options.
    """
    if optimizer is None:
        return _options_say_sides(group)
    gradient = torch.randn(TALL, generator=torch.Generator().manual_seed(0))
    try:
        tall, flat = (_trial_update(optimizer, parameter, values).norm() for values in (gradient, gradient.T))
    except Exception:  # whatever a foreign class may raise
        return _options_say_sides(group)
    return not torch.allclose(tall, flat, rtol=1e-2)


def _options_say_sides(group: Mapping[str, Any]) -> bool:
    """Return whether the options of a group scale the rate of a matrix and of its transpose in different ways.

    A rate by the root mean square, as Adam's, is the same for both.
    """
    says = [str(group[key]) for key in ("adjust_lr", "adjust_lr_fn", "scale_mode") if key in group]
    return not any("rms" in word for word in says) and group.get("use_adjusted_lr") is not True


def _may_try_steps() -> bool:
    """Return whether steps may be tried: not in a process group, where one process would wait for the others."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _trial_update(
    optimizer: Optimizer, parameter: Tensor, gradient: Tensor, splits: Mapping[str, Any] | None = None
) -> Tensor:
    """Return what the first steps of a new optimizer of the same class and options add to a small parameter of zeros.

    Args:
        optimizer: stays as it is.
        parameter: a parameter of the optimizer, for its device and for what the optimizer knows of it.
        gradient: gradient of the small parameter, the same in each step.
        splits: entries of the group that say how the small parameter is cut.

    Returns:
        The update, of the gradient's shape, on the CPU. Optimizers whose first step changes nothing make up to three.

    Raises:
        CannotBuildError: no new optimizer can be built, or it changes nothing.
        Exception: whatever its step raises.
    """
    if not _may_try_steps():
        raise CannotBuildError("a step among several processes")
    device = "cpu" if parameter.device.type == "meta" else parameter.device
    with without_side_effects():
        small = nn.Parameter(torch.zeros(gradient.shape, device=device))
        vars(small).update(vars(parameter))  # DeepSpeed writes there whether Muon trains it
        builder = Builder(optimizer)
        builder.records, builder.passes_options_alone = {*SPLITS}, False
        new = builder.build({id(parameter): small})
        for options in new.param_groups:
            options.update(splits or {})
            rate = options.get("lr")  # replaced, since a warm-up may begin at 0
            options["lr"] = torch.full_like(rate, 0.1) if isinstance(rate, Tensor) else 0.1
        for _ in range(DELAYED):
            small.grad = gradient.to(device)
            new.step()
            if bool(small.any()):
                return small.detach().cpu()
    raise CannotBuildError("a new one takes no step")
