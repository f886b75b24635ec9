"""Layers with an adapter on them (LoRA, DoRA, IA3 as in peft; loralib): which of their weights act by themselves."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

# Parts of an adapter that scale the layer's weight or its outputs, by what peft and others call them.
_SCALES = ("lora_magnitude_vector", "magnitude", "m", "ia3_l", "dora_scale")


def adapted(path: Iterable[nn.Module]) -> nn.Module | None:
    """The innermost module on a path that puts an adapter on a layer; None if there is none."""
    # loralib puts its factors beside the weight, peft puts the layer below the adapter
    layers = [module for module in path if "base_layer" in module._modules or "lora_A" in module._parameters]
    return layers[-1] if layers else None


def adapter_lock(path: Iterable[nn.Module], name: str) -> str:
    """Why a weight of an adapted layer cannot be changed by itself; empty if it can.

    Args:
        path: modules from the root to the weight's owner.
        name: of the weight in its owner.
    """
    path = list(path)
    layer = adapted(path)
    if layer is None:
        return ""
    kind = type(layer).__name__
    if getattr(layer, "merged", False) is True or getattr(layer, "merged_adapters", None):
        return (
            f"an adapter is merged into it ({kind}): taking it out again would subtract what the act has changed; "
            "unmerge it first, unmerge_adapter() in peft, or merge it for good, merge_and_unload()"
        )
    own_base = "base_layer" not in dict(layer.named_children())  # loralib puts its factors beside the weight
    if not (name == "weight" if own_base else layer.get_submodule("base_layer") in path):
        return ""
    parts = {**dict(layer.named_children()), **dict(layer.named_parameters(recurse=False))}
    for name in _SCALES:
        scale = parts.get(name)
        if scale is not None and not (isinstance(scale, nn.ModuleDict | nn.ParameterDict) and len(scale) == 0):
            return f"{kind} scales it ({name}): what acts is not this weight but one computed from it"
    return ""
