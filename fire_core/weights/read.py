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
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from fire_core.weights.fused import Cut
from fire_core.weights.topology import is_transposed_linear, unwrap

_PRODUCTS = {"mul", "multiply", "matmul", "bmm", "mm", "einsum", "baddbmm", "scaled_dot_product_attention", "glu"}
_VIEWS = ("Alias", "Narrow", "Permute", "Select", "Slice", "Split", "Transpose", "Unbind", "Unsafe", "View")
_SIDES = {"gate": {"0": "gate", "1": "up"}, "glu": {"0": "value", "1": "gate"}}
_FIRST = {"baddbmm": 1, "einsum": 1}  # where the factors begin among the arguments


@dataclass
class _Seen:
    """What was seen of one weight: the sides of each product as masks of its shape, and how it is stored."""

    products: list[tuple[str, list[Tensor]]] = field(default_factory=list)
    swapped: bool = False  # the keys stood left of the queries
    softmax: bool = False
    transposed: bool | None = None


class _Watch(TorchFunctionMode):
    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = {id(weight): weight for weight in weights}
        self.storage = {weight.untyped_storage().data_ptr(): weight for weight in weights}
        self.seen: dict[int, _Seen] = {key: _Seen() for key in self.weights}
        self.draw = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        name = {"rmul": "mul", "imul": "mul", "rmatmul": "matmul"}.get(name, name)
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            if name in _PRODUCTS:
                self._product(name, args, kwargs)
            elif name == "softmax":
                self._softmax(args, kwargs)
            if name in ("linear", "matmul", "bmm", "mm", "grouped_mm"):
                self._stored(name, [*args, *kwargs.values()])
        return func(*args, **kwargs)

    def _product(self, name: str, args: Any, kwargs: Any) -> None:
        values = [*args[_FIRST.get(name, 0) :], *kwargs.values()]
        if name == "einsum" and values and isinstance(values[0], (list, tuple)):
            values = list(values[0])
        sides = [v for v in values if isinstance(v, Tensor) and v.requires_grad]
        if name == "glu" and sides:
            sides = list(sides[0].chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1)))
        sides = sides[:3] if name.startswith("scaled") else sides[:2]
        if len(sides) < 2:
            return
        sources = [self._sources(side) for side in sides]
        activated = [not type(side.grad_fn).__name__.startswith(_VIEWS) for side in sides]
        if name == "mul" and sum(activated) == 1:  # silu(gate) * up
            turn = 1 if activated[0] else -1
            name, sides, sources = "gate", sides[::turn], sources[::turn]
        for key in {k for one in sources for k in one}:
            masks = [self._reach(x, self.weights[key]) for x, known in zip(sides, sources, strict=True) if key in known]
            if len(masks) > 1:
                self.seen[key].products.append((name, masks))

    def _softmax(self, args: Any, kwargs: Any) -> None:
        scores = next((v for v in args if isinstance(v, Tensor)), kwargs.get("input"))
        if not isinstance(scores, Tensor) or not scores.requires_grad:
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        for key in self._sources(scores):
            if len(self.seen[key].products) == 1:
                self.seen[key].softmax = True
                self.seen[key].swapped = dim not in (-1, scores.ndim - 1)

    def _stored(self, name: str, values: list[Any]) -> None:
        """Which dimension of a raw weight is summed over: its last, or the one before."""
        factor = values[1] if len(values) > 1 else None
        if not isinstance(factor, Tensor) or factor.ndim < 2:
            return
        weight = self.storage.get(factor.untyped_storage().data_ptr())
        if weight is not None and weight.ndim > 1 and weight.stride(-1) != weight.stride(-2):
            summed = factor.stride(-1 if name == "linear" else -2)
            self.seen[id(weight)].transposed = summed != weight.stride(-1)

    def _sources(self, tensor: Tensor) -> set[int]:
        """Which watched weights a tensor is computed from."""
        found, done, stack = set(), set(), [tensor.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or node in done:
                continue
            done.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in self.weights:
                found.add(id(variable))
            stack += [following for following, _ in node.next_functions]
        return found

    def _reach(self, tensor: Tensor, weight: Tensor) -> Tensor:
        """Which of a weight's numbers a tensor depends on: a bool tensor of the weight's shape."""
        direction = torch.randn(tensor.shape, generator=self.draw).to(tensor)
        (slope,) = torch.autograd.grad(tensor, weight, direction, retain_graph=True, allow_unused=True)
        return torch.zeros_like(weight, dtype=torch.bool) if slope is None else slope != 0


def read_cuts(model: nn.Module, example: Any) -> dict[int, Cut]:
    """How the weights of a model are cut, read off one forward pass.

    The model is left as it was: training mode, requires_grad, random numbers and hooks.

    Args:
        model: any module that runs eagerly on the example; weights whole, not sharded.
        example: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments. A few tokens or
            images will do, the more different the better.

    Returns:
        By `id(parameter)`: the blocks of a weight in which products were seen, and how a raw parameter is stored.

    Raises:
        ValueError: the weights are sharded, or the model does not run on the example.
    """
    model = unwrap(model)
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise ValueError("example: reading cuts needs whole weights: resolve the layout before sharding")
    arguments, keywords = (example if isinstance(example, (tuple, list)) else (example,)), {}
    if isinstance(example, Mapping):
        arguments, keywords = (), dict(example)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return read(model, arguments, keywords)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"example: the model does not run on it: {error}") from error
    finally:
        for module, training in modes.items():
            module.training = training


def read(model: nn.Module, args: Any, kwargs: Any, weights: list[Tensor] | None = None) -> dict[int, Cut]:
    """`read_cuts` on a module in evaluation mode, for these weights or for all; raises whatever the module does."""
    grouped = {id(m.weight) for m in model.modules() if isinstance(m, _ConvNd) and m.groups > 1}  # cut by their groups
    mine = [p for p in model.parameters() if p.ndim > 1 and p.is_floating_point() and not p.is_meta]
    chosen = weights or [p for p in mine if id(p) not in grouped]
    layers = [m for m in model.modules() if _is_dense(m)]
    lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = [c for m in lists for c in m._modules.values() if c is not None and _is_block(c)]
    frozen = [p for p in chosen if not p.requires_grad]
    handles = [m.register_forward_pre_hook(_detach, with_kwargs=True) for m in dict.fromkeys((*layers, *blocks))]
    watch = _Watch(chosen)
    devices = {p.device for p in chosen if p.device.type == "cuda"}
    try:
        for p in frozen:
            p.requires_grad_(True)
        with _eager(), torch.random.fork_rng(list(devices)), torch.inference_mode(False), torch.enable_grad(), watch:
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
        for p in frozen:
            p.requires_grad_(False)
    convs = {id(m.weight) for m in model.modules() if isinstance(m, _ConvNd)}
    cuts = {id(p): _cut(watch.seen[id(p)], p, (0,) if id(p) in convs else (-2, -1)) for p in chosen}
    return {key: cut for key, cut in cuts.items() if cut is not None}


def _eager() -> AbstractContextManager[Any]:
    """Compiled parts run as they are written. Without dynamo, whose import takes seconds, there are none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _is_dense(module: nn.Module) -> bool:
    """A layer that mixes channels; a depthwise convolution does not, and what it passes on keeps its origin."""
    if isinstance(module, _ConvNd):
        return module.groups == 1
    return isinstance(module, nn.Linear) or is_transposed_linear(module)


def _is_block(module: nn.Module) -> bool:
    return not _is_dense(module) and any(_is_dense(part) for part in module.modules())


def _detach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    free = [v.detach() if isinstance(v, Tensor) else v for v in args]
    return tuple(free), {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}


def read_module(module: nn.Module, layer: nn.Module) -> Cut | None:
    """How one layer of a module is cut, read off a forward pass of a copy of the module on random input.

    None if the module does not run on one tensor alone, or if nothing was seen.
    """
    copies: dict[int, nn.Module] = {}
    with torch.random.fork_rng([]):
        clone = _copy(module, copies)
    weight = copies[id(layer)].weight if id(layer) in copies else None
    if not isinstance(weight, Tensor):
        return None
    draw = torch.Generator().manual_seed(0)
    for shape in _shapes(layer):
        try:
            found = read(clone, (torch.randn(shape, generator=draw).to(weight),), {}, [weight])
        except Exception:  # whatever a module of somebody's may raise on input that it does not take
            continue
        if id(weight) in found:
            return found[id(weight)]
    return None


def _copy(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    """The module in evaluation mode without hooks and wrappers. Weights are shared; sharded ones and those without
    numbers are drawn anew."""
    if id(module) in copies:
        return copies[id(module)]
    kind: Any = next(
        c for c in type(module).__mro__ if not c.__name__.startswith("FSDP")
    )  # `fully_shard` changes the class
    new: nn.Module = kind.__new__(kind)
    copies[id(module)] = new
    plain = {key: copy.copy(v) if isinstance(v, (list, dict)) else v for key, v in vars(module).items()}
    vars(new).update(plain | vars(nn.Module()), training=False)
    for key, p in module._parameters.items():
        new._parameters[key] = p
        if p is not None and (p.is_meta or hasattr(p, "device_mesh")):
            drawn = torch.randn(p.shape, device="cpu" if p.is_meta else p.device, dtype=p.dtype)
            new._parameters[key] = nn.Parameter(drawn)
    for key, buffer in module._buffers.items():
        if buffer is not None:
            buffer = torch.zeros_like(buffer, device="cpu") if buffer.is_meta else buffer.clone()
        new._buffers[key] = buffer
    for key, child in module._modules.items():
        new._modules[key] = None if child is None else _copy(unwrap(child), copies)
    return new


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    if isinstance(layer, _ConvNd):
        sides = (8,) * len(layer.kernel_size)
        return [(2, layer.in_channels, *sides), (2, layer.in_channels, *(7 for _ in sides))]
    weight: Any = layer.weight
    width = weight.shape[1 if isinstance(layer, nn.Linear) else 0]
    return [(2, 16, width), (2, 4, 4, width), (2, 49, width), (16, width)]


# ------------------------------------------------------------------------------------------------ from masks to a cut


def _cut(seen: _Seen, weight: Tensor, dims: tuple[int, ...]) -> Cut | None:
    for dim in dims:
        rows = [(name, [_along(mask, dim) for mask in masks]) for name, masks in seen.products]
        rows = [(name, masks) for name, masks in rows if _disjoint(masks)]
        if rows:
            labels = _labels(rows, seen)
            return _pattern(labels, transposed=dim == -1)
    if seen.transposed is None:
        return None
    role = "dense" if weight.ndim == 3 else ""  # a 2-D one may be a table of positions: only how it is stored is known
    return Cut((("", weight.shape[-1 if seen.transposed else -2]),), transposed=seen.transposed, role=role)


def _along(mask: Tensor, dim: int) -> Tensor:
    """(..., n, ...) -> (n,)"""
    return mask.movedim(dim, 0).flatten(1).any(1)


def _disjoint(masks: list[Tensor]) -> bool:
    present = [mask for mask in masks if bool(mask.any())]
    return len(present) > 1 and int(torch.stack(present).sum(0).max()) == 1


def _labels(products: list[tuple[str, list[Tensor]]], seen: _Seen) -> list[tuple[str, ...]]:
    """For each row, on which side of which product it stood; named q, k and v where attention says so."""
    attention = [masks for name, masks in products if name.startswith("scaled") and len(masks) == 3]
    if attention:
        sides = [torch.stack(masks).any(0) for masks in zip(*attention, strict=True)]
        return [next(((w,) for w, s in zip("qkv", sides, strict=True) if s[i]), ("",)) for i in range(len(sides[0]))]
    distinct: dict[tuple[tuple[bool, ...], ...], None] = {}
    for _, masks in products:
        distinct.setdefault(tuple(tuple(mask.tolist()) for mask in masks))
    events = list(distinct)
    labels = [
        tuple(next((str(n) for n, side in enumerate(sides) if side[i]), "") for sides in events)
        for i in range(len(events[0][0]))
    ]
    if len(events) == 1 and products[0][0] in _SIDES:
        return [(_SIDES[products[0][0]].get(label[0], ""),) for label in labels]
    if not (seen.softmax and len(events) > 1):
        return labels
    words = {"0": "k" if seen.swapped else "q", "1": "q" if seen.swapped else "k"}
    return [(words.get(label[0], "v" if label[1] else ""),) for label in labels]


def _pattern(labels: list[tuple[str, ...]], transposed: bool) -> Cut | None:
    """The shortest pattern of runs that recurs; None if a block would lie in two places within it."""
    runs: list[tuple[tuple[str, ...], int]] = []
    for label in labels:
        if runs and runs[-1][0] == label:
            runs[-1] = (label, runs[-1][1] + 1)
        else:
            runs.append((label, 1))
    period = next(n for n in range(1, len(runs) + 1) if len(runs) % n == 0 and runs == runs[:n] * (len(runs) // n))
    block = runs[:period]
    if len({label for label, _ in block}) < len(block) or len(block) < 2:
        return None
    plain = all(len(label) == 1 and label[0] in ("q", "k", "v", "gate", "up", "value") for label, _ in block)
    names = [label[0] if plain else str(i) for i, (label, _) in enumerate(block)]
    heights = tuple((name, height) for name, (_, height) in zip(names, block, strict=True))
    return Cut(heights, len(runs) // period, transposed, role="dense")
