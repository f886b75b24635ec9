"""Layers with an adapter on them (LoRA, DoRA, IA3 as in peft; loralib): which of their weights can be changed alone."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

# Names in peft and other packages of the parts of an adapter that scale the layer's weight or its outputs.
_SCALES = ("lora_magnitude_vector", "magnitude", "m", "ia3_l", "dora_scale")


def adapted_layer(path: Iterable[nn.Module]) -> nn.Module | None:
    """Return the innermost module on a path that adds an adapter to a layer; None if there is none.

    Args:
        path: modules from the root of a model to a weight's owner.
    """
    # peft keeps the original layer in `base_layer`; loralib keeps the adapter's factors beside the weight.
    layers = [module for module in path if "base_layer" in module._modules or "lora_A" in module._parameters]
    return layers[-1] if layers else None


def adapter_lock(path: Iterable[nn.Module], name: str) -> str:
    """Return why a weight of a layer with an adapter cannot be changed by itself; "" if it can.

    Args:
        path: modules from the root of a model to the weight's owner.
        name: name of the weight in its owner.
    """
    path = list(path)
    layer = adapted_layer(path)
    if layer is None:
        return ""
    kind = type(layer).__name__
    if getattr(layer, "merged", False) is True or getattr(layer, "merged_adapters", None):
        return (
            f"an adapter is merged into it ({kind}): taking it out again would subtract what the act has changed; "
            "unmerge it first, unmerge_adapter() in peft, or merge it for good, merge_and_unload()"
        )
    if "base_layer" in dict(layer.named_children()):
        is_base_weight = layer.get_submodule("base_layer") in path
    else:  # loralib, which has the weight and the adapter's factors in one module
        is_base_weight = name == "weight"
    if not is_base_weight:
        return ""
    parts = {**dict(layer.named_children()), **dict(layer.named_parameters(recurse=False))}
    for scale_name in _SCALES:
        scale = parts.get(scale_name)
        if scale is not None and not (isinstance(scale, nn.ModuleDict | nn.ParameterDict) and len(scale) == 0):
            return f"{kind} scales it ({scale_name}): what acts is not this weight but one computed from it"
    return ""
