"""Where transformers puts the tensors of a file: under other names, or changed, joined or split.

Since version 5 its models are not named as many files on its hub are, which it also writes: the file of a ViT has
`encoder.layer.0.attention.attention.query`, the model `layers.0.attention.q_proj`. Its own table of names translates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container
from typing import Any, NamedTuple

from torch import nn


class LoadedNames(NamedTuple):
    """Names that differ between a file and the model.

    Attributes:
        renamed: name in the file -> name of the parameter in the model.
        rebuilt: name in the file -> names of the parameters that are no copies of the tensor: one that joins all
            experts of a layer, halves of a fused weight, a permuted weight.
        ignored: names in the file that loading passes over, such as buffers of older versions.
    """

    renamed: dict[str, str]
    rebuilt: dict[str, tuple[str, ...]]
    ignored: set[str]


def loaded_names(model: nn.Module | None, names: Collection[str], parameters: Container[str]) -> LoadedNames:
    """Return where transformers puts the tensors of a file, as far as it gives them another name.

    Args:
        model: the model; one that is not of transformers has no other names.
        names: of the file's tensors.
        parameters: names of the model's parameters.
    """
    result = LoadedNames({}, {}, set())
    if model is None or not hasattr(model, "base_model_prefix"):
        return result
    prefix = str(model.base_model_prefix)  # of the body in a model with a head, whose file may hold the body alone

    def full(name: str) -> str:
        longer = f"{prefix}.{name}"
        return longer if name not in parameters and longer in parameters else name

    ignored: list[str] = list(getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ())
    result.ignored.update(name for name in names if any(re.search(pattern, name) for pattern in ignored))
    renamings: list[Any]
    converters: list[Any]
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming

        table: Any = get_model_conversion_mapping(model)  # type: ignore[arg-type, unused-ignore]
    except (ImportError, AttributeError):  # early releases of transformers 5 have no such table
        renamings, converters = [], []
    else:
        renamings = [rule for rule in table if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in table if isinstance(rule, WeightConverter)]
    for name in names:
        new = name
        for rule in renamings:
            new, _ = rule.rename_source_key(new)
        for rule in converters:
            target, pattern = rule.rename_source_key(new)  # by the first of its targets
            if pattern is not None:
                first, *others = rule.target_patterns
                targets = (target, *(target.replace(first, other, 1) for other in others))
                result.rebuilt[name] = tuple(map(full, targets))
                break
        else:
            if full(new) != name:
                result.renamed[name] = full(new)
    return result
