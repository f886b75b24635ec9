"""Forgetting optimizer state: the next steps are those of a new optimizer for what was reset, unmoved for the rest."""

import copy
import importlib
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from fire_core import FireWarning, SplitMuon, fire_, is_fresh, reset_optimizer_state

PAGE = Path(__file__).parents[2] / "docs" / "optimizer_state.md"
# package.Class -> options; each is a row of the page.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "torch.optim.SGD": {"momentum": 0.9, "nesterov": True},
    "torch.optim.Adam": {"amsgrad": True, "foreach": True},
    "torch.optim.AdamW": {"fused": True, "weight_decay": 0.1},
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
    "prodigyopt.Prodigy": {},
    "dadaptation.DAdaptAdam": {},
    "transformers.optimization.Adafactor": {"relative_step": False, "scale_parameter": False},
    "bitsandbytes.optim.AdamW8bit": {"min_8bit_size": 1},
    "torchao.optim.AdamW8bit": {},
    "torchao.optim.AdamW4bit": {},
}
LOOKAHEADS = ("timm.optim.Lookahead", "torch_optimizer.Lookahead")
COUNTING = ("timm.optim.Lamb", "timm.optim.Adan", "schedulefree.AdamWScheduleFree")  # steps once for a group


def make(name: str) -> Callable[[list[nn.Parameter]], Any]:
    """What builds an optimizer of these tables."""
    package, _, kind = name.rpartition(".")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package.partition(".")[0])
        found = getattr(importlib.import_module(package), kind)
    if name in LOOKAHEADS:
        return lambda parameters: found(Adam(parameters, lr=0.1), k=3)
    return lambda parameters: found(parameters, lr=0.1, **OPTIMIZERS[name])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6, bias=False), nn.Tanh(), nn.Linear(6, 3, bias=False))


def steps(parameters: Iterable[nn.Parameter], optimizer: Any, count: int = 4, seed: int = 0) -> None:
    """Some steps with gradients that depend on the seed alone."""
    if hasattr(optimizer, "train"):
        optimizer.train()
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for p in parameters:
            p.grad = torch.randn(p.shape, generator=draw)
        optimizer.step()


def trained(build: Callable[[list[nn.Parameter]], Any]) -> tuple[list[nn.Parameter], Any]:
    parameters = list(network().parameters())
    optimizer = build(parameters)
    steps(parameters, optimizer)
    return parameters, optimizer


def notes(optimizer: Any, parameters: Iterable[Tensor]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FireWarning)
        assert reset_optimizer_state(optimizer, parameters, verify=True) > 0
    return [str(one.message) for one in caught if issubclass(one.category, FireWarning)]


@pytest.mark.parametrize("name", [*OPTIMIZERS, *LOOKAHEADS])
def test_it_is_as_new(name: str) -> None:
    """`verify` finds nothing, and the next steps are those of a new optimizer on the same gradients."""
    build = make(name)
    with torch.compiler.set_stance("force_eager"):  # torchao compiles its steps, which not every machine can
        parameters, optimizer = trained(build)
        assert notes(optimizer, parameters) == []
        fresh = [nn.Parameter(p.detach().clone()) for p in parameters]
        steps(parameters, optimizer, seed=1)
        steps(fresh, build(fresh), seed=1)
    for used, new in zip(parameters, fresh, strict=True):
        torch.testing.assert_close(used, new, rtol=0, atol=1e-7 if "timm" in name or "schedule" in name else 0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "NAdam", "Adagrad", "Muon"])
def test_what_is_not_reset_goes_on(name: str) -> None:
    build = make(f"torch.optim.{name}")
    (chosen, other), optimizer = trained(build)
    untouched = [nn.Parameter(p.detach().clone()) for p in (chosen, other)]
    copied = build(untouched)
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert reset_optimizer_state(optimizer, [chosen, chosen, nn.Parameter(torch.zeros(2))]) == 1
    with pytest.warns(FireWarning, match="keep nothing of these parameters"):
        assert reset_optimizer_state([optimizer], [nn.Parameter(torch.zeros(2))]) == 0
    steps([chosen, other], optimizer, seed=1)
    steps(untouched, copied, seed=1)
    assert torch.equal(other, untouched[1])
    assert not torch.equal(chosen, untouched[0])


@pytest.mark.parametrize("name", COUNTING)
def test_a_group_that_is_reset_in_part_is_warned_about(name: str) -> None:
    model = network()
    optimizer = make(name)(list(model.parameters()))
    steps(list(model.parameters()), optimizer)
    with pytest.warns(FireWarning, match=r"keeps .*(step|k) of a group.*only some were reset"):
        report = fire_(model, exclude="2", optimizer=optimizer)
    assert report.optimizer_states_reset == 1
    assert "of a group" in report.warnings[0]


def test_accelerate_counts_a_state_once() -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.Accelerator(cpu=True)
    parameters, optimizer = trained(lambda p: accelerate.optimizer.AcceleratedOptimizer(Adam(p)))
    assert reset_optimizer_state(optimizer, parameters) == 2
    assert not optimizer.state


def test_an_optimizer_of_another_library_within_accelerate_is_compared_with_a_new_one() -> None:
    accelerate = pytest.importorskip("accelerate")
    lion = pytest.importorskip("timm.optim").Lion
    accelerate.Accelerator(cpu=True)
    parameters, optimizer = trained(lambda p: accelerate.optimizer.AcceleratedOptimizer(lion(p)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reset_optimizer_state(optimizer, parameters) == 2
    assert is_fresh(optimizer)


def test_what_accelerate_has_prepared_is_fresh() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Linear(3, 3)
    _, optimizer = accelerate.Accelerator(cpu=True).prepare(model, Adam(model.parameters()))
    assert is_fresh(optimizer)


class Chain:
    """Megatron's shape: a chain in a chain, one of whose members wraps an optimizer."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.adam, self.muon = Adam(parameters[:1], lr=0.1), SplitMuon(parameters[1:], lr=0.1)
        self.inner = Holder(sub_optimizers=[Holder(optimizer=self.muon)])
        self.chained_optimizers = [self.adam, self.inner]
        self.param_groups = [*self.adam.param_groups, *self.muon.param_groups]
        self.state: dict[Tensor, Any] = {}

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


class Remembering(SGD):
    """Keeps a number in its group under a name of its own, by which its step depends on how often it was called."""

    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        group["beta_power"] = group.get("beta_power", 1.0) * 0.9
        for p in group["params"]:
            if p.grad is not None:
                p.grad *= group["beta_power"]
        return super().step(closure)


def test_what_is_not_as_new_is_named() -> None:
    parameters, optimizer = trained(lambda p: Remembering(p, lr=0.1, momentum=0.9))
    said = notes(optimizer, parameters[:1])
    assert any(line.startswith("Remembering keeps beta_power of a group") for line in said)
    assert any("takes another step than a new one for a weight of shape (6, 5)" in line for line in said)
    assert notes(optimizer, parameters) == []
    assert "beta_power" not in optimizer.param_groups[0]
    with pytest.raises(ValueError, match="not with rows="):
        reset_optimizer_state(optimizer, parameters, rows=[0], verify=True)


def test_the_page_names_what_is_tested_here() -> None:
    rows = re.findall(r"^\| `([\w.]+)`", PAGE.read_text(), re.MULTILINE)
    assert set(rows) == {*OPTIMIZERS, *LOOKAHEADS}


def test_capturable_state_keeps_its_memory() -> None:
    """A captured CUDA graph reads the old addresses: the tensors stay and hold what a new optimizer would."""
    (weight, _), optimizer = trained(lambda p: Adam(p, lr=0.1))
    optimizer.param_groups[0]["capturable"] = True  # the step itself needs a GPU
    before = dict(optimizer.state[weight])
    reset_optimizer_state(optimizer, [weight])
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
    for key, value in optimizer.state[weight].items():
        assert value is before[key]
        assert not value.any()


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "ASGD", "Rprop"])
def test_capturable_state_of_every_optimizer_is_as_new_in_place(name: str) -> None:
    """What the captured steps read is what a new optimizer begins with; the steps that compare it are not captured."""
    make: Any = getattr(torch.optim, name)
    options = {"lr": 0.1} | ({"momentum": 0.9, "centered": True} if name == "RMSprop" else {})
    weights, new_weights = ([nn.Parameter(torch.ones(3, 2))] for _ in range(2))
    optimizer, new = make(weights, **options), make(new_weights, **options)
    for _ in range(4):
        weights[0].grad = torch.randn(3, 2)
        optimizer.step()
    before = dict(optimizer.state[weights[0]])
    optimizer.param_groups[0]["capturable"] = True
    assert reset_optimizer_state(optimizer, weights) == 1
    assert all(optimizer.state[weights[0]][key] is value for key, value in before.items() if isinstance(value, Tensor))
    optimizer.param_groups[0]["capturable"] = False
    with torch.no_grad():
        weights[0].fill_(1.0)
    for _ in range(3):
        for weight, stepped in ((weights[0], optimizer), (new_weights[0], new)):
            weight.grad = torch.full((3, 2), 0.3)
            stepped.step()
        assert torch.equal(weights[0], new_weights[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="capturable optimizers step on a GPU only")
def test_capturable_step_is_that_of_a_new_optimizer() -> None:
    weight, other = (nn.Parameter(torch.ones(3, 2, device="cuda")) for _ in range(2))
    optimizer, new = Adam([weight], lr=0.1, capturable=True), Adam([other], lr=0.1, capturable=True)
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    reset_optimizer_state(optimizer, [weight])
    with torch.no_grad():
        weight.fill_(1.0)
    weight.grad, other.grad = torch.ones_like(weight), torch.ones_like(other)
    optimizer.step()
    new.step()
    assert torch.equal(weight, other)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "rows", [torch.tensor([1, 4]), [1, 4], torch.tensor([0, 1, 0, 0, 1, 0]).bool(), slice(1, 5, 3)]
)
def test_rows_and_columns_of_the_moments(rows: Any, dim: int) -> None:
    parameters, optimizer = trained(lambda p: Adam(p, lr=0.1))
    weight = parameters[dim]
    before = copy.deepcopy(optimizer.state[weight])
    reset_optimizer_state(optimizer, [weight], rows=rows, dim=dim)
    for key in ("exp_avg", "exp_avg_sq"):
        now, old = optimizer.state[weight][key].movedim(dim, 0), before[key].movedim(dim, 0)
        assert not now[[1, 4]].any()
        assert torch.equal(now[[0, 2, 3, 5]], old[[0, 2, 3, 5]])
    assert optimizer.state[weight]["step"] == 4


@pytest.mark.parametrize("rows", [[1, 4], torch.tensor([0, 1, 0, 0, 1, 0]).bool()])
def test_rows_of_state_that_does_not_begin_at_zero(rows: Any) -> None:
    parameters, optimizer = trained(lambda p: torch.optim.Rprop(p, lr=0.3))
    weight = parameters[0]
    state = optimizer.state[weight]
    state |= {"turns": 3}  # a plain number, as timm's optimizers keep it
    before = copy.deepcopy(state)
    reset_optimizer_state(optimizer, [weight], rows=rows)
    assert (state["step_size"][[1, 4]] == 0.3).all()
    assert all(torch.equal(state[key][[0, 2, 3, 5]], before[key][[0, 2, 3, 5]]) for key in ("step_size", "prev"))


@pytest.mark.parametrize("rows", [[1, 4], torch.tensor([0, 1, 0, 0, 1, 0]).bool()])
@pytest.mark.parametrize("name", ["schedulefree.AdamWScheduleFree", "timm.optim.Lookahead"])
def test_rows_of_slow_weights_begin_at_the_weight(name: str, rows: Any) -> None:
    parameters, optimizer = trained(make(name))
    key = "z" if "schedule" in name else "lookahead_slow_buff"
    state = getattr(optimizer, "_base_optimizer", optimizer).state[parameters[0]]
    before = copy.deepcopy(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FireWarning)
        reset_optimizer_state(optimizer, [parameters[0]], rows=rows)
    assert torch.equal(state[key][[1, 4]], parameters[0][[1, 4]])
    assert torch.equal(state[key][[0, 2, 3, 5]], before[key][[0, 2, 3, 5]])
    assert not torch.equal(before[key][[1, 4]], state[key][[1, 4]])
    assert not state["exp_avg_sq"][[1, 4]].any()


@pytest.mark.parametrize("odd", [torch.zeros(6, 6, dtype=torch.uint8), torch.zeros(6), [torch.zeros(6, 6)]])
def test_state_without_rows_is_reset_whole_and_named(odd: Any) -> None:
    parameters, optimizer = trained(lambda p: Adam(p, lr=0.1))
    weight = parameters[0]
    optimizer.state[weight]["codes"] = odd
    with pytest.warns(FireWarning, match="Adam keeps codes"):
        assert reset_optimizer_state(optimizer, [weight], rows=[1]) == 1
    assert weight not in optimizer.state


@pytest.mark.parametrize(
    ("optimizers", "params", "message"),
    [
        ("right", ["a"], "params holds 'a', which is no parameter"),
        ("right", "module", "params is a module: give its parameters"),
        ("right", "tensor", r"params is one tensor.*give a list, \[parameter\]"),
        ("module", "parameters", "expected an optimizer .* got Sequential"),
        ([1], "parameters", "expected an optimizer .* got int"),
        (None, "parameters", "expected an optimizer .* got NoneType"),
    ],
)
def test_what_is_no_optimizer_or_no_parameter_is_refused(optimizers: Any, params: Any, message: str) -> None:
    parameters, right = trained(Adam)
    known: dict[str, Any] = {"module": network(), "tensor": parameters[0], "parameters": parameters, "right": right}
    given = [known[value] if isinstance(value, str) else value for value in (optimizers, params)]
    with pytest.raises(TypeError, match=message):
        reset_optimizer_state(*given)
    assert len(right.state) == 2


@pytest.mark.parametrize(("rows", "dim"), [([99], 0), ([0, -7], 1), (torch.ones(5).bool(), 0), ([0], 2), ([0.5], 0)])
def test_rows_that_a_parameter_lacks_are_refused(rows: Any, dim: int) -> None:
    parameters, optimizer = trained(lambda p: Adam(p, lr=0.1))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"^rows: a parameter of shape \(\d, \d\) lacks some of them along dim=\d$"):
        reset_optimizer_state(optimizer, parameters, rows=rows, dim=dim)
    torch.testing.assert_close(optimizer.state_dict()["state"], before["state"], rtol=0, atol=0)


class Outside(torch.optim.SGD):
    """Keeps a momentum of its own where no state_dict sees it."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr=lr)
        self.mom = [torch.zeros_like(p) for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        for momentum, p in zip(self.mom, self.param_groups[0]["params"], strict=True):
            if p.grad is not None:
                p.grad = momentum.add_(p.grad).clone()
        return super().step(closure)


def test_a_reset_writes_no_parameter_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter is a key of `state`; to write it out takes long, and on a GPU waits for the device."""
    model = nn.Linear(3, 4)
    optimizer = Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    def refuse(*given: object) -> str:
        raise AssertionError("a tensor was written out")

    for name in ("__format__", "__repr__"):
        monkeypatch.setattr(Tensor, name, refuse)
    reset_optimizer_state(optimizer, [model.weight], rows=[1])
    fire_(model, optimizer=optimizer)


def test_verify_names_what_it_cannot_see():
    model = nn.Linear(4, 3)
    used = Outside(model.parameters())
    steps(list(model.parameters()), used)
    with (
        pytest.warns(FireWarning, match="Outside keeps mom, so that its next steps are not"),
        pytest.warns(FireWarning, match="Outside keeps mom$"),
        pytest.warns(FireWarning, match="Outside takes another step than a new one"),
    ):
        reset_optimizer_state(used, [model.weight], verify=True)
    copies = [p.detach().clone().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.Adam(copies)
    copies[0].grad = torch.ones_like(copies[0])
    optimizer.step()
    with pytest.warns(FireWarning, match="keep nothing of these parameters"):
        reset_optimizer_state(optimizer, model.parameters(), verify=True)
    with pytest.warns(FireWarning, match="such as those of a model that was replaced"):
        assert reset_optimizer_state(optimizer, model.parameters()) == 0
    assert "train none of the model's weights" in str(is_fresh(torch.optim.Adam(copies), model))


def test_a_history_under_the_first_parameter_an_iterator_and_no_rows() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 5)).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.warns(FireWarning, match="LBFGS keeps one history of all its parameters"):
        assert reset_optimizer_state(optimizer, [list(model.parameters())[-1]]) == 1
    assert not optimizer.state
    optimizer.step(closure)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reset_optimizer_state(optimizer, model.parameters()) == 1
    parameters, other = trained(torch.optim.Adam)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reset_optimizer_state((one for one in [other]), [nn.Parameter(torch.ones(2))], verify=True)
    assert "keep nothing of these" in str(caught[0].message)
    assert reset_optimizer_state(other, parameters[:1], rows=[]) == 1


class LoadedSlow(torch.optim.Optimizer):
    """Slow weights that only a loaded state brings. No new one can be built, so they are reset in place."""

    def __init__(self, params: Any, lock: threading.Lock) -> None:
        super().__init__(params, {"lr": 0.1})
        self.lock = lock  # cannot be copied

    def step(self, closure: Any = None) -> None:
        if not all(self.state[p] for p in self.param_groups[0]["params"]):
            raise RuntimeError("load a state")


@pytest.mark.filterwarnings("ignore::fire_core.FireWarning")
def test_a_reset_in_place_leaves_no_history_of_gradients() -> None:
    model = nn.Linear(3, 3)
    optimizer = LoadedSlow(model.parameters(), threading.Lock())
    for p in model.parameters():
        optimizer.state[p] = {"slow_buffer": torch.zeros_like(p)}
    reset_optimizer_state(optimizer, model.parameters())
    for p in model.parameters():
        slow = optimizer.state[p]["slow_buffer"]
        assert torch.equal(slow, p)
        assert not slow.requires_grad


class ByKind(torch.optim.Optimizer):
    """An optimizer without options of its own, whose step reads how each group is trained from the group."""

    def __init__(self, groups: Any) -> None:
        super().__init__(groups, defaults={})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                momentum.mul_(group["momentum"]).add_(p.grad)
                scale = {"sign": momentum.sign(), "plain": momentum}[group["kind"]]
                p.sub_(scale, alpha=group["lr"])


def test_an_optimizer_that_needs_the_entries_of_its_groups_is_reset() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = ByKind(
        [
            {"params": list(model[0].parameters()), "kind": "sign", "lr": 0.01, "momentum": 0.9},
            {"params": list(model[1].parameters()), "kind": "plain", "lr": 0.1, "momentum": 0.5},
        ]
    )
    for _ in range(3):
        model(torch.randn(6, 4)).square().sum().backward()
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fire_(model, optimizer=optimizer, solver="exact")
    assert not any("momentum_buffer" in optimizer.state[layer.weight] for layer in model)
    assert all("momentum_buffer" in optimizer.state[layer.bias] for layer in model)


def test_an_error_while_an_optimizer_is_learnt_leaves_no_act_without_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("of a class of one's own")

    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = ByKind([{"params": list(model.parameters()), "kind": "plain", "lr": 0.1, "momentum": 0.5}])
    model(torch.randn(6, 4)).square().sum().backward()
    optimizer.step()
    monkeypatch.setattr("fire_core.weights.optimizer_state.Rehearsal", fail)
    with pytest.warns(FireWarning, match="ZeroDivisionError: of a class of one's own"):
        fire_(model, optimizer=optimizer)
    for layer in model:
        assert not any(bool(value.any()) for value in optimizer.state.get(layer.weight, {}).values())
