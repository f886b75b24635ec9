"""Find out from a forward pass which rows of a weight belong to one matrix.

Two rows of a fused weight belong to different matrices if their outputs meet in a product: queries with keys in an
attention product, attention weights with values, an activated gate with what it gates. So the forward pass is watched.
At each product of two tensors, gradients show which rows of which weights reach either side. Rows that are always on
the same side belong to one matrix. This uses no names, and works for any order of rows, heads and experts.

The input of each layer is detached, so that only the layers directly before a product are seen at it.
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
from fire_core.weights.nested import nested_tensors
from fire_core.weights.outside import state_outside_restored
from fire_core.weights.topology import input_count, is_layer, own_class, unwrap, words

_PRODUCTS = {"mul", "multiply", "matmul", "bmm", "mm", "einsum", "baddbmm", "glu"}
# Beginnings of the names of autograd nodes of operations that only select and rearrange numbers.
_VIEWS = ("Alias", "Narrow", "Permute", "Select", "Slice", "Split", "Transpose", "Unbind", "Unsafe", "View")
# Names for the sides of a product, by the name of the product.
_SIDES = {"attention": ("q", "k", "v"), "gate": ("gate", "up"), "glu": ("value", "gate")}
# Names in an attention that is written out, by a row's sides in its two products: q with k, and their result with v.
_ATTENTION_SIDES: dict[tuple[str, ...], str] = {("0", "0"): "q", ("1", "0"): "k", ("", "1"): "v"}
MAX_DEPTH = 8  # depth of lists, mappings and objects within each other, in which tensors with a history are searched
# The products in which a weight was seen: the product's name, and for each side a mask of the weight's shape.
Products = list[tuple[str, list[Tensor]]]
# Places in source files at which the output of a layer is cut: (file, first line, last line).
Places = Sequence[tuple[str, int, int]]

# Names of functions that multiply matrices; that convert a tensor without computing; and that take parts of a tensor.
_MATRIX_PRODUCTS = words(
    "linear matmul mm bmm mv inner dot einsum baddbmm addmm addbmm tensordot bilinear chain_matmul "
    "multi_head_attention_forward lstm gru lstm_cell gru_cell rnn_tanh_cell "
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
)
_CASTS = words("to float half bfloat16 double type type_as contiguous clone")
_TAKES_PARTS = words(
    "chunk split tensor_split unsafe_chunk unsafe_split split_with_sizes unbind getitem narrow select "
    "hsplit dsplit vsplit index_select narrow_copy"
)
# Functions of each number by itself. The derivative 0 of a unit that is off would hide the weights before it, so these
# functions get the derivative 1.
_ACTIVATIONS = words(
    "relu relu6 sigmoid tanh gelu silu mish elu selu celu leaky_relu prelu rrelu hardswish hardsigmoid "
    "hardtanh softplus softsign threshold logsigmoid exp clamp clip clamp_min clamp_max dropout "
    "hardshrink softshrink tanhshrink square sqrt abs softmax log_softmax erf sin cos"
)


class _WithSlopeOne(torch.autograd.Function):
    """An activation with its own values and the derivative 1."""

    @staticmethod
    def forward(ctx: Any, _: Tensor, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        """Return the gradient unchanged for the activation's input, and None for its values."""
        return slopes[0], None


class _Watch(TorchFunctionMode):
    """A mode that watches how the rows of weights meet in the operations of a forward pass.

    Args:
        weights: the weights to watch.
        places: from the `id` of a weight to the places at which the source cuts the output of its layer.

    Attributes:
        seen: from the `id` of a weight to the products in which its rows were on several sides.
        together: `id` of each weight all of whose rows were on one side of a product.
        parts: from the `id` of a weight to the parts of its output that were taken at each of its places, as masks.
            A place has several masks if a loop takes another part there in each turn.
        multiplied: `id` of each weight that was, as it is stored, an operand of a product of matrices.
        reshaped: `id` of each weight of which a view was multiplied whose rows or columns are not those of the weight.
        narrowed: `id` of each weight of which only some columns were multiplied.
    """

    def __init__(self, weights: Sequence[Tensor], places: Mapping[int, Places]) -> None:
        super().__init__()
        self.places = places
        self.lines = {(file, line) for spans in places.values() for file, a, b in spans for line in range(a, b + 1)}
        self.parts: dict[int, dict[Any, list[Tensor]]] = {id(weight): {} for weight in weights}
        self.multiplied: set[int] = set()
        self.reshaped: set[int] = set()
        self.narrowed: set[int] = set()
        matrices = [weight for weight in weights if weight.ndim == 2 and min(weight.shape) > 1]
        # How many numbers lie between the beginnings of two rows of a matrix that is stored as it is.
        self._row_steps = {weight.untyped_storage().data_ptr(): weight.stride()[0] for weight in matrices}
        self._columns = {id(weight): weight.shape[1] for weight in matrices}
        not_empty = [weight for weight in weights if weight.numel()]
        self._weight_of_storage = {weight.untyped_storage().data_ptr(): id(weight) for weight in not_empty}
        # From the memory of a cast or copy of a weight to it, which must stay alive, and to what it was made of.
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self.weights = list(weights)
        self.seen: dict[int, Products] = {id(weight): [] for weight in weights}
        self.together: set[int] = set()
        self.draw = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        name = {"rmul": "mul", "imul": "mul", "rmatmul": "matmul"}.get(name, name)
        kwargs = kwargs or {}
        if torch.is_grad_enabled() and name in _PRODUCTS:
            self._product(name, args, kwargs)
        if torch.is_grad_enabled() and name == "scaled_dot_product_attention":
            self._attention(args, kwargs)
        if name in _MATRIX_PRODUCTS:
            for value in nested_tensors((args, kwargs)):
                if (key := self._weight_in(value)) is not None and not self._was_written_to(value):
                    self.multiplied.add(key)
                    if self._is_reshaped(value):
                        self.reshaped.add(key)
                    elif self._is_narrowed(value, key):
                        self.narrowed.add(key)
        if name in _ACTIVATIONS and not getattr(func, "__name__", "").endswith("_"):
            return self._activate(func, args, kwargs)
        if func is torch.autograd.grad:  # of a model's own; where a layer's input is detached the gradient is 0
            kwargs = {**kwargs, "allow_unused": True, "materialize_grads": True}
        result = func(*args, **kwargs)
        if name in _CASTS and isinstance(result, Tensor) and args:
            cast_weight = self._weight_in(args[0])
            if cast_weight is not None:
                if self._is_reshaped(args[0]):
                    self.reshaped.add(cast_weight)
                self._weight_of_storage[result.untyped_storage().data_ptr()] = cast_weight
                if args[0].shape == result.shape and args[0].ndim > 1:
                    self._row_steps.setdefault(result.untyped_storage().data_ptr(), result.stride()[-2])
                self._casts.setdefault(result.untyped_storage().data_ptr(), (result, args[0]))
        if name in _TAKES_PARTS and self.lines and torch.is_grad_enabled():
            self._note_parts(result)
        return result

    def _weight_in(self, value: Any) -> int | None:
        """Return the `id` of the weight that a tensor is, or is a view or cast of; None if it is none."""
        if not isinstance(value, Tensor) or not value.numel() or value.layout != torch.strided:
            return None
        try:
            return self._weight_of_storage.get(value.untyped_storage().data_ptr())
        except (RuntimeError, NotImplementedError):
            return None

    def _was_written_to(self, value: Tensor) -> bool:
        """Return whether a tensor is a copy of a weight that has got other numbers since, as by `w[mask] = 0`."""
        cast, original = self._casts.get(value.untyped_storage().data_ptr(), (value, value))
        return cast is not original and not torch.equal(cast.detach(), original.detach().to(cast.dtype))

    def _is_reshaped(self, value: Tensor) -> bool:
        """Return whether a view of a matrix has other rows: no step along it leads from one of its rows to the next.

        A matrix of one row or column has no other.
        """
        step = self._row_steps.get(value.untyped_storage().data_ptr())
        return value.ndim > 1 and step is not None and step not in value.stride()

    def _is_narrowed(self, value: Tensor, key: int) -> bool:
        """Return whether a view of a matrix has its rows, or some of them, with fewer columns."""
        step = self._row_steps.get(value.untyped_storage().data_ptr())
        if value.ndim != 2 or step not in value.stride() or key not in self._columns:
            return False
        return value.shape[1 - value.stride().index(step)] < self._columns[key]

    def _activate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an activation function, which passes gradients on unchanged."""
        x = next(iter([*args, *kwargs.values()]), None)
        if not isinstance(x, Tensor) or not x.requires_grad or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        inner = [v.detach().clone() if v is x else v for v in args]
        values = func(*inner, **{k: v.detach().clone() if v is x else v for k, v in kwargs.items()})
        if not isinstance(values, Tensor) or values.shape != x.shape or values.dtype != x.dtype:
            return func(*args, **kwargs)
        return _WithSlopeOne.apply(x, values.detach())

    def _note_parts(self, result: Any) -> None:
        """Note which rows of weights the parts of a result hold, if the code that took them is at one of the places.

        Args:
            result: a tensor, or several, that a function such as `chunk` has returned.
        """
        frame: Any = sys._getframe(2)
        # A function of the model's that is called on the line of a cut may take parts for a purpose of its own.
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "einops"):
            frame = frame.f_back
        if frame is None or (frame.f_code.co_filename, frame.f_lineno) not in self.lines:
            return
        for i, part in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            if not isinstance(part, Tensor) or part.grad_fn is None:
                continue
            for key, mask in self._reached(part).items():
                spans = self.places.get(key, ())
                line = frame.f_lineno
                if any(file == frame.f_code.co_filename and a <= line <= b for file, a, b in spans):
                    masks = self.parts[key].setdefault((frame.f_code.co_filename, frame.f_lasti, i), [])
                    for n, other in enumerate(masks):
                        if bool((other & mask).any()):
                            masks[n] = other | mask
                            break
                    else:
                        masks.append(mask)

    def _product(self, name: str, args: Any, kwargs: Any) -> None:
        """Note which rows of weights meet in a product.

        Args:
            name: name of the function.
            args: its arguments.
            kwargs: its keyword arguments.
        """
        operands: list[Any] = []
        for value in (*args, *kwargs.values()):
            operands += value if isinstance(value, (list, tuple)) else [value]  # einsum takes its operands as a list
        sides = [v for v in operands if isinstance(v, Tensor) and v.grad_fn is not None]
        if name == "glu" and sides:
            sides = list(sides[0].chunk(2, kwargs.get("dim", args[1] if len(args) > 1 else -1)))
        sides = sides[-2:]  # of baddbmm, whose first operand is added to the product
        if len(sides) < 2:
            return
        activated = [not type(side.grad_fn).__name__.startswith(_VIEWS) for side in sides]
        if name == "mul" and sum(activated) == 1:  # silu(gate) * up
            name, sides = "gate", sides[:: 1 if activated[0] else -1]
        self._note_sides(name, [self._reached(side) for side in sides])

    def _attention(self, args: Any, kwargs: Any) -> None:
        """Note which rows of weights meet in torch's attention, as queries, keys or values; its mask is no side."""
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        sides = [given[side] for side in ("query", "key", "value")]
        self._note_sides("attention", [{} if side.grad_fn is None else self._reached(side) for side in sides])

    def _note_sides(self, name: str, reached: Sequence[Mapping[int, Tensor]]) -> None:
        """Note the weights of whose rows some are on one side of a product and some on another.

        Args:
            name: name of the product.
            reached: for each side the numbers on which it depends, as `_reached` returns them.
        """
        for key in {key for masks in reached for key in masks}:
            masks = [masks[key] for masks in reached if key in masks]
            if len(masks) > 1:
                if name == "attention":  # each side keeps its place: the queries may come from another weight
                    masks = [side.get(key, torch.zeros_like(masks[0])) for side in reached]
                self.seen[key].append((name, masks))
            elif all(masks[0].movedim(dim, 0).flatten(1).any(1).all() for dim in (0, 1)):
                self.together.add(key)

    def _reached(self, tensor: Tensor) -> dict[int, Tensor]:
        """Return the numbers of weights on which a tensor depends.

        Returns:
            From the `id` of a weight to a boolean mask of its shape; weights on which it does not depend are left out.
        """
        direction = torch.randn(tensor.shape, generator=self.draw, dtype=torch.float32, device="cpu").to(tensor)
        slopes = torch.autograd.grad(tensor, self.weights, direction, retain_graph=True, allow_unused=True)
        pairs = zip(self.weights, slopes, strict=True)
        return {id(weight): slope != 0 for weight, slope in pairs if slope is not None}


class Pass(NamedTuple):
    """What one forward pass shows of weights, by the `id` of the parameter.

    Attributes:
        cuts: the cuts of weights whose rows met each other in products, or were in different parts where the code cuts
            them. The cut has a single block if all rows were always together.
        products: the same from products alone.
        multiplied: the weights that, as they are stored, were operands of products of matrices.
        narrowed: those of them of which only some columns were.
        reshaped: the weights of which a view was multiplied that has other rows, so that their rows are no rows of a
            matrix.
    """

    cuts: dict[int, Cut]
    products: dict[int, Cut]
    multiplied: set[int]
    narrowed: set[int]
    reshaped: set[int]


def read_pass(model: nn.Module, example: Any, places: Mapping[int, Places] | None = None) -> Pass:
    """Find out how the weights of a model are cut, from one forward pass of a copy.

    Args:
        model: any module that runs eagerly on the example, with weights that are not sharded.
        example: a tensor; a tuple or list of positional arguments; or a mapping of keyword arguments. A few tokens or
            images are enough; they should differ from each other.
        places: from the `id` of a weight to the places at which the source cuts the output of its layer. The rows of
            the parts that are taken there are blocks too.

    Returns:
        What the pass shows of the model's parameters.

    Raises:
        ValueError: the weights are sharded, or the model does not run on the example.
    """
    if any(hasattr(p, "device_mesh") for p in model.parameters()):
        raise ValueError("example: reading cuts needs whole weights: read them before sharding, and declare blocks=")
    arguments, keywords = (example if isinstance(example, (tuple, list)) else (example,)), {}
    if isinstance(example, Mapping):
        arguments, keywords = (), dict(example)
    convolutions = [m for m in model.modules() if isinstance(m, _ConvNd)]
    grouped = {id(m._parameters.get("weight")) for m in convolutions if m.groups > 1}  # their groups cut them
    chosen = [p for p in model.parameters() if p.ndim > 1 and p.is_floating_point() and id(p) not in grouped]
    try:
        with state_outside_restored(model):
            return _read(model, arguments, keywords, chosen, places or {})
    except Exception as error:  # whatever somebody's model raises
        what = "the model does not run on it"
        if _runs(model, arguments, keywords):
            what = "the model runs on it, but not while its products are watched; declare blocks= instead"
        raise ValueError(f"example: {what}: {type(error).__name__} {error}") from error


def _runs(model: nn.Module, args: Any, kwargs: Any) -> bool:
    """Return whether a copy of a model runs on arguments while nothing is watched."""
    try:
        with state_outside_restored(model), restored_generators([*model.parameters()]):
            copy_of(unwrap(model), {})(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    except Exception:  # whatever somebody's model raises
        return False
    return True


def _read(model: nn.Module, args: Any, kwargs: Any, chosen: Sequence[Tensor], places: Mapping[int, Places]) -> Pass:
    """Run a copy of a model and return what the pass shows of some weights.

    Args:
        model: the model.
        args: arguments of its forward pass.
        kwargs: keyword arguments.
        chosen: the weights.
        places: see `read_pass`.

    Raises:
        Exception: whatever the model raises.
    """
    twins: dict[int, Any] = {}
    clone = copy_of(unwrap(model), twins)
    weights = [twins[id(weight)] for weight in chosen]
    # Depthwise convolutions are left out: they mix no channels, so what passes them still belongs to the layer before.
    layers = {
        m for m in clone.modules() if is_layer(m) and not (isinstance(m, _ConvNd) and 1 < m.groups == m.in_channels)
    }
    lists = [m for m in clone.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    blocks = {child for m in lists for child in m.children() if not layers.isdisjoint(child.modules())}
    for module in layers:
        module.register_forward_pre_hook(_detach, with_kwargs=True)
    for module in blocks - layers:
        module.register_forward_pre_hook(_detach_first, with_kwargs=True)
    twin_of = {id(original): id(weight) for original, weight in zip(chosen, weights, strict=True)}
    watch = _Watch(weights, {twin_of[key]: spans for key, spans in places.items() if key in twin_of})
    # Compiled parts have to run eagerly. If dynamo, whose import takes seconds, is not imported, there are none.
    eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    detach_histories((args, kwargs), twins)
    arguments = copy.deepcopy((args, kwargs), twins)  # a pass may write to its input
    with eager, restored_generators(weights), torch.inference_mode(False), torch.enable_grad(), watch:
        clone(*arguments[0], **arguments[1])
    # The dimensions of a convolution's weight that its outputs are along.
    row_dims = {id(m.weight): int(m.transposed) for m in clone.modules() if isinstance(m, _ConvNd)}
    cuts, products = {}, {}
    for original, weight in zip(chosen, weights, strict=True):
        by_place = watch.parts[id(weight)].values()
        # Parts that a loop takes at one place may be heads of one matrix, or matrices for one layer each.
        parts = [] if any(len(masks) > 1 for masks in by_place) else [mask for masks in by_place for mask in masks]
        is_together = id(weight) in watch.together and not watch.seen[id(weight)]
        # Parts of which each holds all rows are no parts of the rows: they lie along another axis.
        row_dim = row_dims.get(id(weight), 0)
        hold_all_rows = [bool(mask.movedim(row_dim, 0).any(1).all()) for mask in parts]
        is_together |= bool(parts) and not watch.seen[id(weight)] and all(hold_all_rows)
        single = Cut((("", weight.shape[row_dim]),)) if is_together else None
        dims = (row_dim,) if id(weight) in row_dims else (-2, -1)
        cuts[id(original)] = _cut(watch.seen[id(weight)], parts, dims, single)
        products[id(original)] = _cut(watch.seen[id(weight)], [], dims, single)
    pairs = [(id(original), id(weight)) for original, weight in zip(chosen, weights, strict=True)]
    multiplied = {original for original, weight in pairs if weight in watch.multiplied}
    narrowed = {original for original, weight in pairs if weight in watch.narrowed}
    reshaped = {original for original, weight in pairs if weight in watch.reshaped}
    seen, by_products = (
        {k: cut for k, cut in read.items() if cut is not None and k not in reshaped} for read in (cuts, products)
    )
    return Pass(seen, by_products, multiplied, narrowed, reshaped)


def _detach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a module's arguments without their autograd history: a hook before its forward pass."""
    detached = [v.detach() if isinstance(v, Tensor) else v for v in args]
    return tuple(detached), {k: v.detach() if isinstance(v, Tensor) else v for k, v in kwargs.items()}


def _detach_first(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return a block's arguments, the first of them without its autograd history.

    The first is the stream that all layers before the block have made. Others, such as shifts and scales, may be the
    output of one layer that the block cuts.
    """
    if args:
        return (*_detach(module, args[:1], {})[0], *args[1:]), kwargs
    first = dict([*kwargs.items()][:1])
    return args, kwargs | _detach(module, (), first)[1]


def read_module(module: nn.Module, layer: nn.Module, places: Places = (), depends_on_rank: bool = False) -> Cut | None:
    """Find out how a layer's weight is cut, from a forward pass of a copy of a module on random input.

    Args:
        module: the module that holds the layer.
        layer: the layer, with a `weight`.
        places: the places at which the source cuts the layer's output.
        depends_on_rank: whether another number of axes of the input may show another cut.

    Returns:
        The cut; None if the module does not run on random input, if the pass shows nothing, or if inputs with several
        numbers of axes show several cuts.
    """
    first = next((part for part in module.modules() if is_layer(part)), layer)
    shapes = list(dict.fromkeys([*_shapes(layer), *_shapes(first)]))
    with state_outside_restored(module):
        passes = _passes_alone(module, layer.weight, shapes, places)
        if not depends_on_rank:
            return next((cut for cut in passes if cut is not None), None)
        shown = set(passes)
        return shown.pop() if len(shown) == 1 else None


def _passes_alone(
    module: nn.Module, weight: Any, shapes: list[tuple[int, ...]], places: Places
) -> Iterator[Cut | None]:
    """Yield what each pass that runs shows of a weight, over inputs of several shapes: its cut; None for nothing."""
    draw = torch.Generator().manual_seed(0)
    for shape in shapes:
        x = torch.randn(shape, generator=draw, dtype=torch.float32, device="cpu").to(
            "cpu" if weight.is_meta else weight.device, weight.dtype
        )
        for arguments in _arguments_of(module, x):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the module may warn of unusual input
                    cuts = _read(module, arguments, {}, [weight], {id(weight): places}).cuts
            except Exception:  # whatever the module raises on input that it does not take
                continue
            yield cuts.get(id(weight))


def _arguments_of(module: nn.Module, x: Tensor) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to try for a module's forward pass, all made from one tensor `x`.

    These are `x` alone; `x` for each required argument; `x` and None for the others; and, as a gate may first join its
    two inputs, for each argument an equal share of the features of `x`, along its last and its second dimension.
    """
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


def copy_of(module: nn.Module, twins: dict[int, Any]) -> nn.Module:
    """Return a copy of a module in evaluation mode, without hooks and wrappers, that shares no memory with it.

    Sharded weights and weights on the meta device get random numbers. A forward pass of the copy changes nothing that
    the module holds: caches, counters, or random generators of its own.

    Args:
        module: the module.
        twins: from the `id` of an original object to its copy. The copies of modules, parameters and other objects are
            added.
    """
    if id(module) in twins:
        existing: nn.Module = twins[id(module)]
        return existing
    # Not by the class itself: torch.fx's own `__new__` makes another class, without the forward pass.
    new: nn.Module = object.__new__(own_class(module))
    twins[id(module)] = new
    vars(new).update(vars(nn.Module()), training=False)
    for key, p in module._parameters.items():
        new._parameters[key] = None if p is None else twins.setdefault(id(p), _twin(p))
    for key, b in module._buffers.items():
        new._buffers[key] = None if b is None else twins.setdefault(id(b), _buffer_twin(b))
    for key, child in module._modules.items():
        new._modules[key] = None if child is None else copy_of(unwrap(child), twins)
    # The other attributes come last, so that parameters and modules in them are replaced by their copies.
    for key in vars(module).keys() - vars(new).keys():
        value = vars(module)[key]
        detach_histories(value, twins)
        # What cannot be copied (a lock, a group of processes) is left out, so that a pass that needs it fails.
        with suppress(Exception):
            vars(new)[key] = copy.deepcopy(value, twins)
    return new


def detach_histories(value: object, twins: dict[int, Any], depth: int = 0) -> None:
    """Copy each tensor with an autograd history in a value, without the history, into the memo of `copy.deepcopy`.

    `copy.deepcopy` refuses such tensors unless its memo has their copies.

    Args:
        value: an attribute of a module, or arguments.
        twins: the memo, from the `id` of an original to its copy. Copies are added.
        depth: how many lists, mappings and objects the value is nested in.
    """
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            twins.setdefault(id(value), value.detach().clone())
    elif depth < MAX_DEPTH and not isinstance(value, (nn.Module, type)):
        parts: list[Any] = []
        if isinstance(value, (list, tuple, set, deque)):
            parts = [*value]
        elif isinstance(value, Mapping):
            parts = [*value.values()]
        elif hasattr(value, "__dict__"):
            parts = [*vars(value).values()]
        for part in parts:
            detach_histories(part, twins, depth + 1)


def _buffer_twin(b: Tensor) -> Tensor:
    """Return a copy of a buffer; of one on the meta device, zeros on the CPU."""
    return torch.zeros_like(b, device="cpu") if b.is_meta else b.detach().clone()


def _twin(p: nn.Parameter) -> nn.Parameter:
    """Return a trainable copy of a parameter; a sharded one, or one on the meta device, gets random numbers."""
    numbers = p.detach().clone()  # a forward pass may write to its weights
    if p.is_meta or hasattr(p, "device_mesh"):
        draw = torch.Generator().manual_seed(0)
        numbers = torch.randn(p.shape, generator=draw, dtype=torch.float32, device="cpu").to(
            "cpu" if p.is_meta else p.device, p.dtype
        )
    return nn.Parameter(numbers, requires_grad=p.is_floating_point())


def _shapes(layer: nn.Module) -> list[tuple[int, ...]]:
    """Return shapes of inputs to try for the module around a layer, as images or sequences of its width."""
    if isinstance(layer, _ConvNd):
        maps = [(2, layer.in_channels, *[side] * len(layer.kernel_size)) for side in (8, 7)]
        return [*maps, (2, 16, layer.in_channels)]
    return [(*batch, input_count(layer)) for batch in ((2, 16), (2, 4, 4), (2, 49), (16,))]


# ------------------------------------------------------------------------------------------------ from masks to a cut


def _cut(seen: Products, parts: Sequence[Tensor], dims: tuple[int, ...], single: Cut | None) -> Cut | None:
    """Return the cut of a weight that one pass shows.

    Rows belong to one block if they were on the same sides of all products and in the same parts.

    Args:
        seen: the products in which rows of the weight were on several sides.
        parts: the parts of its output that were taken where the source cuts it, as masks of the weight's shape.
        dims: the dimensions along which rows may count; the first that shows blocks is taken.
        single: the result if none does.
    """
    for dim in dims:
        products: list[tuple[str, Tensor]] = []
        for name, masks in seen:
            sides = torch.stack([_rows_in(mask, dim) for mask in masks])  # (sides, rows)
            no_row_on_two_sides = int(sides.sum(0).max()) == 1
            rows_on_several_sides = int(sides.any(1).sum()) > 1
            if no_row_on_two_sides and rows_on_several_sides:
                products.append((name, sides))
        rows_in_parts = [_rows_in(mask, dim) for mask in parts]
        rows_in_parts = [rows for rows in rows_in_parts if not rows.all()]
        if not rows_in_parts:
            if products:
                return _repeating_pattern(_labels(products), transposed=dim == -1)
            continue
        side_labels = _labels(products) if products else [()] * len(rows_in_parts[0])
        full_labels = []
        short_labels = []
        for label, in_parts in zip(side_labels, torch.stack(rows_in_parts).T.tolist(), strict=True):
            full_label = (*label, *(str(int(is_in)) for is_in in in_parts))
            is_name = len(label) == 1 and label[0].isalpha()  # such as q or gate
            full_labels.append(full_label)
            short_labels.append(label if is_name else full_label)
        # A name alone is the better label, if it tells as many blocks apart.
        labels = short_labels if len({*short_labels}) == len({*full_labels}) else full_labels
        return _repeating_pattern(labels, transposed=dim == -1)
    return single


def _rows_in(mask: Tensor, dim: int) -> Tensor:
    """Return for each index along a dimension whether anything there is in a mask: (rows,) booleans."""
    return mask.movedim(dim, 0).flatten(1).any(1)


def _labels(products: list[tuple[str, Tensor]]) -> list[tuple[str, ...]]:
    """Return for each row a label that tells on which side of each product it was.

    Args:
        products: the name of each product, and on which of its sides each row was: booleans (sides, rows).

    Returns:
        For each row a tuple with "0", "1" or "" (on no side) for each product; or with a name alone, such as q or gate,
        if the products are those of an attention or a gate.
    """
    if attention := [sides for name, sides in products if name == "attention"]:
        attention_sides = torch.stack(attention).any(0)
        outside = ~attention_sides.any(0)  # rows that take no part in the attention, such as a gate beside q, k and v
        elsewhere = [(name, sides & outside) for name, sides in products if name != "attention"]
        elsewhere = [(name, sides) for name, sides in elsewhere if int(sides.any(1).sum()) > 1]
        products = [("attention", attention_sides), *elsewhere]
    distinct: dict[tuple[tuple[bool, ...], ...], str] = {}  # from the sides of a product to its name
    for name, sides in products:
        distinct.setdefault(tuple(map(tuple, sides.tolist())), name)
    side_names = _SIDES.get(next(iter(distinct.values())), "01") if len(distinct) == 1 else "012"
    labels = []
    for row in range(products[0][1].shape[1]):
        label = []
        for rows_on_sides in distinct:
            sides_of_row = [side_names[i] for i, rows_on_side in enumerate(rows_on_sides) if rows_on_side[row]]
            label.append(sides_of_row[0] if sides_of_row else "")
        labels.append(tuple(label))
    names = {label: _ATTENTION_SIDES.get(label[:2], "") for label in labels}
    is_elementwise = {"mul", "multiply", "gate"} & set(distinct.values())  # these are no products of matrices
    if all(names.values()) and not is_elementwise:
        labels = [(names[label],) for label in labels]
    return labels


def _repeating_pattern(labels: list[tuple[str, ...]], transposed: bool) -> Cut | None:
    """Return the cut for the labels of all rows: the shortest pattern of blocks that repeats.

    None: all rows have one label, or a label occurs twice within the pattern.
    """
    runs = [(label, len(list(rows))) for label, rows in groupby(labels)]
    period = next(n for n in range(1, len(runs) + 1) if len(runs) % n == 0 and runs == runs[:n] * (len(runs) // n))
    pattern = runs[:period]
    if len({label for label, _ in pattern}) < len(pattern) or len(pattern) < 2:
        return None
    have_names = all("".join(label).isalpha() for label, _ in pattern)
    blocks = tuple((label[0] if have_names else str(i), height) for i, (label, height) in enumerate(pattern))
    return Cut(blocks, len(runs) // period, transposed, role="dense")
