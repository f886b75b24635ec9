"""What the networks were given in training steps, for methods that pass it through them once more."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fire_core.methods.protocol import Net

Inputs = tuple[Tensor, ...]


class InputWatch:
    """Keeps the arguments with which each network ran in training mode, one entry for an optimizer step, oldest first.

    Of a step's several passes (gradient accumulation) the last is kept, as all of them in one pass may not fit into
    memory.

    Args:
        steps: of how many.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.kept = steps, dict[str, list[Inputs]]()
        self._open = set[str]()  # networks whose last entry is of a step that is still being made
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
                self.kept[name] = [*self._ended(name), now][-self.steps :]
                self._open.add(name)

        return look

    def end_step(self) -> None:
        """The optimizer has stepped: the next pass is another step's."""
        self._open.clear()

    def _ended(self, name: str) -> list[Inputs]:
        """Of steps that were made: neither an earlier pass of this one nor that of one that was skipped."""
        kept = self.kept.get(name, [])
        return kept[:-1] if name in self._open else kept

    def state_dict(self) -> dict[str, Any]:
        """For a resume; copies, for a view would be saved with the whole tensor that it is a part of."""
        return {name: [[part.clone() for part in each] for each in self._ended(name)] for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.kept = {name: [tuple(each) for each in kept] for name, kept in state.items()}
        self.end_step()


def first_tensor(output: Any) -> Tensor:
    """A network's output, of several the first: the logits of language's GPT."""
    found = output if isinstance(output, Tensor) else output[0]
    assert isinstance(found, Tensor)
    return found
