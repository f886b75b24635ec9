"""Look up the initial weights that a caller gives (`init=`) by the names of the model's own parameters."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.overlap import share_numbers
from fire_core.weights.topology import clean_name


def initial_weights(init: Mapping[str, Tensor] | None, entries: Iterable[Entry]) -> dict[str, Tensor]:
    """Return initial weights by the names of the bare model, whatever wrapper the state_dict was taken from.

    Raises:
        TypeError: `init` is no mapping from names to tensors.
        ValueError: a tensor shares its memory with the parameter whose initial value it is to hold.
    """
    if init is None:
        return {}
    if not isinstance(init, Mapping):
        raise TypeError(f"init is a {type(init).__name__}: give a state_dict(), names to tensors")
    names = {clean_name(name): tensor for name, tensor in init.items()}
    initial = {**{name.removeprefix("module."): tensor for name, tensor in names.items()}, **names}
    for entry in entries:
        for name in entry.aliases or (entry.name,):
            if name in initial and share_numbers(distributed.local(initial[name]), distributed.local(entry.parameter)):
                raise ValueError(
                    f"init[{name!r}] is the model's own weight, not its initial value (state_dict() does not copy): "
                    "take copy.deepcopy(model.state_dict()) before training"
                )
    return initial


def find_initial_value(entry: Entry, initial: Mapping[str, Tensor]) -> Tensor | None:
    """Return the initial value of an entry's whole parameter, sharded as `initial` has it; None if it has none.

    Raises:
        ValueError: the initial value has another shape than the parameter.
    """
    names = [entry.name, *entry.aliases]
    for name in [*names, *(name.removeprefix("module.") for name in names)]:  # "module." is DataParallel's
        if name in initial:
            if initial[name].shape != entry.parameter.shape:
                raise ValueError(
                    f"init[{name!r}] has shape {tuple(initial[name].shape)}, the model {tuple(entry.parameter.shape)}"
                )
            return initial[name]
    return None


def gather_initial_value(entry: Entry, initial: Mapping[str, Tensor]) -> Tensor | None:
    """Return the initial value of an entry's whole parameter, gathered from all ranks; None if `initial` has none."""
    value = find_initial_value(entry, initial)
    return None if value is None else distributed.full(value)


def require_initial_value(entry: Entry, initial: Mapping[str, Tensor]) -> Tensor:
    """Return the initial value of an entry's whole parameter, gathered from all ranks.

    Raises:
        ValueError: `initial` has none, or one of another shape.
    """
    value = gather_initial_value(entry, initial)
    if value is None:
        raise ValueError(f"init has no {entry.name!r}: give the model's initial state_dict() as init")
    return value
