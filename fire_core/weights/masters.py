"""Master copies: float32 weights that an optimizer trains and copies into a model's half-precision weights.

Apex, Megatron, DeepSpeed and hand-written loops keep them in the optimizer's groups, TransformerEngine in its state. If
only the model's weights are changed, the next step of the optimizer copies the masters over them and undoes the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.as_new import MASTER_KEY
from fire_core.weights.optimizer_state import StateReset
from fire_core.weights.optimizers import optimizers_of, with_inner

HALF = (torch.bfloat16, torch.float16)
# Masters whose weights are being changed (`copied_to_masters`): a comparison of values would not find them now.
_in_use: list[Master] = []
# From the name of a parameter to its master: a tensor of its shape, or a flat tensor and the index at which it begins.
Masters: TypeAlias = Mapping[str, Tensor | tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class Master:
    """One master copy of a weight.

    Attributes:
        weight: the model's parameter.
        tensor: the tensor that holds the copy.
        start: index in a flat tensor at which the copy begins; None: the tensor has the weight's shape.
        part: the part of the flattened weight that is copied; None: all of it. ZeRO cuts weights at the ends of its
            partitions, so a process holds a part of some weights and nothing of most.
    """

    weight: Tensor
    tensor: Tensor
    start: int | None = None
    part: slice | None = None

    def pair(self) -> tuple[Tensor, Tensor]:
        """Return the weight and its copy as views of one shape, which can be written to.

        If only a part of the weight is copied, both are this part, flattened.
        """
        weight, copy = self.weight.detach(), self.tensor.detach()
        if self.part is not None:
            weight = weight.view(-1)[self.part]
        return weight, copy if self.rows is None else copy.view(-1)[self.rows].view(weight.shape)

    @property
    def rows(self) -> slice | None:
        """Return where the copy is in its flat tensor; None: it is the whole tensor."""
        if self.start is None:
            return None
        return slice(self.start, self.start + len(range(self.weight.numel())[self.part or slice(None)]))

    def agrees(self) -> bool:
        """Return whether the copy, rounded to the weight's dtype, equals the weight."""
        weight, copy = self.pair()
        return torch.equal(copy.to(weight.dtype), weight.to(copy.device))


def find_masters(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    given: Masters | None = None,
    changing: Iterable[Tensor] | None = None,
) -> list[Master]:
    """Return the master copies of a model's weights.

    A tensor is the master of a weight if

    - the caller says so (`given`);
    - an optimizer keeps it as `master_param` in the state of the weight, or at the weight's place in
      `param_groups_master`, as apex does;
    - it is the part of an optimizer's flat tensor that DeepSpeed notes at the weight (ZeRO stages 1 and 2); or
    - it is in an optimizer's groups and is no weight of the model; the weight is of half precision, in no optimizer and
      of the same shape; and both are equal after rounding.

    Args:
        model: the model with the weights.
        optimizers: one optimizer or several that train it.
        given: from the name of a parameter to its master, or to (flat tensor, index at which the master begins).
        changing: the weights that are going to be changed; None: any may be.

    Returns:
        The masters; a weight has at most one.

    Raises:
        ValueError: a trained half-precision weight that is going to be changed is in no optimizer, while an optimizer
            holds a tensor that is no weight of the model and is large enough to be its copy; `given` names no weight,
            or a copy of another shape or other values; DeepSpeed trains the model through copies of an optimizer that
            is not among `optimizers`; or it uses ZeRO stage 3.
    """
    named = dict(model.named_parameters())
    parts = list(with_inner(*optimizers_of(optimizers)))
    model_ids = {id(p) for p in named.values()}
    optimized = [p for part in parts for group in part.param_groups for p in group["params"]]
    masters = {id(master.weight): master for master in _in_use if id(master.weight) in model_ids}
    masters |= _masters_of_zero(named, optimized) | _given_masters(named, given or {})
    for part in parts:
        for p, state in part.state.items():
            if id(p) in model_ids and isinstance(state, dict) and isinstance(state.get(MASTER_KEY), Tensor):
                masters.setdefault(id(p), Master(p, state[MASTER_KEY]))
        for group, copies in zip(part.param_groups, getattr(part, "param_groups_master", ()), strict=False):
            for p, copy in zip(group["params"], copies["params"], strict=True):
                if id(p) in model_ids and p.dtype in HALF and isinstance(copy, Tensor):
                    masters.setdefault(id(p), Master(p, copy))
    optimized_ids = {id(p) for p in optimized}
    master_ids = {id(master.tensor) for master in masters.values()}
    candidates = [
        tensor
        for tensor in optimized
        if id(tensor) not in model_ids and id(tensor) not in master_ids and tensor.is_floating_point()
    ]
    not_optimized = {
        name: p
        for name, p in named.items()
        if p.dtype in HALF and p.requires_grad and id(p) not in optimized_ids and id(p) not in masters
    }
    for weight in not_optimized.values():
        for tensor in candidates:
            if tensor.shape == weight.shape and tensor.dtype not in HALF and Master(weight, tensor).agrees():
                masters[id(weight)] = Master(weight, tensor)
                candidates = [other for other in candidates if other is not tensor]
                break
    changing_ids = None if changing is None else {id(weight) for weight in changing}
    for name, weight in not_optimized.items():
        if id(weight) in masters or not (changing_ids is None or id(weight) in changing_ids):
            continue
        for tensor in candidates:
            if tensor.numel() == weight.numel() or (tensor.ndim == 1 and tensor.numel() > weight.numel()):
                raise ValueError(
                    f"an optimizer holds a tensor of shape {tuple(tensor.shape)} that is no weight of the model, and "
                    f"none holds {name}: if it is trained through a copy, name it, masters={{{name!r}: copy}}, or "
                    "(flat tensor, offset) for a part of a flat one; if another optimizer trains it, give that one too"
                )
    return list(masters.values())


def _masters_of_zero(named: Mapping[str, Tensor], optimized: list[Tensor]) -> dict[int, Master]:
    """Return the copies in the flat partitions of DeepSpeed's ZeRO.

    DeepSpeed notes at each weight which part of it this process keeps, and where in which flat tensor.

    Args:
        named: the model's weights by name.
        optimized: the tensors that the optimizers hold.

    Returns:
        From the `id` of a weight to its master; empty without ZeRO.

    Raises:
        ValueError: ZeRO stage 3, or the flat tensor of a weight is not among `optimized`.
    """
    uses_zero = any(hasattr(weight, "_hp_mapping") for weight in named.values())
    # Only with ZeRO, since shards of FSDP have no storage to ask.
    flat_tensors = {tensor.untyped_storage().data_ptr(): tensor for tensor in optimized} if uses_zero else {}
    masters: dict[int, Master] = {}
    for name, weight in cast(Mapping[str, Any], named).items():
        if hasattr(weight, "ds_id"):
            raise ValueError(
                f"{name} is divided by ZeRO stage 3, which is not supported: save the weights, project them from disk "
                "to disk (fire project) and start the next stage from them, or train with stage 2"
            )
        mapping = getattr(weight, "_hp_mapping", None)
        if mapping is not None and optimized:
            flat = flat_tensors.get(mapping.hp_fragment.untyped_storage().data_ptr())
            if flat is None:
                raise ValueError(
                    f"DeepSpeed trains {name} through a copy: give its optimizer, optimizer=engine.optimizer"
                )
            start, address = mapping.hp_fragment_address.start, mapping.lp_fragment_address
            part = slice(address.start, address.start + address.numel)
            masters[id(weight)] = _checked(name, Master(weight, flat, start, part))
        elif optimized and hasattr(weight, "_hp_mapping"):
            masters[id(weight)] = Master(weight, optimized[0], 0, slice(0, 0))  # other processes hold all of it
    return masters


def _checked(name: str, master: Master) -> Master:
    """Return a master, after a check that it has its weight's values.

    Raises:
        ValueError: it has other values.
    """
    if not master.agrees():
        raise ValueError(f"masters: the copy of {name} has other values than the weight")
    return master


def _given_masters(named: Mapping[str, Tensor], given: Masters) -> dict[int, Master]:
    """Return the masters that the caller names, by the `id` of the weight.

    Args:
        named: the model's weights by name.
        given: see `find_masters`.

    Raises:
        ValueError: a name, type, shape or value that does not fit.
    """
    if not isinstance(given, Mapping):
        raise ValueError("masters: give a mapping, {name: copy} or {name: (flat tensor, offset)}")
    masters: dict[int, Master] = {}
    for name, value in given.items():
        if name not in named:
            raise ValueError(f"masters: the model has no weight {name!r}")
        weight, (tensor, start) = named[name], value if isinstance(value, tuple) else (value, None)
        if not isinstance(tensor, Tensor):
            raise ValueError(f"masters: the copy of {name} is a {type(tensor).__name__}, no tensor")
        fits = tensor.shape == weight.shape if start is None else 0 <= start <= tensor.numel() - weight.numel()
        if not fits:
            where = "" if start is None else f" from {start} on"
            raise ValueError(
                f"masters: {name} has shape {tuple(weight.shape)}, its copy {tuple(tensor.shape)}{where} cannot hold it"
            )
        masters[id(weight)] = _checked(name, Master(weight, tensor, start))
    return masters


def masters_in_use() -> tuple[Master, ...]:
    """Return the masters of the blocks of `copied_to_masters` that are open."""
    return (*_in_use,)


@contextmanager
def copied_to_masters(masters: Iterable[Master]) -> Iterator[None]:
    """Copy what is changed in weights within this block into their masters, when the block ends without an error.

    A number that did not change in half precision keeps the master's further digits.
    """
    weights_before = [(master, master.pair()[0].clone()) for master in masters]
    number_in_use = len(_in_use)
    _in_use.extend(master for master, _ in weights_before)
    try:
        yield
    finally:
        del _in_use[number_in_use:]
    with torch.no_grad():
        for master, weight_before in weights_before:
            weight, copy = master.pair()
            changed = (weight != weight_before).to(copy.device)
            copy.copy_(torch.where(changed, weight.to(copy.device, copy.dtype), copy))


def reset_state_of_masters(reset: StateReset, masters: Iterable[Master]) -> None:
    """Reset the optimizers' state of master copies; of one within a flat tensor, that of its rows."""
    masters = list(masters)
    reset.whole(master.tensor for master in masters if master.rows is None)
    for master in masters:
        if master.rows is not None:
            reset.rows([master.tensor], master.rows)
