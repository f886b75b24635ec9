"""Find the weights that a user keeps by `keep=`, with the selectors that `exclude=` of `fire_` accepts."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fire_core.weights.entry import Entry
from fire_core.weights.layout import Selector, matches, no_match_error, resolve, selectors_of
from fire_core.weights.topology import prefixes

Keep = Selector | Iterable[Selector]


def kept_tensors(modules: Mapping[str, nn.Module], keep: Keep) -> list[Tensor]:
    """Return the parameters that the selectors match.

    A word that is both a role of a layout and the name of a module (`head`) matches both. Names may begin with the name
    of the network: `actor.latent_pi.*`.

    Args:
        modules: the networks by name.
        keep: one or several selectors.

    Raises:
        ValueError: something is no selector, a selector matches nothing, or it matches a block of a fused weight and
            not the rest.
    """
    entries = [(name, entry) for name, module in modules.items() for entry in resolve(module, {})]
    tensors = []
    for selector in selectors_of("keep", keep):
        matching = [entry for name, entry in entries if matches(entry, selector) or _is_named(name, entry, selector)]
        if not matching:
            raise no_match_error("keep", selector, [entry for _, entry in entries])
        matching_ids = {id(entry.parameter) for entry in matching}
        for _, entry in entries:
            if id(entry.parameter) in matching_ids and entry not in matching:
                raise ValueError(f"keep={selector!r} means a part of {entry.name} and not its {entry.block}: keep all")
        tensors += [entry.parameter for entry in matching]
    return tensors


def _is_named(module: str, entry: Entry, selector: Selector) -> bool:
    """Return whether a selector is a pattern of the entry's name, or of a module's that holds it, in this network."""
    names = prefixes([*entry.aliases, *(f"{module}.{alias}" for alias in entry.aliases)])
    return isinstance(selector, str) and any(fnmatchcase(name, selector) for name in names)
