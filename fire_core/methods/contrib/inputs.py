"""Record the inputs of the networks in training steps, for methods that pass them through the networks once more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net, Saved
from fire_core.units.watch import is_trained

Inputs = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a pass: those by position, and those by name


class InputWatch(Saved):
    """Copies of the arguments with which each network ran in the last training steps.

    Of a step's several passes (gradient accumulation) only the last is recorded, because all of them in one pass may
    not fit into memory.

    Args:
        steps: over how many steps inputs are kept.

    Attributes:
        kept: copies of the inputs of each network by its name, one for each step, oldest first.
    """

    FIELDS = ("kept",)

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.kept: dict[str, list[Inputs]] = {}
        self._last_inputs: dict[str, Inputs] = {}  # those of each network's last pass

    @contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Record the inputs of training passes within this block, by hooks that are removed at its end."""
        handles = [
            module.register_forward_pre_hook(self._recording_hook(name), with_kwargs=True)
            for name, module in net.modules.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _recording_hook(self, name: str) -> Callable[[nn.Module, Any, dict[str, Any]], None]:
        """Return a hook that keeps the arguments of the network's last training pass.

        Args:
            name: the network's name.
        """

        def record(module: nn.Module, by_position: Any, by_name: dict[str, Any]) -> None:
            if is_trained(module):
                self._last_inputs[name] = by_position, by_name

        return record

    def end_step(self) -> None:
        """Keep the inputs of the last passes as those of the step; called after each optimizer step."""
        for name, (by_position, by_name) in self._last_inputs.items():
            copies = tuple(map(copied, by_position)), {key: copied(value) for key, value in by_name.items()}
            self.kept[name] = [*self.kept.get(name, []), copies][-self.steps :]
        self._last_inputs = {}


def copied(argument: Any) -> Any:
    """Return a copy of a tensor; any other argument, such as None or a flag, as it is."""
    # Contiguous, as a checkpoint gives it back: how kernels round depends on the memory layout.
    return argument.clone(memory_format=torch.contiguous_format) if isinstance(argument, Tensor) else argument


def joined(arguments: Sequence[Any]) -> Any:
    """Return one argument of several passes for a single pass: tensors in one batch, any other that of the last."""
    return torch.cat(list(arguments)) if isinstance(arguments[-1], Tensor) else arguments[-1]


def first_tensor(output: Any) -> Tensor:
    """Return a network's output tensor; if it returns several, the first (the logits of language's GPT)."""
    tensor = output if isinstance(output, Tensor) else output[0]
    assert isinstance(tensor, Tensor)
    return tensor
