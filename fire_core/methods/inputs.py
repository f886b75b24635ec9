"""What the networks were given in training passes, for methods that pass it through them once more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fire_core.methods.protocol import Net

Inputs = tuple[Tensor, ...]


class InputWatch:
    """Keeps the arguments of each network's last passes in training mode, oldest first.

    Args:
        passes: how many.
    """

    def __init__(self, passes: int) -> None:
        self.passes, self.kept = passes, dict[str, list[Inputs]]()
        self._looks = True

    @contextmanager
    def on(self, net: Net) -> Iterator[None]:
        """Hooks on the networks within this block."""
        handles = [module.register_forward_pre_hook(self._hook(name)) for name, module in net.modules.items()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def off(self) -> Iterator[None]:
        """Passes within this block are not kept."""
        self._looks = False
        try:
            yield
        finally:
            self._looks = True

    def _hook(self, name: str) -> Callable[[nn.Module, Any], None]:
        def look(module: nn.Module, inputs: Any) -> None:
            if module.training and self._looks:
                # Laid out as a checkpoint gives them back: kernels round by the layout.
                now = tuple(part.contiguous() for part in inputs)
                self.kept[name] = [*self.kept.get(name, []), now][-self.passes :]

        return look

    def state_dict(self) -> dict[str, Any]:
        """For a resume; copies, for a view would be saved with the whole tensor that it is a part of."""
        return {name: [[part.clone() for part in each] for each in kept] for name, kept in self.kept.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.kept = {name: [tuple(each) for each in kept] for name, kept in state.items()}


def first_tensor(output: Any) -> Tensor:
    """A network's output, of several the first: the logits of language's GPT."""
    found = output if isinstance(output, Tensor) else output[0]
    assert isinstance(found, Tensor)
    return found
