"""Master copies: the float32 weights from which an optimizer writes a model's half-precision ones after each step.

Apex, Megatron, DeepSpeed and hand-written loops keep them in the optimizer's groups, TransformerEngine in its state. An
act that changes the model's weights alone is undone by the next step, which copies the masters over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.as_new import MASTER
from fire_core.weights.optimizers import optimizers_of, with_inner

HALF = (torch.bfloat16, torch.float16)
# Masters of acts in progress: their weights have changed, so that a comparison of values would not find them.
_in_use: list[Master] = []
# A master of the weight's shape, or a flat tensor and where in it the weight begins, as ZeRO's partitions are.
Masters: TypeAlias = Mapping[str, Tensor | tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class Master:
    """One master copy.

    Attributes:
        weight: the model's parameter.
        tensor: what holds the copy.
        start: where it begins in a flat tensor; None: the tensor has the weight's shape.
        part: of the flattened weight, where the flat tensor holds no more: ZeRO cuts weights at the ends of its
            partitions, and of most of them a process holds nothing.
    """

    weight: Tensor
    tensor: Tensor
    start: int | None = None
    part: slice | None = None

    def pair(self) -> tuple[Tensor, Tensor]:
        """The weight and the copy, of one shape, or the part that there is of both; views, to be written to."""
        weight, copy = self.weight.detach(), self.tensor.detach()
        if self.part is not None:
            weight = weight.view(-1)[self.part]
        return weight, copy if self.rows is None else copy.view(-1)[self.rows].view(weight.shape)

    @property
    def rows(self) -> slice | None:
        """Where it lies in a flat tensor; None: it is the whole tensor."""
        if self.start is None:
            return None
        return slice(self.start, self.start + len(range(self.weight.numel())[self.part or slice(None)]))

    def agrees(self) -> bool:
        """Whether it is the weight's value, but for rounding."""
        weight, copy = self.pair()
        return torch.equal(copy.to(weight.dtype), weight.to(copy.device))


def find_masters(
    model: nn.Module,
    optimizers: Optimizer | Iterable[Optimizer],
    given: Masters | None = None,
    changing: Iterable[Tensor] | None = None,
) -> list[Master]:
    """The master copies of a model's weights.

    A master is what the caller names, what an optimizer keeps as `master_param` in the state of a weight, the part of
    an optimizer's flat tensor that DeepSpeed names at a weight (ZeRO stages 1 and 2), or a tensor in an optimizer's
    groups that is none of the model's, has the shape of a half-precision weight that no optimizer holds, and equals it
    after rounding.

    Args:
        model: whose weights they are copies of.
        optimizers: those that train it.
        given: parameter name -> its master, or (flat tensor, offset) for a part of a flat one.
        changing: the weights that an act is to change; None: any may be.

    Returns:
        The masters; a weight has at most one.

    Raises:
        ValueError: no optimizer holds a half-precision weight that is trained and to be changed, while one holds a
            tensor that is no weight of the model and could be its copy, by its size; a name or a shape of `given` that
            does not fit, or a copy that differs from its weight; DeepSpeed's copies whose optimizer is not given, or
            ZeRO stage 3.
    """
    named = dict(model.named_parameters())
    parts = list(with_inner(*optimizers_of(optimizers)))
    of_model = {id(p) for p in named.values()}
    held = [p for part in parts for group in part.param_groups for p in group["params"]]
    masters = {id(master.weight): master for master in _in_use if id(master.weight) in of_model}
    masters |= _of_zero(named, held) | _given(named, given or {})
    for part in parts:
        for p, state in part.state.items():
            if id(p) in of_model and isinstance(state, dict) and isinstance(state.get(MASTER), Tensor):
                masters.setdefault(id(p), Master(p, state[MASTER]))
    ids, taken = {id(p) for p in held}, {id(master.tensor) for master in masters.values()}
    strange = [t for t in held if id(t) not in of_model and id(t) not in taken and t.is_floating_point()]
    unheld = {
        name: p
        for name, p in named.items()
        if p.dtype in HALF and p.requires_grad and id(p) not in ids and id(p) not in masters
    }
    for weight in unheld.values():
        for tensor in strange:
            if tensor.shape == weight.shape and tensor.dtype not in HALF and Master(weight, tensor).agrees():
                masters[id(weight)] = Master(weight, tensor)
                strange = [other for other in strange if other is not tensor]
                break
    changed = None if changing is None else {id(weight) for weight in changing}
    for name, weight in unheld.items():
        if id(weight) in masters or not (changed is None or id(weight) in changed):
            continue
        for tensor in strange:
            if tensor.numel() == weight.numel() or (tensor.ndim == 1 and tensor.numel() > weight.numel()):
                raise ValueError(
                    f"an optimizer holds a tensor of shape {tuple(tensor.shape)} that is no weight of the model, and "
                    f"none holds {name}: if it is trained through a copy, name it, masters={{{name!r}: copy}}, or "
                    "(flat tensor, offset) for a part of a flat one; if another optimizer trains it, give that one too"
                )
    return list(masters.values())


def _of_zero(named: Mapping[str, Tensor], held: list[Tensor]) -> dict[int, Master]:
    """The copies in ZeRO's flat partitions: DeepSpeed notes at each weight what of it this process keeps, and where."""
    divided = any(hasattr(weight, "_hp_mapping") for weight in named.values())
    flats = {t.untyped_storage().data_ptr(): t for t in held} if divided else {}  # FSDP's shards have no storage to ask
    masters: dict[int, Master] = {}
    for name, weight in cast(Mapping[str, Any], named).items():
        if hasattr(weight, "ds_id"):
            raise ValueError(
                f"{name} is divided by ZeRO stage 3, which is not supported: save the weights, project them from disk "
                "to disk (fire project) and start the next stage from them, or train with stage 2"
            )
        noted = getattr(weight, "_hp_mapping", None)
        if noted is not None and held:
            flat = flats.get(noted.hp_fragment.untyped_storage().data_ptr())
            if flat is None:
                raise ValueError(
                    f"DeepSpeed trains {name} through a copy: give its optimizer, optimizer=engine.optimizer"
                )
            start, own = noted.hp_fragment_address.start, noted.lp_fragment_address
            part = slice(own.start, own.start + own.numel)
            masters[id(weight)] = _checked(name, Master(weight, flat, start, part))
        elif held and hasattr(weight, "_hp_mapping"):
            masters[id(weight)] = Master(weight, held[0], 0, slice(0, 0))  # other processes hold all of it
    return masters


def _checked(name: str, master: Master) -> Master:
    if not master.agrees():
        raise ValueError(f"masters: the copy of {name} has other values than the weight")
    return master


def _given(named: Mapping[str, Tensor], given: Masters) -> dict[int, Master]:
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


@contextmanager
def copied_to_masters(masters: Iterable[Master]) -> Iterator[None]:
    """What is changed in the weights inside this context is changed in their masters as it ends.

    Numbers that stay the same in half precision keep the master's further digits.
    """
    before = [(master, master.pair()[0].clone()) for master in masters]
    outer = len(_in_use)
    _in_use.extend(master for master, _ in before)
    try:
        yield
    finally:
        del _in_use[outer:]
    with torch.no_grad():
        for master, old in before:
            weight, copy = master.pair()
            changed = (weight != old).to(copy.device)
            copy.copy_(torch.where(changed, weight.to(copy.device, copy.dtype), copy))
