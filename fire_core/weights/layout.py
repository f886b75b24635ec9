"""Which weights a projection changes, and how each weight divides into matrices.

A layout is data: a list of `Entry`, one for each parameter, or for each block of rows of a fused parameter. `resolve`
makes it from a preset, from a mapping such as `{"conv": "project", "linear": "reinit"}`, or from patterns.

How a parameter is cut (d_out x d_in is the shape of one matrix):

=====================  ==========================================================================================
Linear                 one matrix
Conv1d/2d/3d           one (c_out, c_in) matrix for every kernel position, as in the paper
grouped convolution    the same for each group: (c_out/g, c_in/g); groups never mix, so neither do their matrices
depthwise convolution  kept: with one input channel a group its matrices are m x 1, and a projection would leave
                       nothing of the filter but signs. `include` it by name to project it all the same
transposed conv.       as the convolution; stored (c_in, c_out/g, ...), so each matrix is transposed first
fused q, k, v          a matrix each over all heads, however their rows are stored: in runs, interleaved, permuted
q, k, v, o by head     with layout="heads" a matrix for each head: its rows of q, k, v, its columns of o
fused gate and up      a matrix each: halves, or every other row
LSTM, GRU              a matrix for each gate of weight_ih and of weight_hh
experts in one tensor  a matrix for each expert (and gate, up), where a rule knows how they are stored
tied weight            once, under its first name
router                 kept, whether a layer or a raw parameter
adapter (LoRA)         kept: what counts is the product of its factors
embedding, norm, bias  kept; an embedding can be included by name or type
bilinear               kept; included by name, one (in1, in2) matrix for each output
other raw parameters   kept, but with `blocks=`; included by name, 2-D: one matrix, 3-D: a stack of matrices
behind another tensor  kept and never projected: parametrised, weight-normed, pruned, quantised, flat shards
=====================  ==========================================================================================

Cuts are declared, known, or seen in a forward pass (`reader`). A weight that only looks fused is kept, with a warning
that says how to declare it; its cut is never guessed.

The role of a weight comes from its place in the model (`topology`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from fire_core.weights import distributed
from fire_core.weights.adapters import adapted_layer
from fire_core.weights.entry import Declared, Entries, Entry
from fire_core.weights.known import UNKNOWN_HEADS
from fire_core.weights.reader import LAYERS, Reader
from fire_core.weights.topology import MANY_DIMENSIONS, RAW, is_named_table, numberless, prefixes

__all__ = ["ACTIONS", "GROUPS", "PRESETS", "Entries", "Entry", "Layout", "Selector", "resolve"]

ACTIONS = ("project", "reinit", "keep")
_WORDS = "linear conv depthwise attention qk mlp ssm recurrent router adapter head embedding"
# From a word in a layout to the roles that it means.
GROUPS: dict[str, tuple[str, ...]] = {word: (word,) for word in _WORDS.split()} | {
    "linear": tuple(role for role in LAYERS if role != "conv"),
    "attention": ("q", "k", "v", "attention_out"),
    "qk": ("q", "k"),
}
RAW_SHARE = 0.1  # a warning names unknown raw parameters if they hold more than this share of a model's numbers
FROZEN = "frozen (requires_grad=False): trainable_only=False takes it too"
_EVERY_LAYER = {"linear": "project", "conv": "project"}
PRESETS: dict[str, dict[str, str]] = {
    "all": _EVERY_LAYER,
    "attention": {"attention": "project"},
    "qk": {"qk": "project"},
    "heads": {"attention": "project"},  # q, k, v and the output projection cut by head
    "mlp": {"mlp": "project"},
    "conv": {"conv": "project"},
    # What the paper's reference code projects in each of its networks.
    "resnet": _EVERY_LAYER,
    "vgg": _EVERY_LAYER,
    "vit": {"qk": "project"},
    "gpt": _EVERY_LAYER,
    "dqn": {"conv": "project", "linear": "reinit"},
    "sac": {"linear": "project"},
}

Selector = str | type[nn.Module] | nn.Module | Tensor
Layout = str | Mapping[str, str] | Sequence["Entry"]


def resolve(
    model: nn.Module,
    layout: Layout = "all",
    include: Selector | Iterable[Selector] = (),
    exclude: Selector | Iterable[Selector] = (),
    blocks: Mapping[str, Declared] | None = None,
    transposed: str | Iterable[str] = (),
    *,
    example: Any = None,
    strict: bool = False,
    trainable_only: bool = True,
) -> Entries:
    """Return the matrices of every parameter of a model, and the action for each.

    A selector is a pattern, a module type, a module or a parameter. A pattern such as `"*.mlp.*"` is matched against
    the parameter's names and the names of the modules around it, so `"head"` means all weights below `head`.

    Args:
        model: any module; DDP and `torch.compile` wrappers are looked through.
        layout: a preset of `PRESETS`; a mapping from words of `GROUPS` or patterns to actions, of which later ones win;
            or entries that an earlier call returned.
        include: selectors of weights to project besides those of the layout.
        exclude: selectors of weights to keep, whatever the layout says.
        blocks: the blocks of fused weights, from a pattern to their numbers of rows:
            `{"*.attn.proj_in.weight": (64, 16, 16)}`, or `{"*.attn.proj_in.weight": {"q": 64, "k": 16, "v": 16}}` with
            names. `"repeats": 4` beside the names says that the pattern repeats, as when rows are interleaved by four
            heads; the numbers of rows are then those within a head. A module may declare the blocks of its own weights
            in a method: `def matrix_blocks(self): return {"proj_in.weight": (64, 16, 16)}`.
        transposed: pattern(s) of weights that are stored (d_in, d_out).
        example: input for one forward pass, which shows cuts that are neither declared nor known: a tensor, a tuple of
            arguments, or a mapping of keyword arguments.
        strict: refuse a model with a weight that looks fused and is not known, instead of keeping it with a warning.
        trainable_only: keep frozen weights (`requires_grad=False`), unless they are included by name. A frozen weight
            could not learn again what a projection removes from it.

    Returns:
        All entries in the order of `named_parameters()`, including those that are kept, with their `reason`; and
        `.warnings` about them.

    Raises:
        ValueError: a preset or action is unknown, an option has a wrong type, a selector matches nothing, or a fused
            weight cannot be cut as `blocks` says.
    """
    distributed.reshard_(model)
    included, excluded = selectors_of("include", include), selectors_of("exclude", exclude)
    selectors = selectors_of("transposed", transposed)
    transposed_patterns = [pattern for pattern in selectors if isinstance(pattern, str)]
    if len(transposed_patterns) < len(selectors):
        raise ValueError(f"transposed={transposed!r}: give a pattern, or several of them")
    if not isinstance(blocks, Mapping | None) or not all(isinstance(pattern, str) for pattern in blocks or ()):
        raise ValueError(f"blocks={blocks!r}: give a mapping from patterns to heights")
    if isinstance(layout, (str, Mapping)):
        if isinstance(layout, str) and layout not in PRESETS:
            raise ValueError(f"layout={layout!r}: unknown; choose one of {', '.join(PRESETS)}, or give a mapping")
        rules = PRESETS[layout] if isinstance(layout, str) else layout
        entries = Reader(model, blocks or {}, transposed_patterns, example, by_head=layout == "heads").read()
        for option, patterns in ("blocks", blocks or ()), ("transposed", transposed_patterns):
            for pattern in patterns:
                if not any(fnmatchcase(name, pattern) for entry in entries for name in entry.aliases):
                    raise no_match_error(option, pattern, entries)
        warnings = _quantised(model)
        if strict and (doubtful := [entry for entry in entries if entry.role in ("fused", "changed")]):
            raise ValueError("strict=True: " + "; ".join([*_fused(doubtful), *_not_as_stored(doubtful)]))
        if trainable_only:
            frozen = {e.name for e in entries if not e.parameter.requires_grad and e.kind != "locked"}
            entries = [replace(e, reason=FROZEN) if e.name in frozen else e for e in entries]
        for word, action in rules.items():
            if action not in ACTIONS:
                raise ValueError(f"layout[{word!r}]={action!r}: unknown action; choose one of {', '.join(ACTIONS)}")
            entries = _apply(entries, word, action, f"layout[{word!r}]", optional=word in GROUPS)
    elif not isinstance(layout, Iterable) or not all(isinstance(entry, Entry) for entry in layout):
        raise ValueError(f"layout={layout!r}: give a preset's name, a mapping from words to actions, or entries")
    elif blocks or transposed or strict or example is not None:
        raise ValueError(
            "blocks, transposed, example and strict make a layout: give them to `resolve`, not beside entries"
        )
    elif not {id(entry.parameter) for entry in layout} <= {id(p) for p in model.parameters()}:
        raise ValueError("layout: these entries are of another model, or of weights that were sharded since")
    else:
        entries, warnings = list(layout), list(getattr(layout, "warnings", ()))
    for selector in included:
        entries = _apply(entries, selector, "project", "include")
    if isinstance(layout, (str, Mapping)):  # a weight that the caller has chosen or excluded needs no advice
        undecided = [e for e in entries if e.action == "keep" and not any(matches(e, other) for other in excluded)]
        warnings += _undecided(undecided, sum(e.size for e in entries))
    for selector in excluded:
        entries = _apply(entries, selector, "keep", "exclude")
    warnings += _under_adapters(entries)
    reason = f"layout={layout!r} leaves it alone" if isinstance(layout, str) else "the layout leaves it alone"
    return Entries([e if e.reason or e.action != "keep" else replace(e, reason=reason) for e in entries], warnings)


# ----------------------------------------------------------------------------------------------- actions and selectors


def selectors_of(option: str, selectors: Selector | Iterable[Selector]) -> list[Selector]:
    """Return one selector, or several, as a list.

    Args:
        option: name of the option that they come from, for the message.
        selectors: the value of that option.

    Raises:
        ValueError: the value is neither a selector nor an iterable.
    """
    if isinstance(selectors, (str, type, nn.Module, Tensor)):
        return [selectors]
    if not isinstance(selectors, Iterable):
        raise ValueError(f"{option}={selectors!r}: give a pattern, a type, a module or a parameter, or several of them")
    return list(selectors)


def _apply(entries: list[Entry], selector: Selector, action: str, option: str, optional: bool = False) -> list[Entry]:
    """Return the entries, with an action for those that a selector matches and that can take it.

    Vectors and locked weights cannot be projected.

    Args:
        entries: all entries.
        selector: which of them.
        action: "project", "reinit" or "keep".
        option: the option with the selector, such as `include`, for messages and the reason of a kept entry.
        optional: whether it is no error if nothing can take the action, as for the words of a preset.

    Raises:
        ValueError: no entry matches, or none of those that match can take the action.
    """
    matched = [entry for entry in entries if matches(entry, selector)]
    usable = {id(entry) for entry in matched if _can(entry, action, not optional)}
    if not optional and not usable:
        if locked := [entry for entry in matched if entry.kind == "locked"]:
            raise ValueError(f"{option}={_shown(selector)}: cannot {action} {locked[0].name}: {locked[0].reason}")
        if stacks := [entry for entry in matched if entry.reason == MANY_DIMENSIONS]:
            raise ValueError(f"{option}={_shown(selector)}: {stacks[0].name} is {MANY_DIMENSIONS}")
        if matched:
            raise ValueError(f"{_shown(selector)} matches only biases and scales, which hold no matrix to project")
        raise no_match_error(option, selector, entries)
    changed = []
    for entry in entries:
        if id(entry) in usable:
            reason = (entry.reason or f"kept by {option}") if action == "keep" else ""
            entry = replace(entry, action=action, reason=reason)
        changed.append(entry)
    return changed


def _can(entry: Entry, action: str, by_name: bool) -> bool:
    """Return whether an entry can take an action; a frozen one can only if `by_name`, if its own selector chose it."""
    if action == "keep":
        return True
    if entry.kind == "locked" or (entry.reason == FROZEN and not by_name):
        return False
    return action == "reinit" or entry.kind != "vector"


def no_match_error(option: str, selector: Selector, entries: Iterable[Entry]) -> ValueError:
    """Return the error for a selector that matches no entry; it names what is near, and for a layout its words.

    Args:
        option: name of the option, or for a layout also the selector, `layout['liner']`.
        selector: the selector that matches nothing.
        entries: the entries that it could have matched.
    """
    hint, names = "", list(dict.fromkeys(name for entry in entries for name in entry.aliases))
    if isinstance(selector, str):
        candidates = list(dict.fromkeys(prefixes(names)))
        if option in ("blocks", "transposed"):  # their patterns match names of parameters only
            candidates = names
        elif not any(mark in selector for mark in ".*?["):  # it may be meant as a word of a layout
            candidates = [*GROUPS, *candidates]
        similar = difflib.get_close_matches(selector.strip("*."), {*candidates} - {selector}, n=3, cutoff=0.5)
        hint = f"; near it: {', '.join(similar)}" if similar else f"; the first are {', '.join(names[:3])}"
    words = f"; words: {', '.join(GROUPS)}" if option.startswith("layout") else ""
    return ValueError(f"{option.partition('[')[0]}: no parameter matches {_shown(selector)}{hint}{words}")


def _shown(selector: Selector) -> str:
    """Return a selector as a few words, for messages."""
    if isinstance(selector, (str, type)):
        return repr(selector) if isinstance(selector, str) else selector.__name__
    shape = f" {tuple(selector.shape)}" if isinstance(selector, Tensor) else ""
    return f"the {type(selector).__name__} given{shape}"


def matches(entry: Entry, selector: Selector) -> bool:
    """Return whether a selector, as `resolve` describes it, matches an entry."""
    if isinstance(selector, str):
        if selector in GROUPS:
            return entry.role in GROUPS[selector]
        return selector == entry.label or any(fnmatchcase(name, selector) for name in prefixes(entry.aliases))
    if isinstance(selector, type):
        return any(isinstance(module, selector) for module in entry.modules)
    if isinstance(selector, nn.Module):
        return any(module is selector for module in entry.modules)
    return entry.parameter is selector


# ------------------------------------------------------------------------- warnings about weights that may be missed


def listed(names: Iterable[str], most: int = 3) -> str:
    """Return the first `most` names, each once, and how many more there are: `a, b, c and 5 more`."""
    unique = list(dict.fromkeys(names))
    return ", ".join(unique[:most]) + (f" and {len(unique) - most} more" if len(unique) > most else "")


def _undecided(entries: list[Entry], total: int) -> list[str]:
    """Return warnings about kept weights that the caller may have wanted to project.

    These are attention weights whose heads are not known, weights that look fused or are changed before they are used,
    and raw parameters, and parameters of computed weights, that hold much of the model.

    Args:
        entries: kept entries that the caller has not excluded.
        total: number of elements of all the model's parameters.
    """
    lines = []
    if without_heads := {entry.label: entry.reason for entry in entries if entry.reason.startswith(UNKNOWN_HEADS)}:
        reason = next(iter(without_heads.values()))
        lines.append(f'layout="heads" keeps {listed(without_heads)}: {reason}; layout="attention" takes them uncut')
    lines += [*_fused(entries), *_not_as_stored(entries)]
    raw = [e for e in entries if e.reason == RAW and e.kind == "matrix" and min(e.parameter.shape[-2:]) > 1]
    raw = [e for e in raw if not is_named_table(e.name)]
    unknown = "raw parameters that no rule knows, and are kept"
    advice = "include= projects them, transposed= says that they are stored (d_in, d_out)"
    lines += _large_share(raw, total, unknown, advice)
    stacks = [e for e in entries if e.reason == MANY_DIMENSIONS]
    unsupported = "raw parameters of more than three dimensions, which are not supported and are kept"
    lines += _large_share(stacks, total, unsupported, "Split them into parameters of at most three")
    computed = [e for e in entries if e.kind == "locked" and "the module computes its weight" in e.reason]
    kept = "parameters from which modules compute their weights (weight norm, spectral norm, pruning), and are kept"
    lines += _large_share(
        computed, total, kept, "Make them plain weights before the act, and parametrise them after it"
    )
    return lines


def _large_share(entries: list[Entry], total: int, what: str, advice: str) -> list[str]:
    """Return a warning if entries hold more than `RAW_SHARE` of all `total` numbers of a model, else nothing.

    Args:
        entries: kept entries of one kind.
        total: number of elements of all the model's parameters.
        what: what they are.
        advice: what the caller can do.
    """
    numbers = sum(entry.size for entry in entries)
    if numbers <= RAW_SHARE * total:
        return []
    names = listed(numberless(entry.name) for entry in entries)
    return [f"{100 * numbers / total:.0f} % of the model's numbers are {what}: {names}. {advice}"]


def _under_adapters(entries: list[Entry]) -> list[str]:
    """Return a warning if weights are projected to which an adapter adds its product, else nothing."""
    names = [e.name for e in entries if e.action == "project" and e.role != "adapter" and adapted_layer(e.modules)]
    if not names:
        return []
    return [
        f"{listed(names)} carry an adapter: what acts is the sum of both, which is no isometry once the adapter is "
        "trained. exclude= keeps them"
    ]


def _fused(entries: list[Entry]) -> list[str]:
    """Return a line for each weight that looks fused; layers whose names differ in a number alone share a line."""
    alike: dict[tuple[str, int, str], list[Entry]] = {}
    for entry in entries:
        if entry.role == "fused" and entry.reason != FROZEN:
            alike.setdefault((numberless(entry.name), entry.d_out, entry.reason), []).append(entry)
    lines = []
    for (pattern, rows, reason), layers in alike.items():
        name = pattern if len(layers) > 1 else layers[0].name
        declare = (
            f"Declare the heights of its parts as they lie, blocks={{{name!r}: (...)}}; or have it read off a forward "
            "pass, example=a batch; or take"
            if layers[0].groups == 1
            else "Take"
        )
        many = f" ({len(layers)} weights)" if len(layers) > 1 else ""
        lines.append(
            f"{name}{many} is kept; it {reason}, and how its {rows} rows divide is not known. "
            f"{declare} it as one matrix, include={name!r}"
        )
    return lines


def _not_as_stored(entries: list[Entry]) -> list[str]:
    """Return a line for each reason why weights are kept that a layer changes, or does not use, in its products."""
    names_by_reason: dict[str, list[str]] = {}
    for entry in entries:
        if entry.role in ("changed", "unused") and entry.reason != FROZEN:
            names_by_reason.setdefault(entry.reason, []).append(entry.name)
    lines = []
    for reason, names in names_by_reason.items():
        advice = "" if "include=" in reason else "; include= takes it as it is stored"
        lines.append(f"{listed(names)} {'is' if len(names) == 1 else 'are'} kept: {reason}{advice}")
    return lines


def _quantised(model: nn.Module) -> list[str]:
    """Return a line if a model has quantised layers, whose weights are no parameters, else nothing."""
    names = [name for name, module in model.named_modules() if ".quantized" in type(module).__module__]
    # A module within a quantised layer, such as its packed weights, is not counted.
    quantised = {*names}
    names = [name for name in names if quantised.isdisjoint([*prefixes([name])][:-1])]
    return [f"{len(names)} quantised layers hold no parameters and are kept: {listed(names)}"] if names else []
