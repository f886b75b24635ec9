"""`reset_optimizer_state(verify=True)`: optimizers of docs/optimizer_state.md are as new, and what is not is named."""

import importlib
import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, SplitMuon, reset_optimizer_state

PAGE = Path(__file__).parents[2] / "docs" / "optimizer_state.md"
# package.Class -> options; each is a row of the page.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "torch.optim.SGD": {"momentum": 0.9, "nesterov": True},
    "torch.optim.Adam": {"amsgrad": True},
    "torch.optim.AdamW": {"fused": True},
    "torch.optim.NAdam": {},
    "torch.optim.RAdam": {},
    "torch.optim.Adamax": {},
    "torch.optim.Adagrad": {"initial_accumulator_value": 0.3},
    "torch.optim.Adadelta": {},
    "torch.optim.Adafactor": {},
    "torch.optim.RMSprop": {"momentum": 0.5, "centered": True},
    "torch.optim.Rprop": {},
    "torch.optim.ASGD": {},
    "torch.optim.Muon": {},
    "fire_core.SplitMuon": {},
    "timm.optim.Lamb": {},
    "timm.optim.Adan": {},
    "timm.optim.Lion": {},
    "schedulefree.AdamWScheduleFree": {},
    "schedulefree.SGDScheduleFree": {},
    "transformers.optimization.Adafactor": {"relative_step": False, "scale_parameter": False},
    "bitsandbytes.optim.AdamW8bit": {"min_8bit_size": 1},
    "torchao.optim.AdamW8bit": {},
    "torchao.optim.AdamW4bit": {},
}
WRAPPERS = ("timm.optim.Lookahead", "torch_optimizer.Lookahead")


def found(name: str) -> Any:
    package, _, kind = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package.partition(".")[0])
        return getattr(importlib.import_module(package), kind)


def trained(make: Callable[[list[nn.Parameter]], Any]) -> tuple[list[nn.Parameter], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))
    parameters = list(model.parameters())
    optimizer = make(parameters)
    if hasattr(optimizer, "train"):
        optimizer.train()
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 5)).square().mean().backward()
        optimizer.step()
    return parameters, optimizer


def notes(optimizer: Any, parameters: Iterable[Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FireWarning)
        assert reset_optimizer_state(optimizer, parameters, verify=True) > 0
    return [str(one.message) for one in caught if issubclass(one.category, FireWarning)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_is_as_new(name: str) -> None:
    kind = found(name)
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its steps, which not every machine can
        parameters, optimizer = trained(lambda p: kind(p, lr=0.1, **OPTIMIZERS[name]))
        assert notes(optimizer, parameters) == []


@pytest.mark.parametrize("name", WRAPPERS)
def test_inside_a_wrapper(name: str) -> None:
    kind = found(name)
    parameters, optimizer = trained(lambda p: kind(torch.optim.Adam(p, lr=0.1)))
    assert notes(optimizer, parameters) == []


class Chain:
    """Megatron's shape: a chain in a chain, one of whose members wraps an optimizer."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.adam, self.muon = torch.optim.Adam(parameters[:1], lr=0.1), SplitMuon(parameters[1:], lr=0.1)
        self.inner = Holder(sub_optimizers=[Holder(optimizer=self.muon)])
        self.chained_optimizers = [self.adam, self.inner]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [*self.adam.param_groups, *self.muon.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:
        return {**self.adam.state, **self.muon.state}

    def zero_grad(self) -> None:
        self.adam.zero_grad()
        self.muon.zero_grad()

    def step(self) -> None:
        self.adam.step()
        self.muon.step()


class Holder:
    """Holds optimizers by whatever names, with empty groups and state of its own."""

    def __init__(self, **held: Any) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, Any] = {}
        vars(self).update(held)


def test_chained_optimizers_are_reached() -> None:
    parameters, optimizer = trained(Chain)
    assert optimizer.adam.state
    assert optimizer.muon.state
    assert notes(optimizer, parameters) == []
    assert not optimizer.adam.state
    assert not optimizer.muon.state


class Remembering(torch.optim.SGD):
    """Keeps a number in its group that no one knows of, by which its step depends on how often it was called."""

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["beta_power"] = group.get("beta_power", 1.0) * 0.9
        for p in group["params"]:
            if p.grad is not None:
                p.grad *= group["beta_power"]
        return super().step(closure)


def test_what_is_not_as_new_is_named() -> None:
    parameters, optimizer = trained(lambda p: Remembering(p, lr=0.1, momentum=0.9))
    said = notes(optimizer, parameters)
    assert "Remembering keeps beta_power of a group" in said
    assert any("takes another step than a new one for a weight of shape (6, 5)" in line for line in said)
    with pytest.raises(ValueError, match="not with rows="):
        reset_optimizer_state(optimizer, parameters, rows=[0], verify=True)


def test_the_page_names_what_is_tested_here() -> None:
    rows = re.findall(r"^\| `([\w.]+)`", PAGE.read_text(), re.MULTILINE)
    assert set(rows) == {*OPTIMIZERS, *WRAPPERS}
