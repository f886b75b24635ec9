"""FIRE's controls: isometries that know nothing of the weights, and a reset of the optimizer alone."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import (
    Chain,
    Context,
    Dash,
    Fire,
    FullReset,
    Fuse,
    Method,
    Net,
    OptimizerReset,
    RandomIsometry,
    ShrinkAndPerturb,
)
from fire_core.weights.layout import resolve
from harness.config.errors import ConfigError
from rl.common.boundary import update_targets
from tests.programs import DQN, SMALL, rows


class Network(nn.Module):
    """Every kind of cut: grouped convolution, fused projections, wide and tall layers; norms and an embedding stay."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.grouped = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, (2, 3), groups=4)
        self.table, self.attention = nn.Embedding(9, 6), nn.MultiheadAttention(6, 2)
        self.up, self.norm, self.head = nn.Linear(6, 20), nn.LayerNorm(20), nn.Linear(20, 4)


def moment(seed: int = 0, *optimizers: torch.optim.Optimizer) -> Context:
    return Context(1, 3, torch.Generator().manual_seed(seed), optimizers=list(optimizers))


def trained(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Net, torch.optim.Adam]:
    """A network away from its initial weights, and an optimizer that has a state for each of them."""
    torch.manual_seed(seed)
    model = Network().to(dtype)
    net, optimizer = Net.of({"model": model}), torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    return net, optimizer


def matrices(net: Net) -> dict[str, Tensor]:
    """What FIRE projects, (count, d_out, d_in) by label."""
    entries = [entry for entry in resolve(net.modules["model"], net.layout) if entry.action == "project"]
    return {entry.label: entry.view(entry.parameter).detach().reshape(-1, *entry.shape).clone() for entry in entries}


@pytest.mark.parametrize("scale", ["modular", "orthogonal", "match_init", "init_norm", "keep_norm", "variance_factor"])
def test_singular_values_are_those_of_exact_fire(scale: str) -> None:
    factor = 0.5 if scale == "variance_factor" else 1.0
    fire, method = Fire("exact", scale=scale, variance_factor=factor), RandomIsometry(None, scale, factor)
    (one, _), (other, _) = trained(), trained()
    fire.at_boundary(one, moment())
    method.at_boundary(other, moment())
    projected, drawn = matrices(one), matrices(other)
    assert len(drawn) == 8  # the fused projection has three
    for label, matrix in drawn.items():
        expected = torch.linalg.svdvals(projected[label])
        torch.testing.assert_close(torch.linalg.svdvals(matrix), expected, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(matrix, projected[label], atol=0.01), label


def test_the_weights_do_not_matter_and_the_seed_does() -> None:
    found = []
    for weights, seed in ((0, 0), (1, 0), (0, 1)):
        net, _ = trained(weights)
        RandomIsometry().at_boundary(net, moment(seed))
        found.append(matrices(net))
    assert all(torch.equal(found[0][label], found[1][label]) for label in found[0])
    assert not any(torch.allclose(found[0][label], found[2][label], atol=0.01) for label in found[0])


@pytest.mark.parametrize("make", [RandomIsometry, ShrinkAndPerturb])
def test_one_generator_gives_each_act_draws_of_its_own(make: type[Method]) -> None:
    """A loop of one's own may make one generator for all acts; the programs make a new one for each."""
    model = nn.Linear(6, 4)
    net, start, generator = Net.of({"model": model}), copy.deepcopy(model.state_dict()), torch.Generator()
    drawn = list[Tensor]()
    for step in range(3):
        model.load_state_dict(start)
        make().at_boundary(net, Context(phase=step, step=step, generator=generator))
        drawn.append(model.weight.detach().clone())
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])


@pytest.mark.parametrize("how", ["act", "follow"])
@pytest.mark.parametrize("make", [RandomIsometry, ShrinkAndPerturb])
def test_a_target_network_gets_the_draws_of_the_trained_one(make: type[Method], how: str) -> None:
    model = nn.Linear(6, 4)
    net, context, method = Net.of({"q": model}), moment(3), make()
    net.targets = {"q": copy.deepcopy(model)}
    method.at_boundary(net, context)
    update_targets(method, net, context, how)
    assert torch.equal(net.targets["q"].weight, model.weight)


@pytest.mark.filterwarnings("ignore:zero matrices have no nearest isometry")
@pytest.mark.parametrize("redraws", ["both", "left", "right"])
def test_a_zero_matrix_keeps_its_norm_as_with_fire(redraws: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    nn.init.zeros_(model[1].weight)
    for method in (Fire("exact", scale="keep_norm"), RandomIsometry(scale="keep_norm", redraws=redraws)):
        method.at_boundary(Net.of({"model": model}), moment())
        assert model[0].weight.count_nonzero()
        assert not model[1].weight.count_nonzero(), type(method)


def test_one_side_of_a_weight_is_redrawn_and_the_other_stays() -> None:
    """Projectors on the spaces of rows and columns, by a float64 SVD: the side that is not redrawn keeps its own."""
    for redraws, kept in (("left", "rows"), ("right", "columns")):
        (net, _), (known, _) = trained(), trained()
        RandomIsometry(redraws=redraws).at_boundary(net, moment())
        before, after = matrices(known), matrices(net)
        for label, matrix in after.items():
            d_out, d_in = matrix.shape[-2:]
            spaces = {}
            for when, W in (("before", before[label]), ("after", matrix)):
                U, _, Vh = torch.linalg.svd(W, full_matrices=False)
                spaces[when] = {"columns": U @ U.mT, "rows": Vh.mT @ Vh}
            is_kept = {"rows": d_out < d_in, "columns": d_out > d_in}  # the space of the longer side is all there is
            for side, has_own in is_kept.items():
                same = torch.allclose(spaces["before"][side], spaces["after"][side], atol=1e-10)
                assert same == (side == kept or not has_own), (redraws, label, side)
            assert not torch.allclose(matrix, before[label], atol=0.01)


def test_all_isometries_are_alike() -> None:
    """Haar: of orthogonal 4 x 4 matrices trace and determinant have mean 0, the squared trace 1, its square 3."""
    model = nn.Conv2d(4, 4, (80, 100), bias=False)
    RandomIsometry(scale="orthogonal").at_boundary(Net.of({"model": model}), moment())
    drawn = model.weight.detach().flatten(2).permute(2, 0, 1).double()  # (8000, 4, 4)
    traces = drawn.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(traces.mean()) < 0.04
    assert abs(torch.linalg.det(drawn).mean()) < 0.04
    assert traces.square().mean().item() == pytest.approx(1, abs=0.06)
    assert traces.pow(4).mean().item() == pytest.approx(3, abs=0.5)
    assert drawn.mean(0).abs().max() < 0.03
    torch.testing.assert_close(drawn.square().mean(0), torch.full((4, 4), 0.25).double(), rtol=0, atol=0.02)


def test_what_is_no_matrix_stays_and_only_changed_weights_are_forgotten_by_the_optimizer() -> None:
    net, optimizer = trained()
    before = {name: p.detach().clone() for name, p in net.modules["model"].named_parameters()}
    RandomIsometry().at_boundary(net, moment(0, optimizer))
    for name, parameter in net.modules["model"].named_parameters():
        is_drawn = parameter.ndim > 1 and name != "table.weight"
        assert torch.equal(before[name], parameter) != is_drawn, name
        assert bool(optimizer.state.get(parameter)) != is_drawn, name


def test_programs_refuse_it_where_the_next_phase_has_a_new_optimizer(tmp_path: Path) -> None:
    alone, new_one = "method=optimizer_reset", "has a new one in each phase"
    for method in ((alone,), ("method=chain", "method.of=optimizer_reset+redo")):
        with pytest.raises(ConfigError, match=f"benchmark=warm_start {new_one}"):
            SMALL.run(tmp_path, *method)
    with pytest.raises(ConfigError, match=r"boundary.optimizer=keep .*: take forget"):
        DQN.run(tmp_path, alone, "boundary.optimizer=keep")


def test_a_trigger_keeps_the_optimizer_that_it_resets(tmp_path: Path) -> None:
    options = ("trigger=every", "trigger.steps=3")
    row = next(
        row for row in rows(SMALL.run(tmp_path, "method=optimizer_reset", "epochs=1", *options)) if "kind" in row
    )
    assert row[f"{row['kind']}/optimizer_states_reset"] == 6  # weights and biases of three layers
    assert row[f"{row['kind']}/sfe"] == 0


@pytest.mark.parametrize("name", ["fire", "random_isometry", "random_isometry left", "snp", "fuse", "chain", "reset"])
def test_a_network_that_is_refused_leaves_all_networks_as_they_were(name: str) -> None:
    methods: dict[str, Method] = {
        "fire": Fire(),
        "random_isometry": RandomIsometry(),
        "random_isometry left": RandomIsometry(redraws="left"),
        "snp": ShrinkAndPerturb(),
        "fuse": Fuse(),
        "chain": Chain({"snp": ShrinkAndPerturb(layout=None), "fire": Fire()}),
        "reset": Chain({"full_reset": FullReset(), "fire": Fire()}),
    }
    modules = {
        key: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3))
        for key in ("actor", "critic")
    }
    net = Net.of(modules)
    for module in modules.values():
        module(torch.randn(4, 5))  # which moves the running statistics
    net.init["critic"]["2.weight"][0, 0] = torch.nan
    if name != "random_isometry":
        with torch.no_grad():
            modules["critic"][2].weight[0, 0] = torch.nan
    before = copy.deepcopy([module.state_dict() for module in modules.values()])
    with pytest.raises(ValueError, match="NaN or Inf in"):
        methods[name].at_boundary(net, Context(1, 0, torch.Generator().manual_seed(0)))
    for module, old in zip(modules.values(), before, strict=True):
        torch.testing.assert_close(dict(module.state_dict()), dict(old), rtol=0, atol=0, equal_nan=True)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "LBFGS": lambda parameters: torch.optim.LBFGS(parameters, 0.1, max_iter=1),
    "Rprop": lambda parameters: torch.optim.Rprop(parameters, 0.1),
}


@pytest.mark.filterwarnings("ignore:LBFGS keeps one history:fire_core.errors.FireWarning")
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", ["fire", "chain"])
def test_after_a_refused_act_training_goes_on_as_if_there_had_been_none(name: str, kind: str) -> None:
    method = Fire() if name == "fire" else Chain({"reset": OptimizerReset(), "fire": Fire()})

    def train(modules: dict[str, nn.Module], optimizer: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for module in modules.values():
            for p in module.parameters():
                p.grad = torch.randn(p.shape, generator=generator).to(p)
        optimizer.step(*((lambda: 1.0,) if kind == "LBFGS" else ()))

    def trained() -> tuple[dict[str, nn.Module], Any]:
        torch.manual_seed(0)
        modules: dict[str, nn.Module] = {
            key: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)) for key in ("actor", "critic")
        }
        optimizer = OPTIMIZERS[kind]([p for module in modules.values() for p in module.parameters()])
        for seed in range(3):
            train(modules, optimizer, seed)
        with torch.no_grad():
            modules["critic"].get_parameter("2.weight")[0, 0] = torch.nan
        return modules, optimizer

    (modules, optimizer), (undisturbed, its_optimizer) = trained(), trained()
    states = {id(value) for state in optimizer.state.values() for value in state.values()}
    with pytest.raises(ValueError, match="NaN or Inf in"):
        method.at_boundary(Net.of(modules), Context(1, 0, torch.Generator(), optimizers=[optimizer]))
    assert {id(value) for state in optimizer.state.values() for value in state.values()} == states
    for seed in range(3, 5):
        train(modules, optimizer, seed)
        train(undisturbed, its_optimizer, seed)
        for key, module in modules.items():
            numbers, expected = dict(module.state_dict()), dict(undisturbed[key].state_dict())
            torch.testing.assert_close(numbers, expected, rtol=0, atol=0, equal_nan=True)


def test_a_full_reset_of_a_network_that_has_changed_its_shape_changes_no_other() -> None:
    modules: dict[str, nn.Module] = {key: nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)) for key in ("a", "b")}
    net = Net.of(modules)
    with torch.no_grad():
        modules["a"].get_parameter("0.weight").add_(1)
    before = modules["a"].get_parameter("0.weight").detach().clone()
    modules["b"][1] = nn.Linear(8, 4)  # type: ignore[index, operator]
    with pytest.raises(RuntimeError, match="size mismatch"):
        FullReset().at_boundary(net, moment())
    assert torch.equal(modules["a"].get_parameter("0.weight"), before)


def test_shrink_and_perturb_on_one_network_is_refused_before_it_shrinks() -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    net = Net.of({"model": model})
    with pytest.raises(ValueError, match=r"no parameter matches 'trunk\.\*'"):
        ShrinkAndPerturb(layout={"trunk.*": "reinit"}).at_boundary(net, Context(1, 0, torch.Generator()))
    assert all(torch.equal(value, net.init["model"][key]) for key, value in model.state_dict().items())


class WithExpandedBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.zeros(1).expand(6))


def test_an_expanded_buffer_hides_no_reason_and_stops_no_act() -> None:
    """Nobody can write into it, so it needs no copy."""
    modules = {"actor": WithExpandedBuffer(), "critic": WithExpandedBuffer()}
    net = Net.of(modules)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        yield torch.randn(8, 4), torch.randn(8, 4)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return sum(((module(x) - y).square().mean() for module in modules.values()), torch.zeros(()))

    Dash().at_boundary(net, Context(1, 0, torch.Generator(), batches, loss))
    assert not torch.equal(modules["actor"].weight, net.init["actor"]["weight"])
    with torch.no_grad():
        modules["critic"].weight[0, 0] = torch.nan
    before = modules["actor"].weight.detach().clone()
    with pytest.raises(ValueError, match="NaN or Inf in weight"):
        Fire().at_boundary(net, Context(1, 0, torch.Generator()))
    assert torch.equal(modules["actor"].weight, before)
