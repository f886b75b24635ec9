"""Where the features of a layer's output are, after views, permutations and the like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fire_core.weights.flows import FEATURES, MIXED, OTHER, SHARE, Flow, Rest, Size, Unknown, altered
from fire_core.weights.tensor_functions import MERGING_VIEWS


def axis_count(values: Sequence[Any]) -> int | None:
    """Return how many axes the first tensor among some values has; None if that is not known."""
    for value in values:
        if isinstance(value, Unknown):
            return value.axes
        if isinstance(value, Flow):
            return None if value.is_open or value.axes is None else len(value.axes)
    return None


def axis_index(flow: Flow, dim: int) -> int | None:
    """Return the index in `flow.axes` of a dimension; None if it is not there, or not known which it is."""
    if flow.axes is None:
        return None
    count = len(flow.axes)
    if dim < 0:
        return count + dim if count + dim >= 0 else None
    return dim if not flow.is_open and dim < count else None


def is_feature_axis(flow: Flow | None, dim: Any) -> bool | None:
    """Return whether a dimension is that of the features; None if that is not known."""
    if flow is None or flow.axes is None or not isinstance(dim, int):
        return True if dim == -1 else None
    axis = axis_index(flow, dim)
    if axis is not None:
        return flow.axes[axis] in (FEATURES, SHARE)
    return dim > 1  # of a linear layer: the first two axes are batch and positions, as far as is known


def is_along_features(index: Any, flow: Any) -> bool | None:
    """Return whether an index such as `[..., :n]`, with which a tensor is written to, takes a part of the features.

    None: that is not known.
    """
    items = list(index) if isinstance(index, tuple) else [index]
    chosen = [i for i, item in enumerate(items) if item is not Ellipsis and item != slice(None)]
    if len(chosen) != 1:
        return None
    at = chosen[0]
    if any(item is Ellipsis for item in items[:at]):
        at -= len(items)
    known = is_feature_axis(flow if isinstance(flow, Flow) else None, at)
    return known if isinstance(items[chosen[0]], slice) else None


def axes_without(axes: tuple[str, ...], at: int) -> tuple[str, ...]:
    """Return axes without the one at this place."""
    return (*axes[:at], *axes[at + 1 :])


def with_new_axis(flow: Flow, at: int) -> Flow:
    """Return a flow with a new axis at this place, which holds no features."""
    assert flow.axes is not None
    return altered(flow, axes=(*flow.axes[:at], OTHER, *flow.axes[at:]))


def without_axis(flow: Flow, axis: int | None) -> Flow:
    """Return a flow without an axis, of which one index was taken; with None for the axis, the flow itself."""
    if axis is None or flow.axes is None:
        return flow
    return altered(flow, axes=axes_without(flow.axes, axis))


def with_features_at(flow: Flow, dim: int) -> Flow:
    """Return the same flow, whose last axis, that of the features, is the one of this number from the front."""
    return altered(flow, axes=(*[OTHER] * dim, FEATURES), is_open=False, number=flow.number)


def with_unknown_axes(flow: Flow) -> Flow:
    """Return a flow whose axes are no longer known."""
    return altered(flow, axes=None, side_by_side=None)


def tensor_of_unknown_axes(value: Any) -> Any:
    """Return a flow whose axes are no longer known, or for any other value an unknown one."""
    return with_unknown_axes(value) if isinstance(value, Flow) else Unknown()


def viewed(name: str, flow: Flow, args: Sequence[Any], kwargs: Mapping[str, Any], features: int | None) -> Flow:
    """Return the result of a view, whose axes say where the features are now.

    Args:
        name: the name of the function or method.
        flow: the tensor that is viewed.
        args: the other arguments.
        kwargs: the arguments with a name.
        features: the number of features, if the tensor is the whole output of one layer whose size is known.
    """
    if flow.is_stacked and name in MERGING_VIEWS:
        flow = altered(flow, notes=frozenset(), is_stacked=False)
    if flow.side_by_side:
        flow = altered(flow, side_by_side=None)
    if flow.axes is None:
        return flow
    match name:
        case "rearrange":
            return rearranged(flow, args[0] if args else kwargs.get("pattern"))
        case "view" | "reshape" | "view_as" | "reshape_as":
            sizes = args or kwargs.get("shape", ())
            if len(args) == 1 and isinstance(args[0], (tuple, list)):
                sizes = args[0]
            return reshaped(flow, sizes, features) if isinstance(sizes, (tuple, list)) else with_unknown_axes(flow)
        case "unflatten":
            dim = kwargs.get("dim", args[0] if args else None)
            return unflattened(flow, dim, kwargs.get("sizes", args[1] if len(args) > 1 else None))
        case "flatten":
            start = args[0] if args else kwargs.get("start_dim", 0)
            return flattened(flow, start, args[1] if len(args) > 1 else kwargs.get("end_dim", -1))
        case "squeeze":
            return flow
        case "unsqueeze":
            dim = args[0] if args else kwargs.get("dim")
            if not isinstance(dim, int) or (flow.is_open and dim >= 0):
                return flow
            return with_new_axis(flow, dim if dim >= 0 else len(flow.axes) + 1 + dim)
    dims = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list)) else args or list(kwargs.values())
    return permuted(flow, name, list(dims))


def reshaped(flow: Flow, sizes: Sequence[Any], features: int | None) -> Flow:
    """Return the result of `view` or `reshape`.

    Args:
        flow: the tensor.
        sizes: the lengths of the new axes, as far as they are known.
        features: the number of features, if it is known.
    """
    assert flow.axes is not None
    is_open = any(isinstance(size, Rest) for size in sizes)
    sizes = [size for size in sizes if not isinstance(size, Rest)]
    if flow.axes[-1] == FEATURES:
        if is_open and sizes and isinstance(sizes[-1], Size):
            sizes[-1] = Size()  # behind an unknown number of axes it is not the length of an axis before the features
        places = _places_of_features(sizes, range(len(sizes) - 1, -1, -1), features)
    elif not flow.is_open and not is_open and len(flow.axes) > 1 and flow.axes[1] == FEATURES:  # (B, C, H, W)
        rest = next((at + 1 for at in range(1, len(sizes)) if sizes[at] == -1), len(sizes))
        places = _places_of_features(sizes, range(1, rest), features)
    else:
        return with_unknown_axes(flow)
    kind = FEATURES if len(places) == 1 else SHARE
    axes = tuple(kind if at in places else OTHER for at in range(len(sizes)))
    return altered(flow, axes=axes, is_open=is_open)


def _places_of_features(sizes: Sequence[Any], candidates: Iterable[int], features: int | None) -> list[int]:
    """Return which of the new axes share the features.

    Args:
        sizes: the lengths of the new axes, as far as they are known.
        candidates: axes that may hold features, in the order in which they are taken until they hold all.
        features: the number of features, if it is known.
    """
    places, product = [], 1
    for at in candidates:
        size = sizes[at]
        length = size if isinstance(size, int) and size > 0 else 1
        is_another_axis = isinstance(size, Size) and size.axis is not None
        if is_another_axis or (features is not None and (product >= features or features % (product * length))):
            break
        places.append(at)
        product *= length
    return places


def unflattened(flow: Flow, dim: Any, sizes: Any) -> Flow:
    """Return the result of `unflatten`: several axes of these sizes in the place of one."""
    assert flow.axes is not None
    axis = axis_index(flow, dim) if isinstance(dim, int) else None
    if axis is None and flow.is_open and flow.axes == (FEATURES,) and isinstance(dim, int) and dim > 1:
        axis = 0
    if axis is None or not isinstance(sizes, (tuple, list)):
        return with_unknown_axes(flow)
    kind = SHARE if flow.axes[axis] in (FEATURES, SHARE) else flow.axes[axis]
    return altered(flow, axes=(*flow.axes[:axis], *[kind] * len(sizes), *flow.axes[axis + 1 :]))


def permuted(flow: Flow, name: str, dims: list[Any]) -> Flow:
    """Return the result of `permute`, `transpose`, `movedim` or a similar function."""
    axes = flow.axes
    assert axes is not None
    if name == "t":  # of a matrix
        return altered(flow, axes=(FEATURES, OTHER), is_open=False) if flow.is_open else altered(flow, axes=axes[::-1])
    if not dims or not all_ints([d for d in dims if not isinstance(d, (tuple, list))]):
        return with_unknown_axes(flow)
    if any(isinstance(d, (tuple, list)) for d in dims):
        return with_unknown_axes(flow)
    if name == "permute":
        full = [*[OTHER] * (len(dims) - len(axes)), *axes] if flow.is_open else list(axes)
        if len(full) != len(dims) or not all(-len(full) <= d < len(full) for d in dims):
            return with_unknown_axes(flow)
        return altered(flow, axes=tuple(full[d] for d in dims), is_open=False)
    # Where the number of leading axes is not known, batch and positions are assumed.
    full = [OTHER, OTHER, *axes] if flow.is_open else list(axes)
    if len(dims) != 2 or not all(-len(full) <= d < len(full) for d in dims):
        return with_unknown_axes(flow)
    first, second = (d % len(full) for d in dims)
    if name.startswith("move"):
        full.insert(second, full.pop(first))
    else:
        full[first], full[second] = full[second], full[first]
    return altered(flow, axes=tuple(full), is_open=False)


def flattened(flow: Flow, start: Any, stop: Any) -> Flow:
    """Return the result of `flatten`: one axis in the place of those from `start` to `stop`."""
    axes = flow.axes
    assert axes is not None
    if not isinstance(start, int) or not isinstance(stop, int):
        return with_unknown_axes(flow)
    if flow.is_open:
        if start < 0 and -start <= len(axes):
            begin = len(axes) + start
        elif axes == (FEATURES,) or stop != -1:
            return flow
        else:
            begin = next((i for i, kind in enumerate(axes) if kind != OTHER), 0)
    else:
        begin = start % len(axes)
    end = stop % len(axes) if not flow.is_open or stop < 0 else len(axes) - 1
    return altered(flow, axes=(*axes[:begin], kind_of_merged(axes[begin : end + 1]), *axes[end + 1 :]))


def kind_of_merged(axes: Sequence[str]) -> str:
    """Return the kind of the one axis that takes the place of several."""
    kinds = set(axes)
    if kinds <= {OTHER}:
        return OTHER
    return FEATURES if kinds <= {SHARE, FEATURES} else MIXED


def packed(flow: Flow, pattern: Any) -> Flow:
    """Return the result of einops' `pack` on one tensor: the axes at the star of the pattern become one."""
    names = pattern.split() if isinstance(pattern, str) else []
    if flow.axes is None or names.count("*") != 1:
        return with_unknown_axes(flow)
    before, after = names.index("*"), len(names) - names.index("*") - 1
    if len(flow.axes) < after + (0 if flow.is_open else before):
        return with_unknown_axes(flow)
    known, last = flow.axes[: len(flow.axes) - after], flow.axes[len(flow.axes) - after :]
    first = () if flow.is_open else known[:before]
    at_star = kind_of_merged([OTHER, *known] if flow.is_open else known[before:])
    return altered(flow, axes=(*(first or [OTHER] * before), at_star, *last), is_open=False)


def unpacked(flow: Flow, pattern: Any) -> Flow:
    """Return the result of einops' `unpack` on what `pack` has made of one tensor: several axes at the star."""
    names = pattern.split() if isinstance(pattern, str) else []
    if flow.axes is None or names[:1] != ["*"] or len(flow.axes) < len(names) or flow.axes[-len(names)] != OTHER:
        return with_unknown_axes(flow)
    return altered(flow, axes=flow.axes[len(flow.axes) - len(names) + 1 :], is_open=True)


def rearranged(flow: Flow, pattern: Any) -> Flow:
    """Return the result of einops' `rearrange`, which moves each name in the pattern to its new place."""
    if not isinstance(pattern, str) or "->" not in pattern or flow.axes is None:
        return with_unknown_axes(flow)
    before, after = (_groups(side) for side in pattern.split("->"))
    known = flow.axes if not flow.is_open else (*[OTHER] * (len(before) - len(flow.axes)), *flow.axes)
    if ["..."] in before and flow.is_open:
        known = (*[OTHER] * max(0, len(before) - len(flow.axes)), *flow.axes[-len(before) :])
    if len(known) != len(before):
        return with_unknown_axes(flow)
    kinds = {
        name: SHARE if kind in (FEATURES, SHARE) and len(group) > 1 else kind
        for group, kind in zip(before, known, strict=True)
        for name in group
    }
    axes = []
    for group in after:
        merged = {kinds.get(name, OTHER) for name in group}
        if len(merged) > 1:
            axes.append(MIXED)
        else:
            axes.append(merged.pop() if merged else OTHER)
    return altered(flow, axes=tuple(axes), is_open=["..."] in after)


def _groups(side: str) -> list[list[str]]:
    """Return the groups of names in one side of a pattern of einops: [[b], [n], [h, d]] for `b n (h d)`."""
    groups: list[list[str]] = []
    inside = False
    for word in side.replace("(", " ( ").replace(")", " ) ").split():
        if word in "()":
            inside = word == "("
            groups += [[]] if inside else []
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def all_ints(value: Any) -> bool:
    """Return whether a value is an integer, or a list or tuple of integers that is not empty."""
    values = value if isinstance(value, (tuple, list)) else [value]
    return bool(values) and all(isinstance(v, int) for v in values)
