"""Shrink and perturb on a whole model."""

import warnings
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.errors import FireWarning
from fire_core.polar.options import check_number
from fire_core.polar.steps import working_dtype
from fire_core.reinit.checks import check_finite, check_module, check_same_init, check_weights
from fire_core.reinit.initial import initial_weights, require_initial_value
from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.masters import Masters, copied_to_masters, find_masters, reset_state_of_masters
from fire_core.weights.optimizer_state import StateReset
from fire_core.weights.optimizers import optimizers_of
from fire_core.weights.topology import clean_name, unwrap


@torch.no_grad()
def shrink_and_perturb_(
    model: nn.Module,
    init: Mapping[str, Tensor],
    coef: float = 0.8,
    exclude: Collection[Tensor] = (),
    optimizer: Optimizer | Iterable[Optimizer] = (),
    masters: Masters | None = None,
    *,
    reset_state: bool = True,
) -> None:
    """Shrink and perturb (Ash and Adams, NeurIPS 2020) as the FIRE paper uses it: W <- (1 - coef) W + coef W_init.

    All parameters change, biases, norms and frozen ones too, tied ones once; buffers stay. The perturbation is the
    stored initial model, not a fresh draw.

    Args:
        model: any module.
        init: copies of the initial weights by parameter name.
        coef: 0 changes nothing, 1 restores the initial parameters exactly.
        exclude: parameters to keep.
        optimizer: optimizer(s) that train the model. Their state of the changed weights is reset, as by `fire_`. The
            float32 master copies of half-precision weights that they hold are changed too.
        masters: master copies that the optimizers do not show, as for `fire_`.
        reset_state: False keeps the optimizers' state.

    Raises:
        TypeError: `model` is no module, or `exclude` holds something other than parameters.
        ValueError: `coef` lies outside [0, 1]; `init` lacks a parameter or is the model's own memory; a parameter is
            not floating point, or shares its memory with another one; the weights or `init` hold NaN or Inf; master
            copies cannot be matched. Nothing is changed then.

    Warns:
        FireWarning: an optimizer's state cannot be reset fully.
    """
    check_number("coef", coef, lambda share: 0 <= share <= 1, "between 0 and 1")
    if isinstance(exclude, (str, nn.Module, Tensor)) or not all(isinstance(p, Tensor) for p in exclude):
        raise TypeError("exclude: give a list of parameters; patterns and modules are for fire_")
    distributed.reshard_(check_module(model))
    parameters, excluded = unwrap(model).named_parameters(), set(exclude)
    entries = [Entry(clean_name(name), p, "other") for name, p in parameters if p not in excluded]
    initial = initial_weights(init, entries)
    initial_values = [require_initial_value(entry, initial) for entry in entries]
    for entry in entries:
        if not entry.parameter.is_floating_point() or entry.parameter.dtype.itemsize == 1:
            raise ValueError(f"{entry.name} is {entry.parameter.dtype}: only floating-point weights can be mixed")
    check_weights(unwrap(model), entries)
    named_tensors = [
        (f"init[{entry.name!r}]", value.to(entry.parameter.dtype))
        for entry, value in zip(entries, initial_values, strict=True)
    ]
    if coef < 1:  # with coef=1 the old weights do not count, and may hold NaN
        named_tensors += [(entry.name, entry.parameter) for entry in entries]
    check_finite(named_tensors, distributed.ddp_group(model))
    check_same_init(model, entries, initial)
    changing = [entry.parameter for entry in entries]
    all_masters = find_masters(unwrap(model), optimizer, masters, changing)
    with copied_to_masters(all_masters):
        for entry, value in zip(entries, initial_values, strict=True):
            weight = distributed.full(entry.parameter)
            dtype = working_dtype(weight)
            value = value.to(weight.device, dtype)
            mixed = value if coef == 1 else (1 - coef) * weight.to(dtype) + coef * value
            distributed.write_(entry.parameter, mixed)
    if reset_state:
        reset = StateReset(optimizers_of(optimizer))
        reset.whole(changing)
        reset_state_of_masters(reset, all_masters)
        for note in reset.notes:
            warnings.warn(note, FireWarning, stacklevel=2)
