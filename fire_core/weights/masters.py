"""Master copies: the float32 weights from which an optimizer writes a model's half-precision ones after each step.

Apex, Megatron, DeepSpeed and hand-written loops keep them in the optimizer's groups, TransformerEngine in its state. An
act that changes the model's weights alone is undone by the next step, which copies the masters over them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fire_core.weights.as_new import MASTER
from fire_core.weights.optimizer_state import optimizers_of, with_inner

HALF = (torch.bfloat16, torch.float16)
# A master of the weight's shape, or a flat tensor and where in it the weight begins, as ZeRO's partitions are.
Masters: TypeAlias = Mapping[str, Tensor | tuple[Tensor, int]]


@dataclass(frozen=True, eq=False)
class Master:
    """One master copy.

    Attributes:
        weight: the model's parameter.
        tensor: what holds the copy.
        start: where it begins in a flat tensor; None: the tensor has the weight's shape.
    """

    weight: Tensor
    tensor: Tensor
    start: int | None = None

    def view(self) -> Tensor:
        """The copy, of the weight's shape; writing to it writes to the tensor."""
        if self.start is None:
            return self.tensor
        return self.tensor.view(-1)[self.start : self.start + self.weight.numel()].view(self.weight.shape)

    def agrees(self) -> bool:
        """Whether it is the weight's value, but for rounding."""
        copy = self.view().detach().to(self.weight.dtype)
        return torch.equal(copy, self.weight.detach().to(copy.device))


def find_masters(
    model: nn.Module, optimizers: Optimizer | Iterable[Optimizer], given: Masters | None = None
) -> list[Master]:
    """The master copies of a model's weights.

    A master is what the caller names, what an optimizer keeps as `master_param` in the state of a weight, or a tensor
    in an optimizer's groups that is none of the model's, has the shape of a half-precision weight that no optimizer
    holds, and equals it after rounding.

    Args:
        model: whose weights they are copies of.
        optimizers: those that train it.
        given: parameter name -> its master, or (flat tensor, offset) for a part of a flat one.

    Returns:
        The masters that were found; a weight has at most one.

    Raises:
        ValueError: an optimizer holds tensors that are no weights of the model and no masters of any, while none holds
            some half-precision weight that is trained; a name or a shape of `given` that does not fit, or a copy that
            differs from its weight.
    """
    named = dict(model.named_parameters())
    found = _given(named, given or {})
    parts = [part for optimizer in optimizers_of(optimizers) for part in with_inner(optimizer)]
    of_model = {id(p) for p in named.values()}
    held = [p for part in parts for group in part.param_groups for p in group["params"]]
    for part in parts:
        for p, state in part.state.items():
            if id(p) in of_model and isinstance(state, dict) and isinstance(state.get(MASTER), Tensor):
                found.setdefault(id(p), Master(p, state[MASTER]))
    ids, taken = {id(p) for p in held}, {id(master.tensor) for master in found.values()}
    strange = [t for t in held if id(t) not in of_model and id(t) not in taken and t.is_floating_point()]
    bare = {
        name: p
        for name, p in named.items()
        if p.dtype in HALF and p.requires_grad and id(p) not in ids and id(p) not in found
    }
    for weight in bare.values():
        for tensor in strange:
            if tensor.shape == weight.shape and tensor.dtype not in HALF and Master(weight, tensor).agrees():
                found[id(weight)] = Master(weight, tensor)
                strange = [other for other in strange if other is not tensor]
                break
    missing = [name for name, p in bare.items() if id(p) not in found]
    if strange and missing:
        raise ValueError(
            f"an optimizer holds a tensor of shape {tuple(strange[0].shape)} that is no weight of the model, and none "
            f"holds {missing[0]}: if it is trained through a copy, name it, masters={{{missing[0]!r}: copy}}, or "
            "(flat tensor, offset) for a part of a flat one; if another optimizer trains it, give that one too"
        )
    return list(found.values())


def _given(named: Mapping[str, Tensor], given: Masters) -> dict[int, Master]:
    if not isinstance(given, Mapping):
        raise ValueError("masters: give a mapping, {name: copy} or {name: (flat tensor, offset)}")
    found = {}
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
        master = Master(weight, tensor, start)
        if not master.agrees():
            raise ValueError(f"masters: the copy of {name} has other values than the weight")
        found[id(weight)] = master
    return found


@contextmanager
def carried_to(masters: Iterable[Master]) -> Iterator[None]:
    """What is changed in the weights inside this context is changed in their masters as it ends.

    Numbers that stay the same in half precision keep the master's further digits.
    """
    before = [(master, master.weight.detach().clone()) for master in masters]
    yield
    with torch.no_grad():
        for master, old in before:
            copy, weight = master.view(), master.weight.detach()
            changed = (weight != old).to(copy.device)
            copy.copy_(torch.where(changed, weight.to(copy.device, copy.dtype), copy))
