"""Every optimizer of torch, pytorch_optimizer and torch_optimizer: after a reset its steps are those of a new one.

Or a FireWarning has said that they are not. The versions are those of the extra `zoo`. What cannot be tried stands in
`NOT_TRIED` with the reason, and a class that is in no table must pass.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, fire_, reset_optimizer_state

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytorch_optimizer = pytest.importorskip("pytorch_optimizer")
    torch_optimizer = pytest.importorskip("torch_optimizer")

Build = Callable[[list[nn.Parameter]], Any]
NEEDS_A_MODEL = "is built from a model, whose hooks step within the backward pass"
NOT_TRIED = {
    "torch.optim.SparseAdam": "takes sparse gradients alone",
    "pytorch_optimizer.AdaLOMO": NEEDS_A_MODEL,
    "pytorch_optimizer.LOMO": NEEDS_A_MODEL,
    "pytorch_optimizer.DeMo": "needs a group of processes",
    "pytorch_optimizer.DistributedMuon": "needs a group of processes",
    "pytorch_optimizer.GSAM": "needs a model and a schedule, and steps by a method of its own",
    "pytorch_optimizer.WSAM": "needs a model in DistributedDataParallel",
    "pytorch_optimizer.SafeFP16Optimizer": "steps copies of its own, by a method of its own for the backward pass",
}


def by_use(kind: Any) -> Build:
    """For Muon and its kin: matrices and vectors in groups that say so."""

    def build(parameters: list[nn.Parameter]) -> Any:
        groups = [([p for p in parameters if (p.ndim > 1) == use], use) for use in (True, False)]
        return kind([{"params": members, "use_muon": use} for members, use in groups if members])

    return build


def around(kind: Any, **options: Any) -> Build:
    """For wrappers of an optimizer."""
    return lambda parameters: kind(torch.optim.AdamW(parameters, lr=0.1), **options)


def over(kind: Any) -> Build:
    """For sharpness-aware wrappers, which take the class of an optimizer."""
    return lambda parameters: kind(parameters, base_optimizer=torch.optim.SGD, lr=0.1, momentum=0.9)


P: Any = pytorch_optimizer
SPECIAL: dict[str, Build] = {
    **{f"pytorch_optimizer.{n}": by_use(getattr(P, n)) for n in ("AdaGO", "AdaMuon", "Muon", "MuonClip", "NorMuon")},
    **{f"pytorch_optimizer.{n}": over(getattr(P, n)) for n in ("SAM", "LookSAM", "FriendlySAM")},
    **{f"pytorch_optimizer.{n}": around(getattr(P, n)) for n in ("OrthoGrad", "PCGrad", "ScheduleFreeWrapper", "TRAC")},
    "pytorch_optimizer.Lookahead": around(P.Lookahead, k=3),
    "pytorch_optimizer.Magma": around(P.Magma),
    "pytorch_optimizer.BSAM": lambda parameters: P.BSAM(parameters, num_data=10),
    "pytorch_optimizer.Ranger21": lambda parameters: P.Ranger21(parameters, num_iterations=50),
    "pytorch_optimizer.AliG": lambda parameters: P.AliG(parameters, max_lr=0.1, momentum=0.9),
    "pytorch_optimizer.AdamMini": lambda parameters: P.AdamMini(nn.ParameterList(parameters), lr=1e-3),
    "torch_optimizer.Lookahead": around(torch_optimizer.Lookahead, k=3),
}
MATRICES_ONLY = ("torch.optim.Muon", "pytorch_optimizer.SpectralSphere")
CLOSURE = ("LBFGS", "AliG", "BSAM", "SAM", "LookSAM", "FriendlySAM")
HESSIAN = ("AdaHessian", "Adahessian", "SophiaH")


def classes(module: ModuleType) -> dict[str, Any]:
    found = inspect.getmembers(
        module, lambda thing: inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer)
    )
    return {f"{module.__name__}.{name}": kind for name, kind in found if kind is not torch.optim.Optimizer}


EVERY = classes(torch.optim) | classes(pytorch_optimizer) | classes(torch_optimizer)


def parameters_for(name: str) -> list[nn.Parameter]:
    torch.manual_seed(0)
    shapes: list[tuple[int, ...]] = [(6, 6), (3, 6)] if name in MATRICES_ONLY else [(6, 6), (6,), (3, 6), (3,)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def steps(name: str, parameters: Sequence[Tensor], optimizer: Any, count: int, seed: int) -> None:
    """Towards drawn targets; whatever the optimizer draws itself is drawn from the seed."""
    draw = torch.Generator().manual_seed(seed)
    targets = [torch.randn(p.shape, generator=draw) for p in parameters]
    kind = name.rpartition(".")[2]

    def closure() -> Tensor:
        for p in parameters:
            p.grad = None
        with torch.enable_grad():
            pairs = zip(parameters, targets, strict=True)
            loss = torch.stack([(p - target).square().sum() for p, target in pairs]).sum() / 2
            loss.backward(create_graph=kind in HESSIAN)
        return loss

    torch.default_generator.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(count):
            closure()
            optimizer.step(closure) if kind in CLOSURE else optimizer.step()
    for p in parameters:
        p.grad = None


def trained(name: str, build: Build) -> tuple[list[nn.Parameter], Any]:
    parameters = parameters_for(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = build(parameters)
    if hasattr(optimizer, "train"):
        optimizer.train()
    steps(name, parameters, optimizer, 5, 0)
    return parameters, optimizer


def warned(act: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in caught if issubclass(one.category, FireWarning)]


def moves_as_a_new_one(
    name: str, build: Build, parameters: list[nn.Parameter], optimizer: Any, reset: Sequence[nn.Parameter]
) -> bool:
    """Whether two steps change the parameters that were reset as those of a new optimizer do."""
    fresh = [nn.Parameter(p.detach().clone()) for p in parameters]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = build(fresh)
    if hasattr(new, "train"):
        new.train()
    starts = [p.detach().clone() for p in parameters]
    steps(name, parameters, optimizer, 2, 7)
    steps(name, fresh, new, 2, 7)
    chosen = {id(p) for p in reset}
    return all(
        torch.allclose(p - start, q - start, rtol=1e-3, atol=1e-6)
        for p, q, start in zip(parameters, fresh, starts, strict=True)
        if id(p) in chosen
    )


def check(name: str, build: Build) -> None:
    """All parameters, one layer, rows of one matrix."""
    parameters, optimizer = trained(name, build)
    told = warned(lambda: reset_optimizer_state(optimizer, parameters))
    assert moves_as_a_new_one(name, build, parameters, optimizer, parameters) or told, "all parameters"

    parameters, optimizer = trained(name, build)
    half = parameters[len(parameters) // 2 :]
    told = warned(lambda: reset_optimizer_state(optimizer, half))
    assert moves_as_a_new_one(name, build, parameters, optimizer, half) or told, "a layer"

    parameters, optimizer = trained(name, build)
    before = snapshot(optimizer)
    told = warned(lambda: reset_optimizer_state(optimizer, [parameters[0]], rows=[1, 2]))
    assert told or others_stay(before, snapshot(optimizer), parameters[0]), "rows"
    steps(name, parameters, optimizer, 3, 8)
    assert all(p.isfinite().all() for p in parameters), "rows"


def snapshot(optimizer: Any) -> dict[Any, dict[str, Any]]:
    return {
        key: {name: copy.deepcopy(value) for name, value in state.items()}
        for key, state in optimizer.state.items()
        if isinstance(key, Tensor) and isinstance(state, dict)
    }


def others_stay(before: dict[Any, Any], after: dict[Any, Any], chosen: Tensor) -> bool:
    """Whether the reset of rows 1 and 2 of a parameter (6, 6) changed nothing else in the state."""
    for p, state in before.items():
        for name, old in state.items():
            now = after[p][name]
            if isinstance(old, Tensor):
                rows = [0, 3, 4, 5] if p is chosen and old.shape == (6, 6) else slice(None)
                if not torch.equal(old[rows] if old.ndim else old, now[rows] if now.ndim else now):
                    return False
    return True


@pytest.mark.parametrize("name", sorted(EVERY.keys() - NOT_TRIED.keys()))
def test_it_steps_as_a_new_one_or_a_warning_was_given(name: str) -> None:
    check(name, SPECIAL.get(name, EVERY[name]))


def test_the_tables_name_classes_that_there_are() -> None:
    assert {*NOT_TRIED, *SPECIAL, *MATRICES_ONLY} <= EVERY.keys()


# ------------------------------------------------------------------------------------ what packages need not contain


class Own(torch.optim.Optimizer):
    """A base for optimizers of one's own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @property
    def every(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.every:
            if p.grad is not None:
                self.move(p, p.grad)

    def move(self, p: Tensor, g: Tensor) -> None:
        raise NotImplementedError


class InSlots(Own):
    """Momentum made in the constructor, in a slot, as a list."""

    __slots__ = ("momenta",)

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.momenta = [torch.zeros_like(p) for p in self.every]

    def move(self, p: Tensor, g: Tensor) -> None:
        (momentum,) = (m for m, q in zip(self.momenta, self.every, strict=True) if q is p)
        p.sub_(momentum.mul_(0.9).add_(g), alpha=0.1)


class Constructed(Own):
    """State made in the constructor that does not begin at zero, a flag among it, and never again."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for p in self.every:
            self.state[p] |= {
                "matrix": p.ndim > 1,
                "t": 0,
                "scale": torch.full_like(p, 3.0),
                "slow": [p.detach().clone(), [1.0]],
            }

    def move(self, p: Tensor, g: Tensor) -> None:
        state = self.state[p]
        state["t"] += 1
        state["slow"][1][0] *= 0.5
        state["scale"].mul_(0.9)
        p.sub_(state["scale"] * g / state["t"], alpha=0.1 if state["matrix"] else 0.2)
        p.add_(state["slow"][0] - p, alpha=0.1 * state["slow"][1][0])


class NestedLists(Own):
    """State made at the first step, in lists of lists, and a number that a group counts under a name of its own."""

    def move(self, p: Tensor, g: Tensor) -> None:
        group = next(group for group in self.param_groups if any(p is q for q in group["params"]))
        group["_t"] = group.get("_t", 0) + 1
        buffers = self.state[p].setdefault("buffers", [[torch.zeros_like(p)], [0]])
        buffers[1][0] += 1
        p.sub_(buffers[0][0].mul_(0.9).add_(g) / buffers[1][0] / group["_t"], alpha=0.1)


class BareTensor(Own):
    """The state of a parameter is a tensor, made in the constructor."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        for p in self.every:
            self.state[p] = torch.zeros_like(p)  # type: ignore[assignment]

    def move(self, p: Tensor, g: Tensor) -> None:
        buffer: Any = self.state[p]
        p.sub_(buffer.mul_(0.9).add_(g), alpha=0.1)


class Stacked(torch.optim.Optimizer):
    """One buffer for all weights of a shape, in the state of the first; with the constructor of the base class."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for shape in {p.shape for p in self.param_groups[0]["params"]}:
            members = [p for p in self.param_groups[0]["params"] if p.shape == shape]
            gradient = torch.stack([p.grad for p in members])
            buffer = self.state[members[0]].setdefault("momentum_buffer", torch.zeros_like(gradient))
            for p, update in zip(members, buffer.mul_(0.9).add_(gradient), strict=True):
                p.sub_(update, alpha=0.1)


class CountsInAttributes(Own):
    """Counters as attributes, in the common part of the state, and in a closure, which nobody can set back."""

    def __init__(self, params: Any, lr: float = 0.1, hidden: bool = False) -> None:
        super().__init__(params, lr)
        self.step_count, self.hidden, calls = 0, hidden, [0]
        self.state["k"] = torch.zeros(())  # type: ignore[index]

        def calls_so_far() -> int:
            calls[0] += hidden
            return calls[0]

        self.calls = calls_so_far

    def move(self, p: Tensor, g: Tensor) -> None:
        self.step_count += 1
        count: Any = self.state["k"].add_(1)  # type: ignore[index]
        p.sub_(g / (self.step_count + count + self.calls()), alpha=0.1)


class TwoLists(Own):
    """As Moonlight's Muon: two lists of parameters, so that nobody else can build one; flags in the state."""

    def __init__(self, matrices: list[Tensor], vectors: list[Tensor], lr: float = 0.1) -> None:
        super().__init__([*matrices, *vectors], lr)
        for p in self.every:
            self.state[p] |= {"use_muon": p in set(matrices), "momentum": torch.zeros_like(p)}

    def move(self, p: Tensor, g: Tensor) -> None:
        update = self.state[p]["momentum"].mul_(0.9).add_(g)
        p.sub_(update if self.state[p]["use_muon"] else update.sign(), alpha=0.1)


OWN: dict[str, Build] = {
    "InSlots": InSlots,
    "Constructed": Constructed,
    "NestedLists": NestedLists,
    "BareTensor": BareTensor,
    "Stacked": lambda parameters: Stacked(parameters, {}),
    "CountsInAttributes": CountsInAttributes,
    "in a closure": lambda parameters: CountsInAttributes(parameters, hidden=True),
    "TwoLists": lambda parameters: TwoLists(
        [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim < 2]
    ),
    "two wrappers": lambda parameters: torch_optimizer.Lookahead(P.Lookahead(Constructed(parameters), k=2), k=3),
}


@pytest.mark.parametrize("name", OWN)
def test_one_of_ones_own_steps_as_a_new_one_or_a_warning_was_given(name: str) -> None:
    check(name, OWN[name])


@pytest.mark.parametrize(
    "name", ["InSlots", "Constructed", "NestedLists", "BareTensor", "Stacked", "CountsInAttributes"]
)
def test_a_reset_of_all_needs_no_warning(name: str) -> None:
    parameters, optimizer = trained(name, OWN[name])
    told = warned(lambda: reset_optimizer_state(optimizer, parameters, verify=True))
    assert moves_as_a_new_one(name, OWN[name], parameters, optimizer, parameters)
    assert [line for line in told if "keep nothing" not in line] == []


def test_verify_sees_what_cannot_be_set_back() -> None:
    parameters, optimizer = trained("", OWN["in a closure"])
    told = warned(lambda: reset_optimizer_state(optimizer, parameters, verify=True))
    assert not moves_as_a_new_one("", OWN["in a closure"], parameters, optimizer, parameters)
    assert any("CountsInAttributes" in line for line in told)


def test_an_option_is_no_counter() -> None:
    """Ranger's k says how often its slow weights follow; schedule-free's k counts."""
    for kind in (torch_optimizer.Ranger, torch_optimizer.RangerVA, P.Ranger):
        parameters, optimizer = trained("", lambda params, kind=kind: kind(params, lr=0.1, k=6))
        reset_optimizer_state(optimizer, parameters)
        assert optimizer.param_groups[0]["k"] == 6


def test_prodigys_estimate_is_reset_and_else_told() -> None:
    """By `fire_` too."""
    for exclude, rest in (((), []), ("0", ["keeps d"])):
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(6, 6, bias=False) for _ in range(3)])
        optimizer = P.Prodigy(model.parameters())
        steps("", list(model.parameters()), optimizer, 30, 0)
        assert optimizer.param_groups[0]["d"] > 1e-4
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FireWarning)  # the report holds the same lines
            report = fire_(model, optimizer=optimizer, exclude=exclude)
        assert (optimizer.param_groups[0]["d"] == 1e-6) == (not exclude)
        assert all(word in " ".join(report.warnings) for word in rest)
        assert bool(report.warnings) == bool(rest)


def test_rows_of_a_preconditioner_are_no_rows_of_the_weight() -> None:
    """Both are 6 x 6: the shapes of stand-ins tell them apart."""
    parameters, optimizer = trained("", lambda params: torch_optimizer.Shampoo(params, lr=0.1))
    told = warned(lambda: reset_optimizer_state(optimizer, [parameters[0]], rows=[1, 2]))
    assert any("Shampoo keeps precond_0" in line for line in told)
    assert parameters[0] not in optimizer.state
