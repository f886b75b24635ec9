"""Acts that end in an error: tensors, optimizers and master copies are what they were, in the same objects."""

from collections import UserDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core.weights.undo import unchanged_on_error


def refused(
    act: Callable[[], None], tensors: Iterable[Tensor] = (), optimizers: Any = (), error: BaseException | None = None
) -> BaseException:
    """Act, raise an error, and return it."""
    error = error or ValueError("refused")
    with pytest.raises(type(error)) as caught:
        act_and_raise(act, tensors, optimizers, error)
    assert caught.value is error
    return error


def act_and_raise(act: Callable[[], None], tensors: Iterable[Tensor], optimizers: Any, error: BaseException) -> None:
    with unchanged_on_error(tensors, optimizers):
        act()
        raise error


class Holder:
    """Everything in which an optimizer may keep numbers; nothing else of it is that of an optimizer."""

    def __init__(self) -> None:
        self.flat = torch.arange(6.0)
        self.param_groups: list[dict[str, Any]] = [{"params": [self.flat[:2]], "lr": 0.1}]
        self.state: Any = {self.flat: {"average": self.flat[2:4], "steps": 3, "history": [torch.ones(2)]}}
        self.queue = deque([torch.ones(1)], maxlen=3)
        self.seen = {"a"}
        self.pair = (torch.ones(1), [torch.ones(1)])
        self.count = 5


def contents(holder: Holder) -> list[Any]:
    (state,) = holder.state.values()
    numbers = [holder.flat.tolist(), state["average"].tolist(), [x.tolist() for x in state["history"]]]
    numbers += [holder.param_groups[0]["lr"], len(holder.param_groups), [x.item() for x in holder.queue]]
    return [*numbers, state["steps"], {*holder.seen}, holder.pair[0].item(), [x.item() for x in holder.pair[1]]]


def disturb(holder: Holder) -> None:
    (state,) = holder.state.values()
    holder.flat.zero_()
    state["history"].append(torch.ones(1))
    state["history"][0].zero_()
    state["steps"] = 0
    holder.param_groups[0]["lr"] = 3.0
    holder.param_groups.append({})
    holder.queue.popleft().zero_()
    holder.seen.add("b")
    holder.pair[1].clear()
    holder.pair[0].zero_()
    holder.state.clear()
    holder.state, holder.count, holder.extra = {}, 0, 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [ValueError("refused"), KeyboardInterrupt()])
def test_all_that_an_optimizer_holds_comes_back(error: BaseException) -> None:
    holder = Holder()
    before, objects = contents(holder), [*vars(holder).values()]
    refused(lambda: disturb(holder), optimizers=[holder], error=error)
    assert contents(holder) == before
    assert holder.count == 5
    assert not hasattr(holder, "extra")
    assert all(a is b for a, b in zip(vars(holder).values(), objects, strict=True))
    holder.flat[2] = 9.0
    assert next(iter(holder.state.values()))["average"][0] == 9.0, "it is a view as before"


def test_without_an_error_nothing_is_put_back() -> None:
    holder = Holder()
    with unchanged_on_error([], [holder]):  # type: ignore[list-item]
        disturb(holder)
    assert holder.count == 0
    assert not holder.state


class Shown:
    """A wrapper that keeps what it wraps in a box, and shows its groups and state by properties."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.box = {"inner": [inner]}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.box["inner"][0].param_groups

    @property
    def state(self) -> Any:
        return self.box["inner"][0].state


class InUserDict(torch.optim.SGD):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.state: Any = UserDict({p: {} for p in self.param_groups[0]["params"]})


class InSlots(Shown):
    __slots__ = ("momentum",)


@pytest.mark.parametrize("kind", ["plain", "one", "shown", "UserDict", "slots"])
def test_states_of_unusual_optimizers_come_back(kind: str) -> None:
    weight = nn.Parameter(torch.ones(3))
    inner = (InUserDict if kind == "UserDict" else torch.optim.SGD)([weight], 0.1, momentum=0.9)
    inner.state[weight]["momentum_buffer"] = buffer = torch.ones(3)
    optimizer: Any = inner
    if kind == "shown":
        optimizer = Shown(inner)
    elif kind == "slots":
        optimizer = InSlots(inner)
        optimizer.momentum = buffer

    def act() -> None:
        buffer.zero_()
        del inner.state[weight]
        if kind == "slots":
            del optimizer.momentum

    refused(act, optimizers=optimizer if kind == "one" else [optimizer])
    assert inner.state[weight]["momentum_buffer"] is buffer
    assert buffer.tolist() == [1.0, 1.0, 1.0]
    assert kind != "slots" or optimizer.momentum is buffer


def test_a_tensor_of_inference_mode_comes_back_and_hides_no_error() -> None:
    with torch.inference_mode():
        made_there = torch.ones(2)
    weight = torch.ones(2)

    def act() -> None:
        with torch.inference_mode():
            made_there.zero_()
        weight.zero_()

    assert not hasattr(refused(act, [made_there, weight]), "__notes__")
    assert made_there.tolist() == weight.tolist() == [1.0, 1.0]
    assert not weight.requires_grad


@pytest.mark.parametrize(
    "replacement",
    [torch.zeros(3), torch.zeros(2, 2), torch.zeros(2, 3), torch.zeros(3, dtype=torch.float64)],
    ids=["same shape", "another shape", "a shape to which it broadcasts", "another dtype"],
)
def test_a_tensor_whose_data_was_set_has_its_old_memory_again(replacement: Tensor) -> None:
    flat = torch.ones(6)
    weight = nn.Parameter(torch.zeros(3))
    weight.data = flat[:3]  # as in a flattened buffer

    def act() -> None:
        weight.data = replacement

    assert not hasattr(refused(act, [weight]), "__notes__")
    assert weight.dtype == torch.float32
    assert weight.tolist() == [1.0, 1.0, 1.0]
    flat[0] = 5.0
    assert weight[0] == 5.0, "it is a view as before"


class ReadOnly(Tensor):
    def copy_(self, *_: Any, **__: Any) -> Tensor:
        raise RuntimeError("it is read-only")


def test_what_cannot_be_put_back_is_told_and_stops_nothing_else() -> None:
    locked, weight = torch.ones(3).as_subclass(ReadOnly), torch.ones(2)
    (note,) = refused(lambda: (locked.zero_(), weight.zero_()), [locked, weight]).__notes__
    assert weight.tolist() == [1.0, 1.0]
    assert note == "a tensor of shape (3,) is not what it was before: it is read-only"


def test_places_that_share_memory_are_left_alone() -> None:
    expanded = torch.zeros(1).expand(4)
    assert not hasattr(refused(lambda: None, [expanded]), "__notes__")


def test_states_of_eight_bits_are_copied() -> None:
    low_bit = pytest.importorskip("torchao.optim.subclass_8bit")
    state = low_bit.OptimState8bit.zeros((16, 16))
    state.codes.fill_(7)
    refused(lambda: state.codes.zero_(), [state])
    assert state.codes.eq(7).all()


def test_an_inner_block_copies_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, more = torch.ones(3), torch.ones(3)
    copied: list[Tensor] = []
    clone = Tensor.clone
    monkeypatch.setattr(Tensor, "clone", lambda self, **options: copied.append(self) or clone(self, **options))

    def act() -> None:
        weight.fill_(2)
        refused(lambda: (weight.zero_(), more.zero_()), [weight, more])
        assert (weight.tolist(), more.tolist()) == ([0.0] * 3, [1.0] * 3)

    refused(act, [weight])
    assert len(copied) == 2
    assert (weight.tolist(), more.tolist()) == ([1.0] * 3, [1.0] * 3)
