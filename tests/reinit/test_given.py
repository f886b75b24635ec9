"""What `fire_` says of optimizers that do not fit, of options without an effect and of running statistics."""

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fire_core import FireWarning, fire_
from fire_core.methods import Fire

ROOT = Path(__file__).parents[2]


def network() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"body": nn.Linear(6, 6), "head": nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))})


def adam(*modules: nn.Module) -> torch.optim.Adam:
    """An optimizer of these modules that has made a step."""
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


def test_an_optimizer_of_another_model_is_refused_and_nothing_is_changed():
    model, other = network(), adam(network())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for given in (other, [other], [other, adam(network())]):
        with pytest.raises(ValueError, match=r"^the optimizers hold none of the model's weights: give [^\n]*$"):
            fire_(model, optimizer=given)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert other.state
    report = fire_(model, optimizer=[other, adam(model)])
    assert (report.optimizer_states_reset, report.warnings) == (3, [])


def test_a_weight_that_no_optimizer_trains_is_projected_and_named():
    model = network()
    with pytest.warns(FireWarning, match=r"^2 changed weights are in none of the given optimizers: head\.0\.weight, "):
        report = fire_(model, optimizer=adam(model["body"]))
    assert len(report) == 3
    assert len(report.warnings) == 1
    assert "give all optimizers as a list" in str(report)
    for given in ([adam(model["body"]), adam(model["head"])], None):
        assert fire_(model, optimizer=given).warnings == []
    assert fire_(model, optimizer=adam(model["body"]), exclude=model["head"]).warnings == []
    model["head"].requires_grad_(False)
    assert fire_(model, optimizer=adam(model["body"])).warnings == [], "frozen weights are kept"
    many = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))
    with pytest.warns(FireWarning, match=r"5 changed weights .*: 1\.weight, 2\.weight, 3\.weight and 2 more\."):
        fire_(many, optimizer=adam(many[0]))


def test_the_method_gives_a_target_network_no_optimizer():
    """Agents let a method act on target networks too, which no optimizer holds."""
    from fire_core.methods import Context, Net

    model, target = network(), network()
    optimizer = adam(model)
    context = Context(1, 1, torch.Generator(), optimizers=[optimizer])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fire().at_boundary(Net.of({"model": target}), context)
        assert len(optimizer.state) == 6
        Fire().at_boundary(Net.of({"model": model}), context)
    assert len(optimizer.state) == 3


@pytest.mark.parametrize(
    "options", [{"solver": "exact"}, {"solver": "exact", "iterations": 3, "norm_init": "spectral"}]
)
def test_idle_options_of_the_method_stay_idle(options):
    """The programs refuse those of a command line; tuned tables may hold them."""
    from fire_core.methods import Context, Net

    model = network()
    done = Fire(**options).at_boundary(Net.of({"model": model}), Context(1, 1, torch.Generator()))
    assert done.weights["model"].success(1e-5)


def test_an_optimizer_in_the_solvers_place():
    model = network()
    with pytest.raises(TypeError, match=r"^solver is an optimizer \(Adam\): give it as optimizer=$"):
        fire_(model, adam(model))


def test_weights_made_in_inference_mode_are_named():
    with torch.inference_mode():
        model = network()
        fire_(model)
    with pytest.raises(ValueError, match=r"^body\.weight was made in inference mode: build or load the model outside"):
        fire_(model)


# -------------------------------------------------------------------------------------------------- running statistics


def convolutional() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))


def test_the_report_counts_layers_whose_statistics_are_those_of_the_old_weights():
    model = convolutional()
    model(torch.randn(32, 1, 8, 8))
    before = model[1].running_var.clone()
    report = fire_(model)
    assert torch.equal(model[1].running_var, before)
    assert report.statistics == 1
    assert "kept: running statistics of 1 layers, those of the old weights" in str(report)
    assert fire_(network()).statistics == 0
    assert "statistics" not in str(fire_(network()))
    with pytest.warns(FireWarning, match="nothing was projected"):
        assert fire_(convolutional(), exclude="*").statistics == 0


def test_the_lines_of_the_documentation_estimate_them_anew():
    page = (ROOT / "docs/in_your_loop.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*update_bn[^`]*)```", page)
    model = convolutional()
    x = 3 + 2 * torch.randn(64, 1, 8, 8)
    model(x)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(64)), 32)
    names = {"model": model, "optimizer": adam(model), "loader": loader}
    exec(code, names)
    inner: Tensor = model[0](x)
    assert torch.allclose(model[1].running_mean, inner.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model[1].running_var, inner.var((0, 2, 3)), rtol=0.05)
    assert model[1].momentum == 0.1
