"""What an optimizer still knows of parameters that were reset, seen beside a new optimizer of the same kind."""

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

MASTER = "master_param"  # where TransformerEngine's FusedAdam keeps the float32 copy of a weight: no state to forget


def not_as_new(optimizer: Optimizer, params: set[int]) -> list[str]:
    """A line for each thing that an optimizer still knows of parameters, and a new one would not.

    Args:
        optimizer: no wrapper of another one; neither it nor its parameters are changed.
        params: `id` of each parameter.
    """
    name, held = type(optimizer).__name__, [p for g in optimizer.param_groups for p in g["params"] if id(p) in params]
    if not held or not isinstance(optimizer, Optimizer):
        return []
    try:
        used, new = _new_one(optimizer), _new_one(optimizer)
        used.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    except Exception as error:  # whatever a foreign class may raise
        return [f"{name}: no new one can be built to compare with ({type(error).__name__}: {error})"]
    shapes = {p.shape for p in held}
    outside = [key for key, value in vars(optimizer).items() if key not in ("state", "param_groups", "defaults")]
    outside = [key for key in outside if _holds(vars(optimizer)[key], shapes)]
    found = [f"{name} keeps {key} outside of its state, which cannot be compared" for key in outside]
    generator = torch.Generator().manual_seed(0)
    for before, group, fresh in zip(optimizer.param_groups, used.param_groups, new.param_groups, strict=True):
        for original, p, q in zip(before["params"], group["params"], fresh["params"], strict=True):
            if id(original) not in params:
                p.grad = q.grad = None
                continue
            found += [
                f"{name} keeps {key} of a weight"
                for key in _differing(used.state.get(p, {}), new.state.get(q, {}))
                if key != MASTER  # the weight itself, in full precision
            ]
            p.grad = torch.randn(p.shape, generator=generator).to(p)
            q.grad = p.grad.clone()
        if all(id(p) in params for p in before["params"]):
            options = (*optimizer.defaults, "params", "initial_lr")
            counters = {key: value for key, value in group.items() if key not in options and _is_number(value)}
            found += [f"{name} keeps {key} of a group" for key in _differing(counters, fresh)]
    starts = [p.detach().clone() for group in used.param_groups for p in group["params"]]
    try:
        used.step()
        new.step()
    except Exception as error:  # whatever a foreign class may raise
        return [*dict.fromkeys(found), f"{name}: no step can be compared ({type(error).__name__}: {error})"]
    pairs = zip(*([p for group in o.param_groups for p in group["params"]] for o in (used, new)), strict=True)
    for start, (p, q) in zip(starts, pairs, strict=True):
        if q.grad is not None and not torch.equal(p.detach() - start, q.detach() - start):
            found.append(f"{name} takes another step than a new one for a weight of shape {tuple(p.shape)}")
    return list(dict.fromkeys(found))


def _new_one(optimizer: Optimizer) -> Optimizer:
    """Of the same class and options, on copies of the parameters."""
    groups = []
    for group in optimizer.param_groups:
        options = {key: group[key] for key in optimizer.defaults if key in group}
        groups.append(options | {"params": [p.detach().clone() for p in group["params"]]})
    accepted = inspect.signature(type(optimizer)).parameters
    return type(optimizer)(groups, **{key: v for key, v in optimizer.defaults.items() if key in accepted})


def _differing(some: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Keys of `some` whose values `others` lacks or has otherwise; values of zero count as none."""

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, Tensor):
            return torch.equal(a, b) if isinstance(b, Tensor) and a.shape == b.shape else not bool(a.any())
        return bool(a == b) or not a

    return [key for key, value in some.items() if not same(value, others.get(key))]


def _holds(value: object, shapes: set[torch.Size]) -> bool:
    """Whether tensors as large as a weight, but no weights, lie in an attribute, in a list or by name or parameter."""
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else [value]
    states = [one for one in inside if isinstance(one, Tensor) and not isinstance(one, torch.nn.Parameter)]
    return any(one.shape in shapes and one.numel() > 1 for one in states)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, Tensor)) and not isinstance(value, bool)
