"""Models that are odd work, or are refused in one line that is true and says what to do."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from fire_core import fire_, matrices, plasticity_gap
from fire_core.integrations.torch import FireHook
from fire_core.tools import fire
from fire_core.triggers import Dormancy, EffectiveRank


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    "empty", [lambda: nn.Linear(0, 5), lambda: nn.Linear(5, 0), lambda: nn.Linear(0, 0), lambda: nn.Embedding(0, 5)]
)
def test_an_empty_layer_is_kept(empty: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(empty(), nn.Linear(5, 5))
    report = fire_(model)
    assert [row.name for row in report.rows] == ["1.weight"]
    assert "0.weight" in report.kept
    assert report.kept["0.weight"].reason
    assert [m.name for m in matrices(model)] == ["1.weight"]


def test_a_scripted_child_is_kept() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script` is")  # deprecated, in a category that torch has changed
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4)))
    model = nn.ModuleDict({"a": scripted, "b": nn.Linear(4, 4)})
    before = copy.deepcopy(model.state_dict())
    report = fire_(model)
    assert [row.name for row in report.rows] == ["b.weight"]
    assert "TorchScript" in report.kept["a.0.weight"].reason
    assert torch.equal(model["a"].state_dict()["0.weight"], before["a.0.weight"])


def test_a_stack_of_four_dimensions_is_named() -> None:
    class Four(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.h = nn.Parameter(torch.randn(2, 4, 8, 8)), nn.Linear(8, 2)

    with pytest.warns(
        UserWarning, match=r"97 % of the model's numbers are raw parameters of more than three dim.*: w\."
    ):
        fire_(Four())
    with pytest.raises(ValueError, match=r"^include='w': w is a raw kernel or stack of more than three dimensions"):
        fire_(Four(), include="w")


def test_a_loss_with_a_weight_of_its_own_is_no_master() -> None:
    """Part of a half-precision body is trained, and the rest is excluded, or trained by nobody."""
    body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).bfloat16()
    loss = nn.Linear(4, 7, bias=False)
    optimizer = torch.optim.AdamW([*body[1].parameters(), *loss.parameters()])
    assert [row.name for row in fire_(body, optimizer=optimizer, exclude="0").rows] == ["1.weight"]
    with pytest.warns(UserWarning, match="1 changed weights are in none of the given optimizers: 0.weight"):
        fire_(body, optimizer=optimizer)
    copied = torch.optim.AdamW([*body[1].parameters(), nn.Parameter(body[0].weight.detach().float() + 1)])
    fire_(body, optimizer=copied, exclude="0")
    with pytest.raises(ValueError, match=r"none holds 0.weight: .*masters=\{'0.weight': copy\}"):
        fire_(body, optimizer=copied)


def test_the_initial_weights_of_a_bare_model_fit_its_wrapper() -> None:
    bare = nn.Sequential(nn.Linear(4, 4))
    for init in (copy.deepcopy(bare.state_dict()), copy.deepcopy(nn.DataParallel(bare).state_dict())):
        for model in (bare, nn.DataParallel(bare)):
            (row,) = fire_(model, init=init, scale="match_init").rows
            assert row.name.removeprefix("module.") == "0.weight"


# ---------------------------------------------------------------------------------------------- a layer without a pass


class Spare(nn.Module):
    """Its last layer is used by no pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.spare = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x).relu())
        return out


@pytest.mark.parametrize("trigger", [lambda: EffectiveRank(below=1.0, every=1), lambda: Dormancy(above=0.0, every=1)])
def test_a_layer_that_no_pass_uses_is_no_matter(trigger: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model = Spare()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    hook = FireHook(optimizer, model, trigger())
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    assert hook.intervention.trigger.last is not None


def test_a_linear_weight_of_one_dimension_is_kept() -> None:
    class Diagonal(nn.Linear):
        def __init__(self, size: int) -> None:
            super().__init__(size, size)
            self.weight = nn.Parameter(torch.ones(size))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.bias

    model = nn.Sequential(nn.Linear(8, 8), Diagonal(8), nn.Linear(8, 4))
    assert [row.name for row in fire_(model).rows] == ["0.weight", "2.weight"]


class Noisy(nn.Module):
    """A parametrization that draws a number each time that its weight is asked for."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight + torch.rand(()) / 100


def test_reading_a_model_computes_no_parametrised_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Conv1d(8, 8, 1), nn.Linear(1, 3))
    nn.utils.parametrize.register_parametrization(model[0], "weight", Noisy())
    nn.utils.parametrizations.spectral_norm(model[2])  # its buffers are those of a power iteration
    nn.utils.parametrizations.spectral_norm(model[3])
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    matrices(model)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ------------------------------------------------------------------------------------------------------ plasticity_gap


def gap(make: Callable[[], nn.Module], aged: nn.Module | None = None, **options: Any) -> Any:
    torch.manual_seed(1)
    aged = make() if aged is None else aged
    x = torch.randn(8, 6)
    aged(x).sum().backward()
    return plasticity_gap(aged, make, [(x, torch.randint(3, (8,)))], 3, draws=2, seed=5, **options)


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, parametrizations.weight_norm, nn.utils.spectral_norm])
def test_gap_of_a_network_with_weight_norm(norm: Callable[[nn.Module], nn.Module]) -> None:
    """Between passes it keeps a weight with a history, which no plain copy takes."""

    def make() -> nn.Module:
        return nn.Sequential(norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))

    assert len(gap(make).aged) == 2


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, lambda p: torch.optim.SGD(p, lr=0.1)])
def test_gap_with_an_optimizer_that_needs_a_closure(optimizer: Any) -> None:
    torch.manual_seed(3)
    found = gap(plain, optimizer=optimizer)
    if optimizer is torch.optim.LBFGS:
        assert max(found.fresh) < 0.1  # it has fitted eight samples


def test_gap_of_a_wrapped_network() -> None:
    torch.manual_seed(2)
    bare = plain()
    assert gap(plain, nn.DataParallel(bare)) == gap(plain, bare)


def test_gap_of_an_untrained_network_of_the_same_seed() -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=r"untrained and was drawn from the same seed.*another seed="):
        plasticity_gap(plain(), plain, [(torch.zeros(8, 6), torch.zeros(8).long())], 3)


def test_a_file_of_one_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch.randn(4, 4), tmp_path / "tensor.pt")
    assert fire.main(["audit", str(tmp_path / "tensor.pt")]) == 2
    said = capsys.readouterr().err
    assert "holds tensors without names: save a state_dict" in said
    assert len(said.strip().splitlines()) == 1
