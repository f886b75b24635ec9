"""`keep=`: weights that stay as they are, chosen by the selectors that `exclude=` of `fire_` takes."""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fire_core.weights.entry import Entry
from fire_core.weights.layout import Selector, matches, nothing_matches, prefixes, selectors_of
from fire_core.weights.topology import clean_name

Keep = Selector | Iterable[Selector]


def find_kept(
    modules: Mapping[str, nn.Module], entries: Mapping[str, Sequence[Entry]], keep: Keep
) -> tuple[dict[str, list[Entry]], list[Tensor]]:
    """What the selectors of `keep` mean: entries of each module, and buffers.

    A word of a layout that is the name of a module too (`head`) means both. A pattern that matches no name of a weight
    is tried with the name in front under which the module is trained: `actor.latent_pi.*`.

    Args:
        modules: what is trained, by name.
        entries: of each module, all of them.
        keep: selectors.

    Raises:
        ValueError: something that is no selector; one that matches nothing.
    """
    kept: dict[str, list[Entry]] = {name: [] for name in modules}
    buffers: list[Tensor] = []
    for selector in selectors_of("keep", keep):
        hits = {name: [e for e in entries[name] if matches(e, selector) or _named(e, selector)] for name in modules}
        held = [b for module in modules.values() for b in _buffers(module, selector)]
        if not held and not any(hits.values()) and isinstance(selector, str):
            hits = {name: [e for e in entries[name] if _matches_below(name, e, selector)] for name in modules}
        if not held and not any(hits.values()):
            raise nothing_matches("keep", selector, [e for name in modules for e in entries[name]])
        buffers += held
        for name, found in hits.items():
            kept[name] += found
    return kept, buffers


def kept_tensors(modules: Mapping[str, nn.Module], entries: Mapping[str, Sequence[Entry]], keep: Keep) -> list[Tensor]:
    """Parameters and buffers that the selectors mean, whole.

    Raises:
        ValueError: see `find_kept`; a selector means a block of a fused weight and not the rest.
    """
    kept, tensors = find_kept(modules, entries, keep)
    for name, found in kept.items():
        labels = {e.label for e in found}
        for e in found:
            if part := next((o for o in entries[name] if o.name == e.name and o.label not in labels), None):
                raise ValueError(
                    f"keep: of {e.name}, {e.block} is to stay and {part.block} is not, which this method cannot do: "
                    f"keep={e.name!r}"
                )
            tensors.append(e.parameter)
    return tensors


def _named(entry: Entry, selector: Selector) -> bool:
    """Whether a pattern is the name of the entry or of a module around it."""
    return isinstance(selector, str) and any(fnmatchcase(name, selector) for name in prefixes(entry.aliases))


def _matches_below(module: str, entry: Entry, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in prefixes(f"{module}.{alias}" for alias in entry.aliases))


def _buffers(root: nn.Module, selector: Selector) -> Iterable[Tensor]:
    for path, module in root.named_modules():
        for name, buffer in module.named_buffers(path, recurse=False):
            if isinstance(selector, str):
                hit = any(fnmatchcase(n, selector) for n in prefixes([clean_name(name)]))
            elif isinstance(selector, type):
                hit = isinstance(module, selector)
            elif isinstance(selector, nn.Module):
                hit = any(module is part for part in selector.modules())
            else:
                hit = buffer is selector
            if hit:
                yield buffer
