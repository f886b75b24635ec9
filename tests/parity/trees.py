"""A module from a golden file's arrays: their names give the tree, their shapes the layers."""

from collections.abc import Collection

from torch import Tensor, nn


def module_from(arrays: dict[str, Tensor], embeddings: Collection[str] = ()) -> nn.Module:
    """Nested modules whose `state_dict` is `arrays`; kernel sizes and widths are whatever the shapes say.

    A group with a 4-D weight is a convolution, 2-D a linear layer (an embedding where `embeddings` has the weight's
    name), 1-D a batch norm if it has running statistics and else a layer norm. Anything
    else is a free parameter.
    """
    root = nn.Module()
    groups: dict[str, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        prefix, _, leaf = name.rpartition(".")
        groups.setdefault(prefix, {})[leaf] = array
    for prefix, group in groups.items():
        holder, _, own = prefix.rpartition(".")
        if "weight" in group and prefix:
            _descend(root, holder).add_module(own, _layer(group, f"{prefix}.weight" in embeddings))
        else:
            for leaf, array in group.items():
                _descend(root, prefix).register_parameter(leaf, nn.Parameter(array.clone()))
    root.load_state_dict(arrays)
    return root


def _descend(root: nn.Module, path: str) -> nn.Module:
    for name in filter(None, path.split(".")):
        if name not in root._modules:
            root.add_module(name, nn.Module())
        root = root._modules[name]
    return root


def _layer(group: dict[str, Tensor], embedding: bool) -> nn.Module:
    shape, bias = group["weight"].shape, "bias" in group
    if len(shape) == 4:
        return nn.Conv2d(shape[1], shape[0], tuple(shape[2:]), bias=bias)
    if len(shape) == 2:
        return nn.Embedding(*shape) if embedding else nn.Linear(shape[1], shape[0], bias=bias)
    return nn.BatchNorm1d(shape[0]) if "running_mean" in group else nn.LayerNorm(shape[0])
