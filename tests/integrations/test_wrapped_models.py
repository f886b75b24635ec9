"""Hooks on models that wrappers rename, or that hold weights which nobody can draw."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fire_core import fire_
from fire_core.integrations.copies import weights_of
from fire_core.integrations.torch import FireHook
from fire_core.methods import Dash, FullReset, Method, ShrinkAndPerturb
from fire_core.reinit import project


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.Linear(6, 3))


def with_checkpoints(model: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*(checkpoint_wrapper(layer) for layer in model))


def with_one_compiled(model: nn.Sequential) -> nn.Sequential:
    model[0] = torch.compile(model[0])
    return model


WRAPPERS: dict[str, Callable[[nn.Sequential], nn.Module]] = {
    "bare": lambda model: model,
    "compiled": torch.compile,
    "a layer compiled": with_one_compiled,
    "checkpoints": with_checkpoints,
    "data parallel": nn.DataParallel,
}


@pytest.mark.parametrize("saved_as", WRAPPERS)
@pytest.mark.parametrize("loaded_as", WRAPPERS)
def test_a_run_resumes_under_another_wrapper(saved_as: str, loaded_as: str) -> None:
    def begin(wrapper: str) -> tuple[nn.Module, torch.optim.Optimizer, FireHook]:
        model = WRAPPERS[wrapper](network())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, FireHook(optimizer, model, method=FullReset())

    first, optimizer, _ = begin(saved_as)
    first_weights = [p.detach().clone() for p in first.parameters()]
    resumed, other_optimizer, other_hook = begin(loaded_as)
    with torch.no_grad():
        for p in other_hook.intervention.init["model"].values():  # type: ignore[index]
            p.zero_()
    other_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with torch.no_grad():
        for p in resumed.parameters():
            p.add_(1)
    other_hook.act()
    assert all(torch.equal(a, b) for a, b in zip(first_weights, resumed.parameters(), strict=True))


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_part_called_module_gets_its_own_initial_weights(wrap: Callable[[nn.Module], nn.Module]) -> None:
    models = WithModule(), WithModule()
    modules = models[0], wrap(models[1])
    hooks = [FireHook(torch.optim.SGD(m.parameters(), lr=0.1), m, method=FullReset()) for m in modules]
    hooks[1].load_state_dict(copy.deepcopy(hooks[0].state_dict()))
    hooks[1].act()
    for name, weight in models[0].named_parameters():
        assert torch.equal(weight, models[1].get_parameter(name)), name


class WithExtraState(nn.Linear):
    """A layer whose state_dict holds more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize("method", [FullReset(), ShrinkAndPerturb(), ShrinkAndPerturb(variant="fire_paper")])
def test_extra_state_is_left_alone(method: Method) -> None:
    model = nn.Sequential(WithExtraState(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = FireHook(optimizer, model, method=method)
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    assert hook.act().changed == 4


def test_a_step_of_a_warm_up_counts() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    hook = FireHook(optimizer, model, method=FullReset())
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    for p in model.parameters():
        p.grad = None  # as optimizers do that free gradients themselves
    optimizer.step()
    assert hook.step == 2


def test_the_state_of_another_model_is_refused() -> None:
    models = network(), network()[1:], nn.Sequential(*(nn.Linear(5, 5) for _ in range(4)))
    hooks = [FireHook(torch.optim.SGD(m.parameters(), lr=0.1), m, method=FullReset()) for m in models]
    for other, what in ((1, ", with 0.bias"), (2, ": of 0.weight, (5, 5)")):
        with pytest.raises(ValueError, match=re.escape(f"the state of the hook is of another model{what}")):
            hooks[other].load_state_dict(hooks[0].state_dict())


@pytest.mark.parametrize("method", [FullReset(), ShrinkAndPerturb(), ShrinkAndPerturb(variant="fire_paper")])
def test_frozen_weights_stay_under_activation_checkpointing(method: Method) -> None:
    model = with_checkpoints(network())
    frozen = [*model[0].requires_grad_(requires_grad=False).parameters()]
    before = [p.detach().clone() for p in frozen]
    optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.1)
    hook = FireHook(optimizer, model, method=method)
    model(torch.randn(4, 6)).sum().backward()
    optimizer.step()
    assert hook.act().changed == 4
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))


@pytest.mark.parametrize("method", [None, FullReset(), ShrinkAndPerturb(), ShrinkAndPerturb(variant="fire_paper")])
def test_frozen_weights_of_eight_bits_stay(method: Method | None) -> None:
    """Nothing can be computed with them, and nothing has to be."""
    model = network()
    quantised = nn.Parameter(model[0].weight.detach().to(torch.float8_e4m3fn), requires_grad=False)
    model[0].weight = quantised
    optimizer = torch.optim.SGD(model[2:].parameters(), lr=0.1)
    hook = FireHook(optimizer, model, method=method)
    model[1:](torch.randn(4, 6)).sum().backward()
    optimizer.step()
    before = quantised.detach().float()
    assert hook.act().changed
    assert torch.equal(before, model[0].weight.float())


class WithModule(nn.Module):
    """A model with a part that has the name which wrappers give to the model inside them."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.module = nn.ModuleDict({"fc": nn.Linear(4, 4)})


def test_copies_of_a_model_with_a_part_called_module() -> None:
    model = WithModule()
    names = [name for name, _ in model.named_parameters()]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for wrapped_copy in (copy.deepcopy(model), averaged, nn.DataParallel(averaged), copy.deepcopy(model).state_dict()):
        pairs = weights_of(wrapped_copy, model)
        assert [*pairs] == names
        assert len({id(weight) for weight in pairs.values()}) == len(names)
    of_wrapped = weights_of(model, averaged)
    assert of_wrapped["module.fc.weight"] is model.fc.weight
    assert of_wrapped["module.module.fc.weight"] is model.module["fc"].weight


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_dash_passes_over_empty_weights() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(0, 3))
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    hook = FireHook(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        method=Dash(),
        batches=lambda: iter([(x, y)]),
        loss=lambda x, y: nn.functional.cross_entropy(model[0](x), y),
    )
    assert hook.act().changed == 2


def test_an_error_in_the_middle_says_what_was_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a device without memory left; there is none for copies to go back to, either."""
    real, calls = project.solve, []

    def solve(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no memory left")
        return real(*arguments, **options)

    monkeypatch.setattr(project, "solve", solve)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        fire_(network(), solver="exact")
    (note,) = caught.value.__notes__
    assert note.startswith("fire_ had changed 2 of 3 weights of Sequential before this error")
