"""Record the inputs of the networks in training steps, for methods that pass them through the networks once more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net, Saved
from fire_core.units.watch import is_trained

Inputs = tuple[Tensor, ...]


class InputWatch(Saved):
    """Copies of the arguments with which each network ran in the last training steps.

    Of a step's several passes (gradient accumulation) only the last is recorded, because all of them in one pass may
    not fit into memory.

    Args:
        steps: over how many steps inputs are kept.

    Attributes:
        kept: the inputs of each network by its name, one tuple of arguments for each step, oldest first.
    """

    FIELDS = ("kept",)

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.kept: dict[str, list[Inputs]] = {}
        self._last_inputs: dict[str, Inputs] = {}  # the arguments of each network's last pass

    @contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Record the inputs of training passes within this block, by hooks that are removed at its end."""
        handles = [module.register_forward_pre_hook(self._recording_hook(name)) for name, module in net.modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _recording_hook(self, name: str) -> Callable[[nn.Module, Any], None]:
        """Return a hook that keeps the arguments of the network's last training pass.

        Args:
            name: the network's name.
        """

        def record(module: nn.Module, inputs: Any) -> None:
            if is_trained(module):
                self._last_inputs[name] = inputs

        return record

    def end_step(self) -> None:
        """Keep the inputs of the last passes as those of the step; called after each optimizer step."""
        for name, inputs in self._last_inputs.items():
            # Contiguous, as a checkpoint gives them back: how kernels round depends on the memory layout.
            copies = tuple(argument.clone(memory_format=torch.contiguous_format) for argument in inputs)
            self.kept[name] = [*self.kept.get(name, []), copies][-self.steps :]
        self._last_inputs = {}


def first_tensor(output: Any) -> Tensor:
    """Return a network's output tensor; if it returns several, the first (the logits of language's GPT)."""
    tensor = output if isinstance(output, Tensor) else output[0]
    assert isinstance(tensor, Tensor)
    return tensor
