"""From the tensors of a checkpoint to the entries of a layout: the same `resolve` that `fire_` asks, on a model without
numbers.

A tensor is matched to a parameter by name (and shape). Where a library renames weights as it reads them, or gathers
many tensors into one parameter (transformers 5: a layer's experts), its own rules say which goes where.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fire_core.tools.checkpoint.skeleton import FUSED, is_linear, model_of, model_of_names
from fire_core.tools.checkpoint.source import Checkpoint
from fire_core.tools.checkpoint.stored import CheckpointError, Stored
from fire_core.weights.fused import Declared
from fire_core.weights.layout import Entry, resolve


@dataclass(frozen=True)
class Cut:
    """A tensor of a checkpoint and its matrices.

    Attributes:
        stored: the tensor.
        entries: one, or one for each block of a fused weight; none where `reason` says why.
        reason: why the tensor is no parameter of the model.
    """

    stored: Stored
    entries: tuple[Entry, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Cuts:
    """All tensors of a checkpoint in its order, and what the user must know, a line each.

    Attributes:
        cuts: one for each tensor.
        notes: warnings of the layout, parameters that are missing, how the model was found.
        named: whether weights are known by their names only, without a model.
    """

    cuts: list[Cut]
    notes: list[str]
    named: bool


def cut(
    checkpoint: Checkpoint,
    model: str | None = None,
    layout: str = "all",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
) -> Cuts:
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

    Raises:
        CheckpointError: the model cannot be built or is another one's, or an option fits nothing.
    """
    include, exclude, transposed = (
        (given,) if isinstance(given, str) else tuple(given) for given in (include, exclude, transposed)
    )
    module, note = model_of(checkpoint, model)
    declared = (*(blocks or {}), *transposed)
    known = module if module is not None else model_of_names(checkpoint.tensors, declared)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            entries = resolve(known, layout, include, exclude, blocks, transposed, trainable_only=False)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
    notes = [note] * bool(note)
    if module is not None:
        notes += [*entries.warnings, *(str(warning.message) for warning in caught)]
    parameters: dict[str, list[Entry]] = {}
    for name, group in _by_parameter(entries).items():
        parameters.update(dict.fromkeys((name, *group[0].aliases), group))
    places = _places(checkpoint, module, parameters, "--model" if model else "config.json")
    cuts = [_cut(stored, places.get(stored.name, ""), parameters) for stored in checkpoint.tensors]
    if module is not None:
        cuts = _gathered(cuts, places, parameters)
        held = {places.get(one.stored.name) for one in cuts}
        missing = [name for name, group in _by_parameter(entries).items() if not held & {name, *group[0].aliases}]
        notes += [f"{len(missing)} parameters are not in the checkpoint: {_some(missing)}"] * bool(missing)
    else:
        cuts = [_hint(one, declared) for one in cuts]
    return Cuts(_apart(cuts), list(dict.fromkeys(notes)), module is None)


def _by_parameter(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.name, []).append(entry)
    return groups


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


# -------------------------------------------------------------------------------------------- from tensor to parameter


def _places(
    checkpoint: Checkpoint, module: nn.Module | None, parameters: Mapping[str, list[Entry]], origin: str
) -> dict[str, str]:
    """The parameter's name for each tensor's, as far as there is one."""
    names = [stored.name for stored in checkpoint.tensors]
    if module is None:
        return {name: name for name in names}
    renamed = _renamed(module, names)
    if any(new in parameters for new in renamed.values()):
        return renamed
    # A file of a training loop: {"state_dict": {"model.conv1.weight": ...}, "state_dict_ema": ...}
    shapes = {stored.name: stored.shape for stored in checkpoint.tensors}
    ends = [(name, i) for name in names for i in range(len(name)) if name[i] == "."]
    prefixes = Counter(name[: i + 1] for name, i in ends if name[i + 1 :] in parameters)
    most = max(prefixes.values(), default=0)
    if not most:
        raise CheckpointError(f"{checkpoint.path} is not of the model that {origin} names: no tensor has a name of its")
    places: dict[str, str] = {}
    for prefix in (prefix for prefix, count in prefixes.items() if count == most):
        inner = {name: name[len(prefix) :] for name in shapes if name.startswith(prefix)}
        places |= {name: new for name, new in inner.items() if new in parameters}
    return places


def _renamed(module: nn.Module, names: list[str]) -> dict[str, str]:
    """Each name as the model has it, by transformers' own rules for reading checkpoints where there are any."""
    own = {name: name for name in names}
    if not hasattr(module, "base_model_prefix"):
        return own
    try:
        mapping = importlib.import_module("transformers.conversion_mapping")
        loading = importlib.import_module("transformers.core_model_loading")
        rules = mapping.get_model_conversion_mapping(module)
        renamings = [rule for rule in rules if isinstance(rule, loading.WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, loading.WeightConverter)]
        state: dict[str, Any] = module.state_dict()
        prefix = module.base_model_prefix

        def new(name: str) -> str:
            found: str = loading.rename_source_key(name, renamings, converters, prefix, state)[0]
            if found not in state and name in state:
                found = loading.rename_source_key(name, [], [], prefix, state)[0]
            return found

        return {name: new(name) for name in names}
    except (ImportError, AttributeError, TypeError):  # another version of transformers: names as they are
        return own


def _cut(stored: Stored, place: str, parameters: Mapping[str, list[Entry]]) -> Cut:
    group = parameters.get(place)
    if group is None:
        return Cut(stored, reason="no parameter of the model has this name")
    if tuple(group[0].parameter.shape) != stored.shape:
        wanted = "x".join(map(str, group[0].parameter.shape))
        return Cut(stored, reason=f"the model has {wanted} here")
    if not stored.floating:
        return Cut(stored, reason=f"stored as {_word(stored)}, which is left alone")
    return Cut(stored, tuple(replace(entry, name=stored.name) for entry in group))


def _word(stored: Stored) -> str:
    return str(stored.dtype).removeprefix("torch.") if stored.dtype else "a format that torch has not"


def _gathered(cuts: list[Cut], places: Mapping[str, str], parameters: Mapping[str, list[Entry]]) -> list[Cut]:
    """Where one parameter is gathered from many 2-D tensors which are its matrices one for one, each its own entry."""
    parts: dict[str, list[Stored]] = {}
    for one in cuts:
        place = places.get(one.stored.name, "")
        if not one.entries and place in parameters and one.stored.floating:
            parts.setdefault(place, []).append(one.stored)
    made: dict[str, Entry] = {}
    for place, several in parts.items():
        group = parameters[place]
        whole = {entry.shape for entry in group if entry.kind == "matrix"}
        same = len({(entry.action, entry.role, entry.reason) for entry in group}) == 1
        if len(whole) != 1 or not same or sum(entry.count for entry in group) != len(several):
            continue
        (d_out, d_in) = whole.pop()
        for stored in several:
            if stored.shape in ((d_out, d_in), (d_in, d_out)):
                parameter = torch.empty(stored.shape, dtype=stored.dtype, device="meta")
                made[stored.name] = Entry(
                    stored.name, parameter, group[0].role, group[0].action,
                    transposed=stored.shape != (d_out, d_in), reason=group[0].reason,
                )  # fmt: skip
    return [Cut(one.stored, (made[one.stored.name],)) if one.stored.name in made else one for one in cuts]


def _hint(one: Cut, declared: Iterable[str]) -> Cut:
    """Of a weight that is kept because its name alone is known, what is missing."""
    if len(one.stored.shape) < 2 or (one.entries and is_linear(one.stored, declared)):
        return one
    fused = bool(FUSED & set(one.stored.name.split(".")[-2:]))
    reason, hint = "its name is not that of a linear layer's weight", "give --model"
    if fused:
        reason, hint = "looks fused, and its name does not say how", "give --model or --blocks"
    return Cut(
        one.stored,
        tuple(replace(e, reason=f"{reason}: {hint}") if e.action == "keep" else e for e in one.entries),
        one.reason and f"{one.reason} ({reason})",
    )


def _apart(cuts: list[Cut]) -> list[Cut]:
    """Tensors that share numbers in a file: one of them stands for all if they are one parameter, else none is cut."""
    runs: list[list[Cut]] = []
    end, file = 0, None
    for one in sorted((c for c in cuts if c.stored.bytes), key=lambda c: (str(c.stored.file), c.stored.start)):
        if one.stored.file != file or one.stored.start >= end:
            runs.append([])
            end, file = 0, one.stored.file
        runs[-1].append(one)
        end = max(end, one.stored.start + one.stored.bytes)
    changed: dict[int, Cut] = {}
    for run in (run for run in runs if len(run) > 1):
        alike = len({(c.stored.start, c.stored.shape, c.stored.stride) for c in run}) == 1
        owners = {id(entry.parameter) for c in run for entry in c.entries}
        first = next((c for c in run if c.entries), run[0])
        for one in run:
            name = first.stored.name if one is not first else run[1 if first is run[0] else 0].stored.name
            if not alike or len(owners) > 1:
                changed[id(one)] = Cut(one.stored, reason=f"shares its numbers with {name}, which is another parameter")
            elif one is not first:
                changed[id(one)] = Cut(one.stored, reason=f"the same numbers as {name}")
    return [changed.get(id(one), one) for one in cuts]
