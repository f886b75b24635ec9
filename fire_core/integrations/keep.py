"""`keep=`: weights that stay as they are, chosen by the selectors that `exclude=` of `fire_` takes."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fire_core.weights.entry import Entry
from fire_core.weights.layout import Selector, matches, nothing_matches, resolve, selectors_of
from fire_core.weights.topology import prefixes

Keep = Selector | Iterable[Selector]


def kept_tensors(modules: Mapping[str, nn.Module], keep: Keep) -> list[Tensor]:
    """Parameters that the selectors mean, whole.

    A word of a layout that is the name of a module too (`head`) means both. Names may begin with the one under which
    the module is trained: `actor.latent_pi.*`.

    Args:
        modules: what is trained, by name.
        keep: selectors.

    Raises:
        ValueError: something that is no selector; one that matches nothing, or a block of a fused weight and not the
            rest.
    """
    named = [(name, entry) for name, module in modules.items() for entry in resolve(module, {})]
    tensors = []
    for selector in selectors_of("keep", keep):
        chosen = [e for name, e in named if matches(e, selector) or _is_named(name, e, selector)]
        if not chosen:
            raise nothing_matches("keep", selector, [entry for _, entry in named])
        kept = {id(e.parameter) for e in chosen}
        for _, entry in named:
            if id(entry.parameter) in kept and entry not in chosen:
                raise ValueError(f"keep={selector!r} means a part of {entry.name} and not its {entry.block}: keep all")
        tensors += [e.parameter for e in chosen]
    return tensors


def _is_named(module: str, entry: Entry, selector: Selector) -> bool:
    names = prefixes([*entry.aliases, *(f"{module}.{alias}" for alias in entry.aliases)])
    return isinstance(selector, str) and any(fnmatchcase(name, selector) for name in names)
