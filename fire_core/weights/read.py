"""Read off a forward pass which rows of a weight belong to one matrix.

Two rows of a fused weight belong to different matrices if what they compute meets in a product: queries with keys in
an attention product, weights with values, an activated gate with what it gates. So the forward pass is watched: at each
product of two tensors, gradients say which rows of which weight reach either side. Rows that always stand on the same
side are one matrix. Nothing is read from names, and any order of rows, heads and experts is found.

A layer's input is detached first, so that what is seen at a product comes from the layers right before it.
"""

from __future__ import annotations

import copy
import inspect
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from fire_core.weights.entry import Cut
from fire_core.weights.generators import restored_generators
from fire_core.weights.outside import state_outside_restored
from fire_core.weights.topology import is_linear, unwrap, width, words

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


# Places in source files at which the output of a layer is cut: (file, first line, last line).
Places = Sequence[tuple[str, int, int]]

_MATRIX_PRODUCTS = {"linear", "matmul", "mm", "bmm", "einsum", "baddbmm", "addmm", "addbmm", "tensordot", "bilinear"}
_MATRIX_PRODUCTS |= {"mv", "inner", "dot", "chain_matmul", "multi_head_attention_forward", "lstm", "gru", "lstm_cell"}
_MATRIX_PRODUCTS |= {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)} | {
    "gru_cell",
    "rnn_tanh_cell",
}
_CASTS = {"to", "float", "half", "bfloat16", "double", "type", "type_as", "contiguous", "clone"}
_TAKES_PARTS = {
    "chunk",
    "split",
    "tensor_split",
    "unsafe_chunk",
    "unsafe_split",
    "split_with_sizes",
    "unbind",
    "getitem",
}
_TAKES_PARTS |= {"narrow", "select", "hsplit", "dsplit", "vsplit"}
# Functions of each number by itself. A closed unit would hide what lies behind it, so slopes pass them as they are.
_ACTIVATIONS = words(
    "relu relu6 sigmoid tanh gelu silu mish elu selu celu leaky_relu prelu rrelu hardswish hardsigmoid "
    "hardtanh softplus softsign threshold logsigmoid exp clamp clip clamp_min clamp_max dropout "
    "hardshrink softshrink tanhshrink square sqrt abs softmax log_softmax erf sin cos"
)


class _Through(torch.autograd.Function):
    """The values of an activation with the slope 1."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0], None


class _Watch(TorchFunctionMode):
    def __init__(self, weights: Sequence[Tensor], places: Mapping[int, Places]) -> None:
        super().__init__()
        self.places = places
        self.lines = {(file, line) for spans in places.values() for file, a, b in spans for line in range(a, b + 1)}
        self.parts: dict[int, dict[Any, Tensor]] = {id(weight): {} for weight in weights}  # rows of each part taken
        self.multiplied: set[int] = set()  # weights that stood in a product of matrices, as they are
        self._memory = {weight.untyped_storage().data_ptr(): id(weight) for weight in weights if weight.numel()}
        self._casts: list[Tensor] = []
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
        if name in _MATRIX_PRODUCTS:
            self.multiplied |= {
                key for value in _tensors((args, kwargs)) if (key := self._weight_in(value)) is not None
            }
        if name in _ACTIVATIONS and not getattr(func, "__name__", "").endswith("_"):
            return self._activate(func, args, kwargs)
        result = func(*args, **kwargs)
        if name in _CASTS and isinstance(result, Tensor) and args and (key := self._weight_in(args[0])) is not None:
            self._memory[result.untyped_storage().data_ptr()] = key
            self._casts.append(result)  # so that nothing else comes to lie there
        if name in _TAKES_PARTS and self.lines and torch.is_grad_enabled():
            self._note_parts(result)
        return result

    def _weight_in(self, value: Any) -> int | None:
        """Which weight a tensor is, or a view or a cast of."""
        if not isinstance(value, Tensor) or not value.numel() or value.layout != torch.strided:
            return None
        try:
            return self._memory.get(value.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):
            return None

    def _activate(self, func: Any, args: Any, kwargs: Any) -> Any:
        x = next(iter([*args, *kwargs.values()]), None)
        if not isinstance(x, Tensor) or not x.requires_grad or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        inner = [v.detach().clone() if v is x else v for v in args]
        values = func(*inner, **{k: v.detach().clone() if v is x else v for k, v in kwargs.items()})
        if not isinstance(values, Tensor) or values.shape != x.shape or values.dtype != x.dtype:
            return func(*args, **kwargs)
        return _Through.apply(x, values.detach())

    def _note_parts(self, result: Any) -> None:
        """Note which rows a part holds that is taken at one of the places where an output is cut."""
        frame: Any = sys._getframe(2)
        for _ in range(6):
            if frame is None or (frame.f_code.co_filename, frame.f_lineno) in self.lines:
                break
            frame = frame.f_back
        else:
            return
        if frame is None:
            return
        for i, part in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if not isinstance(part, Tensor) or part.grad_fn is None:
                continue
            for key, mask in self._reached(part).items():
                spans = self.places.get(key, ())
                line = frame.f_lineno
                if any(file == frame.f_code.co_filename and a <= line <= b for file, a, b in spans):
                    spot = (frame.f_code.co_filename, frame.f_lasti, i)
                    held = self.parts[key]
                    held[spot] = mask | held[spot] if spot in held else mask

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


def _tensors(value: Any) -> list[Tensor]:
    """All tensors in nested lists and mappings."""
    if isinstance(value, Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for item in inside for tensor in _tensors(item)]


class Pass(NamedTuple):
    """What one forward pass shows of weights, by `id(parameter)`.

    Attributes:
        cuts: the blocks of a weight whose rows met each other in products, or were taken apart where the code cuts
            them; a single one if all rows met others together.
        products: the same by products alone.
        multiplied: the weights that stood in a product of matrices.
    """

    cuts: dict[int, Cut]
    products: dict[int, Cut]
    multiplied: set[int]


def read_cuts(model: nn.Module, example: Any) -> dict[int, Cut]:
    """How the weights of a model are cut, off one forward pass of a copy; see `read_pass`."""
    return read_pass(model, example).cuts


def read_pass(model: nn.Module, example: Any, places: Mapping[int, Places] | None = None) -> Pass:
    """How the weights of a model are cut, read off one forward pass of a copy.

    Args:
        model: any module that runs eagerly on the example; weights whole, not sharded.
        example: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments. A few tokens or
            images will do, the more different the better.
        places: where the output of a layer is cut, by `id(weight)`: the rows of the parts taken there are blocks too.

    Returns:
        What was seen, by `id(parameter)`.

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
        with state_outside_restored(model):
            return _read(model, arguments, keywords, chosen, places or {})
    except Exception as error:  # whatever somebody's model raises
        raise ValueError(f"example: the model does not run on it: {type(error).__name__} {error}") from error


def _read(model: nn.Module, args: Any, kwargs: Any, chosen: Sequence[Tensor], places: Mapping[int, Places]) -> Pass:
    """The cuts of some weights, by `id(weight)`, off a forward pass of a copy, and those that were multiplied with;
    raises whatever the module does."""
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
    twin_of = {id(original): id(weight) for original, weight in zip(chosen, weights, strict=True)}
    watch = _Watch(weights, {twin_of[key]: spans for key, spans in places.items() if key in twin_of})
    # Compiled parts run as they are written. Without dynamo, whose import takes seconds, there are none.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    detach_histories((args, kwargs), twins)
    arguments = copy.deepcopy((args, kwargs), twins)  # a pass may write to its input
    with eager, restored_generators(weights), torch.inference_mode(False), torch.enable_grad(), watch:
        clone(*arguments[0], **arguments[1])
    convs = {id(m.weight) for m in clone.modules() if isinstance(m, _ConvNd)}
    cuts, products = {}, {}
    for original, weight in zip(chosen, weights, strict=True):
        whole = Cut((("", len(weight)),)) if id(weight) in watch.together and not watch.seen[id(weight)] else None
        dims = (0,) if id(weight) in convs else (-2, -1)
        cuts[id(original)] = _cut(watch.seen[id(weight)], [*watch.parts[id(weight)].values()], dims, whole)
        products[id(original)] = _cut(watch.seen[id(weight)], [], dims, whole)
    multiplied = {
        id(original) for original, weight in zip(chosen, weights, strict=True) if id(weight) in watch.multiplied
    }
    seen, by_products = ({k: cut for k, cut in read.items() if cut is not None} for read in (cuts, products))
    return Pass(seen, by_products, multiplied)


def _detach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    free = [v.detach() if isinstance(v, Tensor) else v for v in args]
    return tuple(free), {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}


def read_module(module: nn.Module, layer: nn.Module, places: Places = ()) -> Cut | None:
    """How one layer of a module is cut, read off a forward pass of a copy of the module on random input.

    Args:
        module: that holds the layer.
        layer: with a weight.
        places: where its output is cut, if that is known.

    Returns:
        The cut; None if the module does not run on one tensor alone, or if nothing was seen.
    """
    with state_outside_restored(module):
        return _read_alone(module, layer.weight, _shapes(layer), places)


def _read_alone(module: nn.Module, weight: Any, shapes: list[tuple[int, ...]], places: Places) -> Cut | None:
    draw = torch.Generator().manual_seed(0)
    for shape in shapes:
        x = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(
            "cpu" if weight.is_meta else weight.device, weight.dtype
        )
        for arguments in _arguments_of(module, x):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of input that was not meant for it
                    cuts = _read(module, arguments, {}, [weight], {id(weight): places}).cuts
            except Exception:  # whatever a module of somebody's may raise on input that it does not take
                continue
            if id(weight) in cuts:
                return cuts[id(weight)]
    return None


def _arguments_of(module: nn.Module, x: Tensor) -> Iterator[tuple[Any, ...]]:
    """What a module may be called with: one tensor, then the same for each argument that it must have, or None, or for
    each argument a share of the features, as of a gate that joins its two inputs first."""
    yield (x,)
    try:
        parameters = [*inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if 1 < len(needed) < 5:
        yield (x,) * len(needed)
        yield (x, *[None] * (len(needed) - 1))
        yield from (x.chunk(len(needed), dim) for dim in (-1, 1) if x.shape[dim] % len(needed) == 0)


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


def _cut(seen: Products, parts: Sequence[Tensor], dims: tuple[int, ...], whole: Cut | None) -> Cut | None:
    """The blocks of a weight: rows that stood on the same sides of all products, in the same parts."""
    for dim in dims:
        held = [mask.movedim(dim, 0).flatten(1).any(1) for mask in parts]
        held = [mask for mask in held if not mask.all()]
        if held:
            sides = [torch.stack([m.movedim(dim, 0).flatten(1).any(1) for m in masks]) for _, masks in seen]
            names = [name for name, _ in seen]
            products = [
                (n, s) for n, s in zip(names, sides, strict=True) if int(s.sum(0).max()) == 1 < int(s.any(1).sum())
            ]
            labels = _labels(products) if products else [()] * len(held[0])
            taken = torch.stack(held).T.tolist()
            apart = [
                _named(label) or (*label, *map(str, map(int, row))) for label, row in zip(labels, taken, strict=True)
            ]
            if len({*apart}) == len({(label, *row) for label, row in zip(labels, taken, strict=True)}):
                return _pattern(apart, transposed=dim == -1)
            return _pattern(
                [(*label, *map(str, map(int, row))) for label, row in zip(labels, taken, strict=True)], dim == -1
            )
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


def _named(label: tuple[str, ...]) -> tuple[str, ...]:
    """A label that has one name alone, such as q or gate."""
    return label if len(label) == 1 and label[0].isalpha() else ()


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


def equals_plain(module: nn.Module) -> bool:
    """Whether a layer whose class has a forward pass of its own gives what torch's own layer with its weights gives.

    Args:
        module: of a subclass of a linear layer, a convolution, an attention or a recurrent layer. A copy is run.
    """
    kind = next((kind for kind in _PLAIN_LAYERS if isinstance(module, kind)), None)
    if kind is None:
        return False
    try:
        copied = _copy(module, {})
        reference: Any = kind.forward
        x = _input_of(copied)
        times = 3 if isinstance(module, nn.MultiheadAttention) else 1
        with state_outside_restored(copied), restored_generators([x]), torch.inference_mode(False), torch.no_grad():
            expected = _tensors(reference(copied, *[x] * times))[0]
            for count in dict.fromkeys((1, times)):
                with suppress(Exception):  # whatever somebody's layer raises on arguments that it does not take
                    given = _tensors(copied(*[x] * count))[0]
                    if given.shape == expected.shape and torch.allclose(given, expected, rtol=1e-4, atol=1e-5):
                        return True
    except Exception:  # the same of torch's pass
        return False
    return False


_PLAIN_LAYERS: tuple[Any, ...] = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.MultiheadAttention, nn.LSTMCell, nn.GRUCell, nn.RNNCell, nn.LSTM, nn.GRU, nn.RNN,
)  # fmt: skip


def _input_of(module: Any) -> Tensor:
    """A tiny input of a layer of torch's."""
    weight = next(module.parameters())
    draw = torch.Generator().manual_seed(0)
    width_of = next(
        getattr(module, name)
        for name in ("in_features", "in_channels", "embed_dim", "input_size")
        if hasattr(module, name)
    )
    shape: tuple[int, ...] = (3, 2, width_of)
    if isinstance(module, _ConvNd):
        sides = [max(4, d * (k - 1) + 2) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        shape = (2, width_of, *sides)
    elif isinstance(module, (nn.RNNCellBase, nn.Linear)):
        shape = (3, width_of)
    return torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(weight)
