"""Where a parameter is cut: as read off a forward pass, or by a rule; if it looks fused and neither helps, nowhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fire_core.weights.fused import Cut, Misfit, Rule, equal
from fire_core.weights.known import rule_for
from fire_core.weights.probe_alone import read_module
from fire_core.weights.topology import Use, is_transposed_linear

# Names that say "several projections in one".
_SAYS_FUSED = re.compile(
    r"qkv|kqv|qvk|query_key_value|key_value|c_attn|att_proj|gate_up|up_gate|gate_and_up|(^|_)(kv|qk|w12|w13|xz|zx|xBC)(_|$)"
    r"|^Wi$|fused|zxbc"
)
_SEPARATE = re.compile(r"(to_|w|w_|c_)?[qkv](_|$)|query|key|value")
_GATED = re.compile(r"GLU|Glu([A-Z]|$)|Gated(MLP|Mlp|Linear|FFN|FeedForward)")


@dataclass(frozen=True)
class Finding:
    """What is known of how a weight is cut: a cut (None: it is one matrix), or a doubt that keeps it whole."""

    cut: Cut | None = None
    doubt: str = ""


class Reader:
    """Finds the cuts of a model's parameters.

    Args:
        seen: cuts read off the model's own forward pass, by `id(parameter)`; they go before the rules.
    """

    def __init__(self, seen: Mapping[int, Cut]) -> None:
        self.seen = seen
        self.warnings: list[str] = []
        self._read: dict[object, Cut | None] = {}

    def find(self, use: Use, parameter: Tensor, rows: int, layer: bool) -> Finding:
        """What is known of a parameter's cut.

        Args:
            use: where the parameter sits.
            parameter: a weight, a bias or a raw parameter.
            rows: d_out of the matrix that it is, or belongs to.
            layer: whether it is a layer's weight, which may look fused.
        """
        known, weight = known_cut(use, parameter, rows), _weight_of(use, parameter)
        cut = self.seen.get(id(weight)) if layer or _follows(use, parameter, weight) else None
        rule = known.cut if known is not None else None
        if cut is not None and (len(cut.blocks) > 1 or (use.is_raw and rule is None)) and not _alike(rule, cut, use):
            if rule is not None and parameter is weight:
                self.warnings.append(f"{use.name}: its forward pass cuts it otherwise than its rule; the pass is taken")
            return Finding(cut)
        if known is not None:
            return known
        doubt = doubt_of(use, rows) if layer or (parameter.ndim == 1 and not use.is_raw) else ""
        cut = self._read_alone(use) if doubt else None
        return Finding(cut) if cut is not None and cut.rows == rows else Finding(doubt=doubt)

    def _read_alone(self, use: Use) -> Cut | None:
        """The cut read off the module alone, once for all that are built alike."""
        leaf, holder = use.place
        weight: Any = use.owner.weight
        plain = sorted((k, v) for k, v in vars(holder).items() if isinstance(v, (bool, int, str)) and k != "training")
        key = (type(holder), leaf, weight.shape, tuple((k, repr(v)) for k, v in plain))
        if key not in self._read:
            self._read[key] = read_module(holder, use.owner)
        return self._read[key]


def _weight_of(use: Use, parameter: Tensor) -> Tensor:
    """The weight that a bias goes with; a weight itself."""
    weight = getattr(use.owner, use.attribute.replace("bias", "weight"), None)
    return weight if isinstance(weight, Tensor) else parameter


def _follows(use: Use, parameter: Tensor, weight: Tensor) -> bool:
    """Whether a parameter may be cut as read: a raw weight, or the bias of a layer that mixes channels."""
    if use.is_raw:
        return parameter is weight and not use.attribute.endswith("bias")
    return parameter is not weight and getattr(use.owner, "groups", 1) == 1


def _alike(rule: Cut | None, cut: Cut, use: Use) -> bool:
    """Whether a rule cuts as the forward pass does; its names are then the better ones."""
    if rule is None:
        return False
    same = [height for _, height in rule.blocks] == [height for _, height in cut.blocks]
    return same and rule.repeats == cut.repeats and (rule.transposed == cut.transposed or not use.is_raw)


def known_cut(use: Use, parameter: Tensor, rows: int) -> Finding | None:
    """What the rules say of a parameter; None where no rule knows the module.

    Args:
        use: where the parameter sits.
        parameter: a weight, a bias or a raw parameter.
        rows: d_out of the matrix that it is, or belongs to.
    """
    found = _rule(use, parameter)
    if found is None:
        return Finding(_halves(rows)) if _feeds_glu(use) and rows % 2 == 0 else None
    module, rule = found
    try:
        cut = rule(module, rows) if not use.is_raw or parameter.ndim < 2 else _raw(rule, module, parameter)
    except (Misfit, AttributeError) as misfit:
        return Finding(doubt=f"the layout known for {type(module).__name__} does not fit: {misfit}")
    return Finding(cut)


def doubt_of(use: Use, rows: int) -> str:
    """Why a layer that no rule knows looks as if it were several; empty if it does not."""
    owner, (leaf, holder) = use.owner, use.place
    if _SAYS_FUSED.search(leaf):
        return f"its name, {leaf}, says so"
    if isinstance(owner, _ConvNd):
        glu = any(isinstance(child, nn.GLU) for child in holder.children())
        return "its module holds a GLU" if glu and rows == 2 * owner.in_channels else ""
    if any("A_log" in module._parameters for module in use.path[-3:]) and leaf in ("in_proj", "x_proj"):
        return "it feeds a state-space mixer"
    layers = list(_layers(holder))
    if _width(owner) == rows or any(_width(layer) == rows for layer in layers if layer is not owner):
        return ""  # somebody takes all the rows at once
    if leaf == "in_proj" and rows > _width(owner):
        return f"its name, {leaf}, says so"
    last = len(layers) > 1 and layers[-1] is owner
    if _GATED.search(type(holder).__name__) and rows % 2 == 0 and not last:
        return f"it sits in {type(holder).__name__}"
    if isinstance(holder, (nn.Sequential, nn.ModuleDict, nn.ModuleList)) or leaf.endswith(("_a_proj", "_b_proj")):
        return ""
    for other in layers[1 + next((i for i, layer in enumerate(layers) if layer is owner), len(layers)) :]:
        for parts in (2,) if _SEPARATE.match(leaf) else (2, 3):
            if rows == parts * _width(other) and (parts == 3 or _width(other) != _width(owner)):
                return f"its {rows} rows are {parts} times what the layer beside it takes"
    return ""


def _rule(use: Use, parameter: Tensor) -> tuple[nn.Module, Rule] | None:
    """The module that a rule knows, going upwards: a layer may sit in a wrapper with its norm, or in a list."""
    names = use.name.split(".")
    levels = range(1, 4) if not use.is_raw else range(2 if parameter.ndim > 1 else 1)
    for up in levels[: len(use.path) - levels.start]:
        module, leaf = use.path[-1 - up], names[-1 - up]
        rule = rule_for(module, leaf)
        if rule is not None:
            return module, rule
    return None


def _raw(rule: Rule, module: nn.Module, parameter: Tensor) -> Cut:
    """A raw parameter's cut: the rule says which of the last two dimensions is d_out."""
    misfit = Misfit("")
    for rows, transposed in ((parameter.shape[-2], False), (parameter.shape[-1], True)):
        try:
            cut = rule(module, rows)
        except Misfit as error:
            misfit = error
            continue
        if cut.transposed == transposed:
            return cut
    raise misfit


def _feeds_glu(use: Use) -> bool:
    """Whether torch's own GLU, which takes two halves, comes right after the layer in a Sequential."""
    if len(use.path) < 2 or not isinstance(use.path[-2], nn.Sequential):
        return False
    layers = list(use.path[-2].children())
    at = next((i for i, layer in enumerate(layers) if layer is use.owner), len(layers))
    return at + 1 < len(layers) and isinstance(layers[at + 1], nn.GLU)


def _halves(rows: int) -> Cut:
    return equal("value gate")(None, rows)


def _layers(holder: nn.Module) -> Iterator[nn.Module]:
    """Linear layers that a module holds itself or through a Sequential."""
    for child in holder.children():
        if isinstance(child, nn.Sequential):
            yield from _layers(child)
        elif isinstance(child, nn.Linear) or is_transposed_linear(child):
            yield child


def _width(layer: nn.Module) -> int:
    """Inputs of a linear layer."""
    if isinstance(layer, nn.Linear):
        return layer.in_features
    weight = getattr(layer, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) and weight.ndim == 2 else -1
