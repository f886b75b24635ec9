"""From the tensors of a checkpoint to the entries of a layout: the same `resolve` that `fire_` asks, on a model without
numbers.

A tensor is matched to a parameter by name and shape; where transformers renames it as it reads it, by the new name.
What it joins with others, splits or turns, such as a layer's experts, is kept, which the report says.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

from fire_core.tools.checkpoint.renamed import LoadedNames, loaded_names
from fire_core.tools.checkpoint.skeleton import model_of, model_of_names
from fire_core.tools.checkpoint.source import Checkpoint
from fire_core.tools.checkpoint.stored import FLOATS, CheckpointError, StoredTensor
from fire_core.weights.entry import Declared, Entry
from fire_core.weights.layout import resolve
from fire_core.weights.topology import clean_name


class Named(Protocol):
    """A weight that is chosen by its name."""

    @property
    def name(self) -> str: ...


Weight = TypeVar("Weight", bound=Named)


@dataclass(frozen=True)
class TensorCut:
    """A tensor of a checkpoint and its matrices.

    Attributes:
        stored: the tensor.
        entries: one, or one for each block of a fused weight; none where `reason` says why.
        reason: why the tensor is no parameter of the model.
    """

    stored: StoredTensor
    entries: tuple[Entry, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class CheckpointCuts:
    """All tensors of a checkpoint in its order, and what the user must know, a line each.

    Attributes:
        cuts: one for each tensor.
        notes: warnings of the layout, parameters that are missing, how the model was found.
        without_model: whether weights are known by their names only.
    """

    cuts: list[TensorCut]
    notes: list[str]
    without_model: bool


def cut_checkpoint(
    checkpoint: Checkpoint,
    model: str | None = None,
    layout: str = "all",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
    only: str | None = None,
) -> CheckpointCuts:
    """Give every tensor of a checkpoint its matrices and its action.

    Args:
        checkpoint: what `source.load` gave.
        model: see `skeleton.model_of`.
        layout: a preset, see `weights.layout`.
        include: patterns of parameters to project beside the layout's.
        exclude: patterns of parameters to keep.
        blocks: how fused weights are cut, see `weights.layout.resolve`. Without a model a 2-D weight that it or
            `transposed` names is a linear layer's.
        transposed: patterns of weights that are stored (d_in, d_out).
        only: a pattern; the result has the tensors with matching names.

    Raises:
        CheckpointError: the model cannot be built or is another one's, or an option fits nothing.
    """
    transposed = (transposed,) if isinstance(transposed, str) else tuple(transposed)
    include = (include,) if isinstance(include, str) else tuple(include)
    tensors = chosen(only, checkpoint.tensors)
    _check_floats(checkpoint, tensors, include)
    module, note = model_of(checkpoint, model)
    known = model_of_names(checkpoint.tensors, (*(blocks or {}), *transposed)) if module is None else module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            entries = resolve(known, layout, include, exclude, blocks, transposed, trainable_only=False)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.name, []).append(entry)
    parameters = {alias: group for name, group in groups.items() for alias in (name, *group[0].aliases)}
    origin = ""  # of the model, for messages
    if model:
        origin = "--model"
    elif module is not None:
        origin = "config.json"
    names = loaded_names(module, [stored.name for stored in checkpoint.tensors], parameters)
    places = _parameter_names(checkpoint, parameters, names.renamed, origin)
    if module is None:
        cuts = [_cut_of_tensor(stored, clean_name(stored.name), parameters) for stored in tensors]
        return CheckpointCuts(_without_copies(cuts), [note, *_unread(tensors)], without_model=True)
    buffers = {name for name, _ in module.named_buffers()}
    notes = []
    if doubt := _doubt_of_model(checkpoint, groups, places, names, buffers, origin):
        notes.append(doubt)
    cuts = [_cut_of_tensor(stored, places.get(stored.name, ""), parameters, names, buffers) for stored in tensors]
    mine = {places.get(stored.name, "") for stored in tensors} - {""}
    notes += [line for line in entries.warnings if only is None or any(name in line for name in mine)]
    notes += _unread(tensors)
    found = {*places.values(), *_ends(target for targets in names.rebuilt.values() for target in targets)}
    missing = [name for name, group in groups.items() if not found & {name, *group[0].aliases}]
    if missing and only is None:
        more = ", ..." if len(missing) > 4 else ""
        notes.append(f"{len(missing)} parameters are not in the checkpoint: {', '.join(missing[:4])}{more}")
    return CheckpointCuts(_without_copies(cuts), notes, without_model=False)


def _ends(names: Iterable[str]) -> Iterator[str]:
    """Yield dotted names, and all that is left of them without their first words, which a training loop may add."""
    for name in names:
        words = name.split(".")
        yield from (".".join(words[i:]) for i in range(len(words)))


def chosen(only: str | None, weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights whose names match a pattern; all if it is None.

    Raises:
        CheckpointError: no name matches.
    """
    all_weights = list(weights)
    matching = [weight for weight in all_weights if only is None or fnmatchcase(weight.name, only)]
    if only is not None and not matching:
        names = ", ".join(weight.name for weight in all_weights[:6])
        raise CheckpointError(f"--only={only}: no name matches; there are {names}, ...")
    return matching


def _doubt_of_model(
    checkpoint: Checkpoint,
    groups: Mapping[str, list[Entry]],
    places: Mapping[str, str],
    names: LoadedNames,
    buffers: Set[str],
    origin: str,
) -> str:
    """Return a line if many numbers of a checkpoint are of no parameter of the model; "" if few are.

    Args:
        checkpoint: all of it.
        groups: the entries of each parameter of the model, by its name.
        places: the name of the parameter for each tensor's name.
        names: where transformers puts tensors.
        buffers: names of the model's buffers, which are no weights.
        origin: what names the model.

    Raises:
        CheckpointError: neither half of the checkpoint's weights and numbers nor half of the model's are the other's.
    """
    shapes = {alias: e[0].parameter.shape for name, e in groups.items() for alias in (name, *e[0].aliases)}
    weights = [
        stored
        for stored in checkpoint.tensors
        if stored.floating and stored.tensor.ndim > 1 and not _is_buffer(stored.name, names, buffers)
    ]
    known = [
        stored
        for stored in weights
        if stored.name in names.rebuilt or shapes.get(places.get(stored.name, "")) == stored.tensor.shape
    ]
    inside, everything = (sum(stored.tensor.numel() for stored in some) for some in (known, weights))
    of_model = [group[0].parameter for group in groups.values() if group[0].parameter.ndim > 1]
    found = {places.get(stored.name, "") for stored in known}
    found |= {*_ends(target for targets in names.rebuilt.values() for target in targets)}
    covered = [group[0].parameter for name, group in groups.items() if found & {name, *group[0].aliases}]
    share_of_model = sum(p.numel() for p in covered if p.ndim > 1) / max(1, sum(p.numel() for p in of_model))
    words = f"{len(weights) - len(known)} of its {len(weights)} weights"
    if inside < everything / 2 and share_of_model < 0.5 and len(known) < len(weights) / 2:
        raise CheckpointError(f"{checkpoint.path} is not of the model that {origin} names, which lacks {words}")
    if inside < 0.9 * everything:
        share = 1 - inside / everything
        return f"the model that {origin} names lacks {words}, {share:.0%} of the numbers: is it the right one?"
    return ""


def _is_buffer(name: str, names: LoadedNames, buffers: Set[str]) -> bool:
    """Return whether a tensor of this name is a buffer of the model, or one that its library passes over."""
    return name in names.ignored or not buffers.isdisjoint(_ends([names.renamed.get(name, clean_name(name))]))


def _check_floats(checkpoint: Checkpoint, tensors: Sequence[StoredTensor], include: Sequence[str]) -> None:
    """Refuse a checkpoint, and chosen weights, of numbers that are no floats, as quantised models have.

    Args:
        checkpoint: for its path, in messages.
        tensors: those that are looked at.
        include: patterns of chosen weights.

    Raises:
        CheckpointError: with the format of the numbers.
    """
    accepted = ", ".join(str(kind).removeprefix("torch.") for kind in FLOATS)
    for pattern in ("*", *include):
        named = [stored for stored in tensors if fnmatchcase(stored.name, pattern)]
        if named and not any(stored.floating for stored in named):
            kinds = ", ".join(sorted({str(stored.tensor.dtype).removeprefix("torch.") for stored in named}))
            where = f"{checkpoint.path}: its" if pattern == "*" else f"include={pattern}: these"
            raise CheckpointError(f"{where} {len(named)} tensors are of {kinds}; matrices are read from {accepted}")


def _unread(tensors: Iterable[StoredTensor]) -> list[str]:
    """Return a line for weights whose numbers are no floats that are read, as some of a quantised model's are."""
    weights = [s for s in tensors if s.tensor.ndim > 1 and "weight" in s.name.rpartition(".")[2]]
    unread = [stored for stored in weights if not stored.floating]
    if not unread:
        return []
    kinds = ", ".join(sorted({str(stored.tensor.dtype).removeprefix("torch.") for stored in unread}))
    more = ", ..." if len(unread) > 3 else ""
    names = ", ".join(stored.name for stored in unread[:3])
    return [f"{len(unread)} of {len(weights)} weights are of {kinds} and were not read: {names}{more}"]


def _parameter_names(
    checkpoint: Checkpoint, parameters: Mapping[str, object], renamed: Mapping[str, str], origin: str
) -> dict[str, str]:
    """Return the name of the parameter for each tensor's name, as far as there is one.

    In a file of a training loop, {"state_dict": {"model.conv1.weight": ...}, "state_dict_ema": ...}, all names begin
    with something else.

    Args:
        checkpoint: the checkpoint.
        parameters: their names in the model.
        renamed: what the model's library calls some of the tensors as it reads them.
        origin: what names the model, for messages; "" if there is none and names are all that is known.

    Raises:
        CheckpointError: the tensors have no names, or no tensor has a parameter's name.
    """
    # The name of each tensor, or the one that the library gives it.
    names = {stored.name: clean_name(stored.name) for stored in checkpoint.tensors}
    names |= {name: new for name, new in renamed.items() if names[name] not in parameters}
    prefixes: Counter[str] = Counter()  # how many names are a parameter's behind each prefix
    for name in names.values():
        words = name.split(".")
        for i in range(len(words)):
            inner = ".".join(words[i:])
            if inner in parameters:
                prefixes[name.removesuffix(inner)] += 1
    if not prefixes and not origin:
        raise CheckpointError(f"{checkpoint.path} holds tensors without names: save a state_dict, names to tensors")
    if not prefixes:
        raise CheckpointError(
            f"{checkpoint.path} is not of the model that {origin} names: no tensor has the name of "
            "one of its parameters"
        )
    most = max(prefixes.values())
    parameter_names = {}
    for prefix, count in prefixes.items():
        if count == most:
            for stored_name, name in names.items():
                inner = name.removeprefix(prefix)
                if inner in parameters:
                    parameter_names[stored_name] = inner
    return parameter_names


def _cut_of_tensor(
    stored: StoredTensor,
    place: str,
    parameters: Mapping[str, list[Entry]],
    names: LoadedNames | None = None,
    buffers: Set[str] = frozenset(),
) -> TensorCut:
    """Return a tensor of a checkpoint with the matrices of its parameter, or with the reason why it has none.

    Args:
        stored: the tensor.
        place: name of the parameter that it belongs to; "" if there is none.
        parameters: the entries of each parameter, by all its names.
        names: where the model's library puts tensors; None without a model.
        buffers: names of the model's buffers.
    """
    group = parameters.get(place)
    if group is None and place and not stored.floating:  # without a model there are parameters of floats alone
        return TensorCut(stored, reason="its number format is one that a projection does not write")
    if group is None and names is not None and stored.name in names.rebuilt:
        return TensorCut(stored, reason="transformers joins it with others, splits or turns it: load the model and act")
    if group is None and names is not None and _is_buffer(stored.name, names, buffers):
        return TensorCut(stored, reason="a buffer, no parameter")
    if group is None:
        return TensorCut(stored, reason="no parameter of the model has this name")
    if group[0].parameter.shape != stored.tensor.shape:
        wanted = "x".join(map(str, group[0].parameter.shape))
        return TensorCut(stored, reason=f"the model has {wanted} here")
    if not stored.floating:
        return TensorCut(stored, reason="its number format is one that a projection does not write")
    return TensorCut(stored, tuple(replace(entry, name=stored.name) for entry in group))


def _without_copies(cuts: list[TensorCut]) -> list[TensorCut]:
    """Return the cuts so that no number of a file is projected twice.

    Of tensors that share numbers the first stands for all if they are one parameter; else none of them is cut.
    """
    runs: list[list[TensorCut]] = []
    end = 0
    for one in sorted((c for c in cuts if c.stored.floating and c.stored.tensor.numel()), key=lambda c: c.stored.place):
        start, stop = one.stored.place
        if start >= end:
            runs.append([])
        runs[-1].append(one)
        end = max(end, stop)
    reasons: dict[int, str] = {}
    for run in (run for run in runs if len(run) > 1):
        alike = len({(c.stored.place, c.stored.tensor.shape, c.stored.tensor.stride()) for c in run}) == 1
        one_parameter = alike and len({id(entry.parameter) for c in run for entry in c.entries}) <= 1
        first = next((c for c in run if c.entries), run[0])
        for one in run:
            other = first if one is not first else next(c for c in run if c is not first)
            if not one_parameter:
                reasons[id(one)] = f"shares its numbers with {other.stored.name}, which is another parameter"
            elif one is not first:
                reasons[id(one)] = f"the same numbers as {other.stored.name}"
    return [TensorCut(one.stored, reason=reasons[id(one)]) if id(one) in reasons else one for one in cuts]
