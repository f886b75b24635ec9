"""The hidden units of a run's networks: declared by the model, or traced."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from fire_core.units.graph import Consumer, Units, weight
from fire_core.units.trace import traced_units
from fire_core.weights.topology import unwrap


def unit_graph(modules: Mapping[str, nn.Module], say: bool = False) -> list[Units]:
    """The units that the modules declare; those of a module that declares none are read off a trace of it.

    Args:
        modules: by name.
        say: in the log, what a trace left out.

    Raises:
        ValueError: a module has neither a `unit_graph()` nor a `forward` that can be traced, or there are no units.
    """
    roots = [unwrap(module) for module in modules.values()]
    users = Counter(id(p) for root in roots for p in root.parameters())
    shared = {key for key, count in users.items() if count > 1}
    graph: list[Units] = []
    for root in roots:
        declare = getattr(root, "unit_graph", None)
        graph += traced_units(root, shared, say) if declare is None else declare()
    if not graph:
        kinds = ", ".join(type(unwrap(module)).__name__ for module in modules.values())
        raise ValueError(
            f"no hidden units of {kinds} are declared or can be traced: give it a method unit_graph() "
            "(see fire_core.units.graph), or take one of this project's own models"
        )
    return [replace(units, consumers=tuple(map(on_device, units.consumers))) for units in graph]


def on_device(consumer: Consumer) -> Consumer:
    """The same, its columns where its weight is: no step has to send them there."""
    columns = consumer.columns
    return consumer if columns is None else replace(consumer, columns=columns.to(weight(consumer.layer).device))
