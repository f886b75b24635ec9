"""Where transformers puts the tensors of a file: under other names, or changed and gathered into other parameters.

Since version 5 its models are not named as many files on its hub are, which it also writes: the file of a ViT has
`encoder.layer.0.attention.attention.query`, the model `layers.0.attention.q_proj`. Its own table of names translates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import nn


class LoadedNames(NamedTuple):
    """Names that differ between a file and the model.

    Attributes:
        renamed: name in the file -> name of the parameter in the model.
        gathered: likewise, where the parameter is no copy of the tensor: experts in one, fused or permuted weights.
    """

    renamed: dict[str, str]
    gathered: dict[str, str]


def loaded_names(model: nn.Module | None, names: Iterable[str]) -> LoadedNames:
    """Return where transformers puts the tensors of a file, as far as it gives them another name.

    Args:
        model: the model; one that is not of transformers has no other names.
        names: of the file's tensors.
    """
    result = LoadedNames({}, {})
    if not hasattr(model, "base_model_prefix"):
        return result
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        table: list[Any] = get_model_conversion_mapping(model)  # type: ignore[arg-type, unused-ignore]
    except (ImportError, AttributeError):  # early releases of transformers 5 have no such table
        return result
    renamings = [rule for rule in table if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in table if isinstance(rule, WeightConverter)]
    for name in names:
        new = name
        for rule in renamings:
            new, _ = rule.rename_source_key(new)
        for rule in converters:
            target, pattern = rule.rename_source_key(new)
            if pattern is not None:
                result.gathered[name] = target
                break
        else:
            if new != name:
                result.renamed[name] = new
    return result
