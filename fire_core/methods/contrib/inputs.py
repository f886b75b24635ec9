"""What the networks were given in training steps, for methods that pass it through them once more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Net, Saved
from fire_core.units.watch import is_trained

Inputs = tuple[Tensor, ...]


class InputWatch(Saved):
    """Copies of the arguments with which each network ran in training mode, one entry for a step, oldest first.

    Of a step's several passes (gradient accumulation) the last is kept, as all of them in one pass may not fit into
    memory.

    Args:
        steps: of how many.
    """

    FIELDS = ("kept",)

    def __init__(self, steps: int) -> None:
        self.steps, self.kept = steps, dict[str, list[Inputs]]()
        self._last = dict[str, Inputs]()  # of each network's last pass

    @contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Hooks on the networks within this block."""
        handles = [module.register_forward_pre_hook(self._hook(name)) for name, module in net.modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[[nn.Module, Any], None]:
        def look(module: nn.Module, inputs: Any) -> None:
            if is_trained(module):
                self._last[name] = inputs

        return look

    def end_step(self) -> None:
        """The optimizer has stepped: the last passes are those of the step."""
        for name, inputs in self._last.items():
            # Laid out as a checkpoint gives them back: kernels round by the layout.
            copies = tuple(part.clone(memory_format=torch.contiguous_format) for part in inputs)
            self.kept[name] = [*self.kept.get(name, []), copies][-self.steps :]
        self._last = {}


def first_tensor(output: Any) -> Tensor:
    """A network's output, of several the first: the logits of language's GPT."""
    found = output if isinstance(output, Tensor) else output[0]
    assert isinstance(found, Tensor)
    return found
