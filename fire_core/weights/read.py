"""Read off a forward pass which rows of a weight belong to one matrix.

Two rows of a fused weight belong to different matrices if what they compute meets in a product: queries with keys in
an attention product, weights with values, an activated gate with what it gates. So the forward pass is watched: at each
product of two tensors, gradients say which rows of which weight reach either side. Rows that always stand on the same
side are one matrix. Nothing is read from names, and any order of rows, heads and experts is found.

A layer's input is detached first, so that what is seen at a product comes from the layers right before it.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from fire_core.weights.entry import Cut
from fire_core.weights.generators import kept_generators
from fire_core.weights.topology import is_linear, unwrap, width

_PRODUCTS = {"mul", "multiply", "matmul", "bmm", "mm", "einsum", "baddbmm", "scaled_dot_product_attention", "glu"}
_VIEWS = ("Alias", "Narrow", "Permute", "Select", "Slice", "Split", "Transpose", "Unbind", "Unsafe", "View")
_SIDES = {"attention": ("q", "k", "v"), "gate": ("gate", "up"), "glu": ("value", "gate")}
_BY_HAND: dict[tuple[str, ...], str] = {
    ("0", "0"): "q",
    ("1", "0"): "k",
    ("", "1"): "v",
}  # sides in an attention's products

MOST_NESTED = 8  # lists, mappings and objects within each other that tensors with a history are looked for in
Products = list[tuple[str, list[Tensor]]]  # the sides of each product that was seen, as masks of a weight's shape


class _Watch(TorchFunctionMode):
    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = list(weights)
        self.seen: dict[int, Products] = {id(weight): [] for weight in weights}
        self.together: set[int] = set()  # weights whose rows all stood on one side of a product
        self.draw = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        name = {"rmul": "mul", "imul": "mul", "rmatmul": "matmul"}.get(name, name)
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and name in _PRODUCTS:
            self._product(name, args, kwargs)
        return func(*args, **kwargs)

    def _product(self, name: str, args: Any, kwargs: Any) -> None:
        values = [*args, *kwargs.values()]
        values = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]  # of einsum
        sides = [v for v in values if isinstance(v, Tensor) and v.grad_fn is not None]
        if name == "glu" and sides:
            sides = list(sides[0].chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1)))
        sides = sides[:3] if name.startswith("scaled") else sides[-2:]  # not what baddbmm adds to
        if len(sides) < 2:
            return
        activated = [not type(side.grad_fn).__name__.startswith(_VIEWS) for side in sides]
        if name == "mul" and sum(activated) == 1:  # silu(gate) * up
            name, sides = "gate", sides[:: 1 if activated[0] else -1]
        reached = [self._reached(side) for side in sides]
        for key in {key for masks in reached for key in masks}:
            masks = [masks[key] for masks in reached if key in masks]
            if len(masks) > 1:
                self.seen[key].append((name, masks))
            elif all(masks[0].movedim(dim, 0).flatten(1).any(1).all() for dim in (0, 1)):
                self.together.add(key)

    def _reached(self, tensor: Tensor) -> dict[int, Tensor]:
        """Which numbers of which weights a tensor depends on, as bool tensors of the weights' shapes."""
        direction = torch.randn(tensor.shape, generator=self.draw, dtype=torch.float32, device="cpu").to(tensor)
        slopes = torch.autograd.grad(tensor, self.weights, direction, retain_graph=True, allow_unused=True)
        pairs = zip(self.weights, slopes, strict=True)
        return {id(weight): slope != 0 for weight, slope in pairs if slope is not None}


def read_cuts(model: nn.Module, example: Any) -> dict[int, Cut]:
    """How the weights of a model are cut, read off one forward pass of a copy.

    Args:
        model: any module that runs eagerly on the example; weights whole, not sharded.
        example: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments. A few tokens or
            images will do, the more different the better.

    Returns:
        By `id(parameter)`: the blocks of a weight in which products were seen; one if all rows met others together.

    Raises:
        ValueError: the weights are sharded, or the model does not run on the example.
    """
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise ValueError("example: reading cuts needs whole weights: read them before sharding, and declare blocks=")
    arguments, keywords = (example if isinstance(example, (tuple, list)) else (example,)), {}
    if isinstance(example, Mapping):
        arguments, keywords = (), dict(example)
    convolutions = [m for m in model.modules() if isinstance(m, _ConvNd)]
    grouped = {id(m._parameters.get("weight")) for m in convolutions if m.groups > 1}  # cut by their groups
    chosen = [p for p in model.parameters() if p.ndim > 1 and p.is_floating_point() and id(p) not in grouped]
    try:
        return _read(model, arguments, keywords, chosen)
    except Exception as error:  # whatever somebody's model raises
        raise ValueError(f"example: the model does not run on it: {type(error).__name__} {error}") from error


def _read(model: nn.Module, args: Any, kwargs: Any, chosen: Sequence[Tensor]) -> dict[int, Cut]:
    """The cuts of some weights, by `id(weight)`, off a forward pass of a copy; raises whatever the module does."""
    twins: dict[int, Any] = {}
    clone = _copy(unwrap(model), twins)
    weights = [twins[id(weight)] for weight in chosen]
    # Not depthwise convolutions: they mix no channels, and what they pass on keeps its origin.
    dense = {
        m for m in clone.modules() if is_linear(m) and not (isinstance(m, _ConvNd) and 1 < m.groups == m.in_channels)
    }
    lists = [m for m in clone.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = {child for m in lists for child in m.children() if not dense.isdisjoint(child.modules())}
    for module in dense | blocks:
        module.register_forward_pre_hook(_detach, with_kwargs=True)
    watch = _Watch(weights)
    # Compiled parts run as they are written. Without dynamo, whose import takes seconds, there are none.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    detach_histories((args, kwargs), twins)
    arguments = copy.deepcopy((args, kwargs), twins)  # a pass may write to its input
    with eager, kept_generators(weights), torch.inference_mode(False), torch.enable_grad(), watch:
        clone(*arguments[0], **arguments[1])
    convs = {id(m.weight) for m in clone.modules() if isinstance(m, _ConvNd)}
    cuts = {}
    for original, weight in zip(chosen, weights, strict=True):
        whole = Cut((("", len(weight)),)) if id(weight) in watch.together and not watch.seen[id(weight)] else None
        cuts[id(original)] = _cut(watch.seen[id(weight)], (0,) if id(weight) in convs else (-2, -1), whole)
    return {key: cut for key, cut in cuts.items() if cut is not None}


def _detach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    free = [v.detach() if isinstance(v, Tensor) else v for v in args]
    return tuple(free), {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}


def read_module(module: nn.Module, layer: nn.Module) -> Cut | None:
    """How one layer of a module is cut, read off a forward pass of a copy of the module on random input.

    None if the module does not run on one tensor alone, or if nothing was seen.
    """
    weight: Any = layer.weight
    draw = torch.Generator().manual_seed(0)
    for shape in _shapes(layer):
        x = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(
            "cpu" if weight.is_meta else weight.device, weight.dtype
        )
        try:
            found = _read(module, (x,), {}, [weight])
        except Exception:  # whatever a module of somebody's may raise on input that it does not take
            continue
        if found:
            return found[id(weight)]
    return None


def _copy(module: nn.Module, twins: dict[int, Any]) -> nn.Module:
    """The module in evaluation mode without hooks and wrappers, which shares no memory with it.

    Sharded weights and those without numbers are drawn anew.

    Args:
        module: stays as it is, whatever a forward pass of the copy writes to: caches, counters, generators of its own.
        twins: takes the copy of each module, parameter and other object, by the `id` of the original.
    """
    if id(module) in twins:
        copied: nn.Module = twins[id(module)]
        return copied
    kind: Any = next(c for c in type(module).__mro__ if not c.__name__.startswith("FSDP"))  # `fully_shard` changes it
    new: nn.Module = kind.__new__(kind)
    twins[id(module)] = new
    vars(new).update(vars(nn.Module()), training=False)
    for key, p in module._parameters.items():
        new._parameters[key] = None if p is None else twins.setdefault(id(p), _twin(p))
    for key, b in module._buffers.items():
        new._buffers[key] = None if b is None else twins.setdefault(id(b), _buffer_twin(b))
    for key, child in module._modules.items():
        new._modules[key] = None if child is None else _copy(unwrap(child), twins)
    # The module's own attributes last: what they hold of parameters and modules is then a copy already.
    for key in vars(module).keys() - vars(new).keys():
        value = vars(module)[key]
        detach_histories(value, twins)
        # What cannot be copied (a lock, a group of processes) is left out, so that a pass that needs it fails.
        with suppress(Exception):
            vars(new)[key] = copy.deepcopy(value, twins)
    return new


def detach_histories(value: object, twins: dict[int, Any], depth: int = 0) -> None:
    """Note a copy, without the history, of each tensor with one in an attribute of a module.

    `copy.deepcopy` refuses such tensors, unless it finds their copies.

    Args:
        value: an attribute.
        twins: takes the copies, by `id` of the originals: what `copy.deepcopy` takes as its memory.
        depth: how deep in lists, mappings and objects the value lies.
    """
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            twins.setdefault(id(value), value.detach().clone())
    elif depth < MOST_NESTED and not isinstance(value, (nn.Module, type)):
        inside = (
            value.values() if isinstance(value, Mapping) else vars(value).values() if hasattr(value, "__dict__") else ()
        )
        for part in value if isinstance(value, (list, tuple, set, deque)) else list(inside):
            detach_histories(part, twins, depth + 1)


def _buffer_twin(b: Tensor) -> Tensor:
    return torch.zeros_like(b, device="cpu") if b.is_meta else b.detach().clone()


def _twin(p: nn.Parameter) -> nn.Parameter:
    numbers = p.detach().clone()  # a forward pass may write to its weights
    if p.is_meta or hasattr(p, "device_mesh"):
        draw = torch.Generator().manual_seed(0)
        numbers = torch.randn(p.shape, generator=draw, dtype=torch.float32, device="cpu").to(
            "cpu" if p.is_meta else p.device, p.dtype
        )
    return nn.Parameter(numbers, requires_grad=p.is_floating_point())


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    if isinstance(layer, _ConvNd):
        maps = [(2, layer.in_channels, *[side] * len(layer.kernel_size)) for side in (8, 7)]
        return [*maps, (2, 16, layer.in_channels)]
    return [(*batch, width(layer)) for batch in ((2, 16), (2, 4, 4), (2, 49), (16,))]


# ------------------------------------------------------------------------------------------------ from masks to a cut


def _cut(seen: Products, dims: tuple[int, ...], whole: Cut | None) -> Cut | None:
    for dim in dims:
        rows = [(name, torch.stack([mask.movedim(dim, 0).flatten(1).any(1) for mask in masks])) for name, masks in seen]
        rows = [(name, sides) for name, sides in rows if int(sides.sum(0).max()) == 1 < int(sides.any(1).sum())]
        if rows:
            return _pattern(_labels(rows), transposed=dim == -1)
    return whole


def _labels(products: list[tuple[str, Tensor]]) -> list[tuple[str, ...]]:
    """For each row, on which side of which product it stood, from masks (sides, rows); named where that is usual."""
    if attention := [sides for name, sides in products if name == "scaled_dot_product_attention" and len(sides) == 3]:
        products = [("attention", torch.stack(attention).any(0))]
    events: dict[tuple[tuple[bool, ...], ...], str] = {}
    for name, sides in products:
        events.setdefault(tuple(map(tuple, sides.tolist())), name)
    names = _SIDES.get(next(iter(events.values())), "01") if len(events) == 1 else "01"
    labels = [
        tuple(next((names[n] for n, side in enumerate(sides) if side[i]), "") for sides in events)
        for i in range(products[0][1].shape[1])
    ]
    by_hand = {label: _BY_HAND.get(label[:2], "") for label in labels}
    if all(by_hand.values()) and not {"mul", "multiply", "gate"} & set(events.values()):  # of matrices, not of numbers
        labels = [(by_hand[label],) for label in labels]
    return labels


def _pattern(labels: list[tuple[str, ...]], transposed: bool) -> Cut | None:
    """The shortest pattern of runs that recurs; None if a block would lie in two places within it."""
    runs = [(label, len(list(rows))) for label, rows in groupby(labels)]
    period = next(n for n in range(1, len(runs) + 1) if len(runs) % n == 0 and runs == runs[:n] * (len(runs) // n))
    block = runs[:period]
    if len({label for label, _ in block}) < len(block) or len(block) < 2:
        return None
    named = all("".join(label).isalpha() for label, _ in block)
    heights = tuple((label[0] if named else str(i), height) for i, (label, height) in enumerate(block))
    return Cut(heights, len(runs) // period, transposed, role="dense")
