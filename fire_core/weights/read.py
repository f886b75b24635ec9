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
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
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


Products = list[tuple[str, list[Tensor]]]  # the sides of each product that was seen, as masks of a weight's shape


class _Watch(TorchFunctionMode):
    def __init__(self, weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = {id(weight): weight for weight in weights}
        self.seen: dict[int, Products] = {key: [] for key in self.weights}
        self.used: set[int] = set()  # by linear layers
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
            elif name == "linear" and len(args) > 1:
                self.used.add(id(args[1]))
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
                self.seen[key].append((name, masks))

    def _softmax(self, args: Any, kwargs: Any) -> None:
        scores = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)), None)
        if scores is not None and scores.requires_grad:
            for key in self._sources(scores):
                if len(self.seen[key]) == 1:  # of queries with keys
                    self.seen[key].append(("softmax", []))

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
    """How the weights of a model are cut, read off one forward pass of a copy that shares them.

    Args:
        model: any module that runs eagerly on the example; weights whole, not sharded.
        example: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments. A few tokens or
            images will do, the more different the better.

    Returns:
        By `id(parameter)`: the blocks of a weight in which products were seen, or one for a linear layer without any.

    Raises:
        ValueError: the weights are sharded, or the model does not run on the example.
    """
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise ValueError("example: reading cuts needs whole weights: resolve the layout before sharding")
    arguments, keywords = (example if isinstance(example, (tuple, list)) else (example,)), {}
    if isinstance(example, Mapping):
        arguments, keywords = (), dict(example)
    twins: dict[int, Any] = {}
    clone = _copy(unwrap(model), twins)
    grouped = {id(m.weight) for m in clone.modules() if isinstance(m, _ConvNd) and m.groups > 1}  # cut by their groups
    chosen = [p for p in clone.parameters() if p.ndim > 1 and p.is_floating_point() and id(p) not in grouped]
    try:
        found = _read(clone, arguments, keywords, chosen)
    except (TypeError, RuntimeError, ValueError, IndexError) as error:
        raise ValueError(f"example: the model does not run on it: {error}") from error
    return {key: found[id(twin)] for key, twin in twins.items() if id(twin) in found}


def _read(clone: nn.Module, args: Any, kwargs: Any, weights: Sequence[Tensor]) -> dict[int, Cut]:
    """The cuts of some weights of a copy, by `id(weight)`; raises whatever the module does."""
    layers = [m for m in clone.modules() if _is_dense(m)]
    lists = [m for m in clone.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = [c for m in lists for c in m._modules.values() if c is not None and _is_block(c)]
    for module in dict.fromkeys((*layers, *blocks)):
        module.register_forward_pre_hook(_detach, with_kwargs=True)
    watch = _Watch(weights)
    devices = {p.device for p in weights if p.device.type == "cuda"}
    with _eager(), torch.random.fork_rng(list(devices)), torch.inference_mode(False), torch.enable_grad(), watch:
        clone(*args, **kwargs)
    convs = {id(m.weight) for m in clone.modules() if isinstance(m, _ConvNd)}
    cuts = {}
    for key, seen in watch.seen.items():
        whole = Cut((("", len(watch.weights[key])),)) if key in watch.used else None  # if no product divides it
        cuts[key] = _cut(seen, (0,) if key in convs else (-2, -1), whole)
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
    twins: dict[int, Any] = {}
    clone = _copy(module, twins)
    weight = twins[id(layer)].weight if id(layer) in twins else None
    if not isinstance(weight, Tensor):
        return None
    draw = torch.Generator().manual_seed(0)
    for shape in _shapes(layer):
        try:
            found = _read(clone, (torch.randn(shape, generator=draw).to(weight),), {}, [weight])
        except Exception:  # whatever a module of somebody's may raise on input that it does not take
            continue
        if id(weight) in found:
            return found[id(weight)]
    return None


def _copy(module: nn.Module, twins: dict[int, Any]) -> nn.Module:
    """The module in evaluation mode without hooks and wrappers. Weights share memory; sharded ones and those without
    numbers are drawn anew.

    Args:
        module: stays as it is.
        twins: takes the copy of each module and parameter, by the `id` of the original.
    """
    if id(module) in twins:
        copied: nn.Module = twins[id(module)]
        return copied
    kind: Any = next(c for c in type(module).__mro__ if not c.__name__.startswith("FSDP"))  # `fully_shard` changes it
    new: nn.Module = kind.__new__(kind)
    twins[id(module)] = new
    plain = {key: copy.copy(v) if isinstance(v, (list, dict)) else v for key, v in vars(module).items()}
    vars(new).update(plain | vars(nn.Module()), training=False)
    for key, p in module._parameters.items():
        new._parameters[key] = None if p is None else twins.setdefault(id(p), _twin(p))
    for key, b in module._buffers.items():
        new._buffers[key] = None if b is None else torch.zeros_like(b, device="cpu") if b.is_meta else b.clone()
    for key, child in module._modules.items():
        new._modules[key] = None if child is None else _copy(unwrap(child), twins)
    return new


def _twin(p: nn.Parameter) -> nn.Parameter:
    numbers = p.detach().clone() if p.is_inference() else p.detach()
    if p.is_meta or hasattr(p, "device_mesh"):
        draw = torch.Generator().manual_seed(0)
        numbers = torch.randn(p.shape, generator=draw).to("cpu" if p.is_meta else p.device, p.dtype)
    return nn.Parameter(numbers, requires_grad=p.is_floating_point())


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    if isinstance(layer, _ConvNd):
        sides = (8,) * len(layer.kernel_size)
        return [(2, layer.in_channels, *sides), (2, layer.in_channels, *(7 for _ in sides))]
    weight: Any = layer.weight
    width = weight.shape[1 if isinstance(layer, nn.Linear) else 0]
    return [(2, 16, width), (2, 4, 4, width), (2, 49, width), (16, width)]


# ------------------------------------------------------------------------------------------------ from masks to a cut


def _cut(seen: Products, dims: tuple[int, ...], whole: Cut | None) -> Cut | None:
    for dim in dims:
        rows = [(name, [mask.movedim(dim, 0).flatten(1).any(1) for mask in masks]) for name, masks in seen]
        rows = [(name, sides) for name, sides in rows if _disjoint(sides)]
        if rows:
            return _pattern(_labels(rows, any(name == "softmax" for name, _ in seen)), transposed=dim == -1)
    return whole


def _disjoint(masks: list[Tensor]) -> bool:
    present = [mask for mask in masks if bool(mask.any())]
    return len(present) > 1 and int(torch.stack(present).sum(0).max()) == 1


def _labels(products: Products, softmax: bool) -> list[tuple[str, ...]]:
    """For each row, on which side of which product it stood; named q, k and v where attention says so."""
    attention = [masks for name, masks in products if name.startswith("scaled") and len(masks) == 3]
    if attention:
        sides = [torch.stack(masks).any(0) for masks in zip(*attention, strict=True)]
        return [next(((w,) for w, s in zip("qkv", sides, strict=True) if s[i]), ("",)) for i in range(len(sides[0]))]
    events = list(dict.fromkeys(tuple(tuple(mask.tolist()) for mask in masks) for _, masks in products))
    labels = [
        tuple(next((str(n) for n, side in enumerate(sides) if side[i]), "") for sides in events)
        for i in range(len(events[0][0]))
    ]
    if len(events) == 1 and products[0][0] in _SIDES:
        return [(_SIDES[products[0][0]].get(label[0], ""),) for label in labels]
    if not (softmax and len(events) > 1):
        return labels
    return [({"0": "q", "1": "k"}.get(label[0], "v" if label[1] else ""),) for label in labels]


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
