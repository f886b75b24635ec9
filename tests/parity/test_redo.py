"""ReDo against the authors' code (tests/golden/redo.npz): scores and masks; recycling as meant and as done."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fire_core.methods import Context
from fire_core.methods.fire_paper import OutputWatch, chain, recycle_rows_, uniform
from fire_core.metrics import dormant
from fire_core.units.graph import between
from fire_core.units.recycle import recycle_, redraw_rows_
from fire_core.units.watch import mean_magnitude
from tests.parity import golden
from tests.parity.trees import module_from

META = golden.meta("redo")
DATA = golden.load("redo")
LAYERS = DATA["mask_layers"].tolist()
CHAINS = sorted({key.split(".")[0] for key in DATA if ".mask." in key and not key.startswith("contract")})


def activity(layer: str) -> Tensor:
    x = golden.tensors("redo", "act.")[layer]
    channel = 1 if x.ndim == 4 else x.ndim - 1
    return mean_magnitude(x, [d for d in range(x.ndim) if d != channel])


@pytest.mark.parametrize("layer", LAYERS)
def test_scores_and_masks(layer: str) -> None:
    seen = activity(layer)
    score = seen / (seen.mean() + META["eps"])
    torch.testing.assert_close(score, golden.tensors("redo", "score.")[layer], rtol=1e-5, atol=0)
    for tau in META["taus"]:
        expected = DATA[f"mask_tau{tau}.{layer}"]
        np.testing.assert_array_equal(dormant(seen[None], tau).numpy(), expected, f"tau {tau}")


def network() -> tuple[nn.Module, torch.optim.Adam, dict[str, Tensor]]:
    """The network after some steps of Adam, whose moments are all alive, and its weights."""
    model = module_from(golden.tensors("redo", "w_before."))
    adam = torch.optim.Adam(model.parameters(), lr=META["adam_lr"])
    for _ in range(META["opt_steps_before"]):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        adam.step()
    model.load_state_dict(golden.tensors("redo", "w_before."))
    return model, adam, {name: p.detach().clone() for name, p in model.named_parameters()}


def check_bound(case: str, model: nn.Module, name: str, rows: np.ndarray) -> None:
    """New values lie within 1 / sqrt(fan_in) of the layer, as stored."""
    bound = DATA.get(f"{case}.reinit_bound.{name}")
    assert (bound is not None) == rows.any()
    if bound is not None:
        layer = model.get_submodule(name.rpartition(".")[0])
        assert float(bound) == pytest.approx(layer.weight[0].numel() ** -0.5, rel=1e-6)
        drawn = model.get_parameter(name).detach()[torch.from_numpy(rows)].abs().max()
        assert 0 < drawn <= float(bound) * (1 + 1e-6)


def changed_rows(model: nn.Module, before: dict[str, Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    for name, parameter in model.named_parameters():
        yield (
            name,
            (parameter != before[name]).flatten(1).any(1).numpy()
            if parameter.ndim > 1
            else ((parameter != before[name]).numpy()),
        )


@pytest.mark.parametrize("case", CHAINS)
def test_recycling_as_the_reference_does_it(case: str) -> None:
    model, adam, before = network()
    masks = golden.tensors("redo", f"{case}.mask.")
    links = chain(model)
    links = links[next(i for i, link in enumerate(links) if link.name in masks) :]
    context = Context(0, 0, torch.Generator().manual_seed(0), optimizers=[adam])
    of_layers = [masks[link.name] for link in links if link.name in masks]
    recycle_rows_([links], of_layers, context, last_layers_kept=1 + len(links) - len(of_layers))
    steps = golden.tensors("redo", f"{case}.opt_step_after.")
    for name, rows in changed_rows(model, before):
        np.testing.assert_array_equal(rows, DATA[f"{case}.rows_reinit.{name}"], name)
        check_bound(case, model, name, rows)
        state = adam.state[model.get_parameter(name)]
        touched = any(f"{case}.returned_{way}_index.{name}" in DATA for way in ("out", "in"))
        assert touched == (steps[name] == 0)
        assert state["step"] == steps[name], name
        changed = [not (state[moment] != 0).all() for moment in ("exp_avg", "exp_avg_sq")]
        np.testing.assert_array_equal(changed, DATA[f"{case}.opt_moments_changed.{name}"], name)
        if (zeroed := DATA.get(f"{case}.outgoing_cols_zeroed.{name}")) is not None:
            columns = model.get_parameter(name).detach().transpose(0, 1).flatten(1)
            np.testing.assert_array_equal((columns == 0).all(1).numpy().repeat(len(zeroed) // len(columns)), zeroed)


@pytest.mark.parametrize("case", CHAINS)
def test_recycling_as_it_is_meant(case: str) -> None:
    """The same units through the graph: rows drawn, columns zero, moments of both forgotten and no others."""
    model, adam, before = network()
    masks = golden.tensors("redo", f"{case}.mask.")
    layers = [name for name, _ in model.named_children()]
    pairs = [(a, b) for a, b in itertools.pairwise(layers) if f"{case}.intended_zero_cols.{b}.weight" in DATA]
    graph = [(between(a, getattr(model, a), getattr(model, b)), masks[a].nonzero().flatten()) for a, b in pairs]
    recycle_(graph, uniform, torch.Generator().manual_seed(0), [adam])
    columns = {f"{b}.weight": DATA[f"{case}.intended_zero_cols.{b}.weight"] for _, b in pairs}
    for name, parameter in model.named_parameters():
        rows = DATA[f"{case}.rows_reinit.{name}"]
        meant = torch.from_numpy(columns[name]) if name in columns else torch.zeros(0, dtype=torch.bool)
        moved = parameter.detach() != before[name]
        if parameter.ndim > 1:
            zero = torch.zeros_like(moved)
            zero[:, meant.nonzero().flatten()] = True
            redrawn = torch.zeros_like(moved)
            redrawn[torch.from_numpy(rows)] = True
            assert (parameter[zero] == 0).all()
            assert torch.equal(moved, redrawn | zero), name
            forgotten = redrawn | zero
        else:
            np.testing.assert_array_equal(moved.numpy(), rows, name)
            forgotten = torch.from_numpy(rows)
        for moment in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(adam.state[parameter][moment] == 0, forgotten), name
        # The reference keeps one index per tensor, and that of the columns wins (docs/paper.md, A3).
        if (index := DATA.get(f"{case}.returned_out_index.{name}")) is not None:
            np.testing.assert_array_equal(forgotten.view(len(forgotten), -1).all(1).numpy(), index, name)
        if (index := DATA.get(f"{case}.returned_in_index.{name}")) is not None:
            np.testing.assert_array_equal(forgotten.transpose(0, 1).flatten(1).all(1).numpy(), index, name)
        assert adam.state[parameter]["step"] == META["opt_steps_before"] == DATA[f"{case}.opt_step_before.{name}"]
        if parameter.ndim > 1:
            check_bound(case, model, name, rows)
        else:
            assert (parameter[torch.from_numpy(rows)] == 0).all()


def test_drawn_rows_have_the_reference_deviation() -> None:
    (name,) = {key.split(".")[1] for key in DATA if key.startswith("redraw.")}
    keys = ("bound", "expected_std", "weight_std", "bias_std")
    bound, expected, weight_std, bias_std = (float(DATA[f"redraw.{name}.{key}"]) for key in keys)
    fan_in = round(1 / bound**2)
    assert bound == pytest.approx(fan_in**-0.5, rel=1e-6)
    assert expected == pytest.approx((3 * fan_in) ** -0.5, rel=1e-6)
    layer = nn.Linear(fan_in, 400)
    redraw_rows_(layer, torch.arange(400), uniform, torch.Generator().manual_seed(0), draw_bias=True)
    assert layer.weight.std().item() == pytest.approx(expected, rel=0.03)
    assert layer.bias.std().item() == pytest.approx(expected, rel=0.12)
    assert layer.weight.std().item() == pytest.approx(weight_std, rel=0.05)
    assert layer.bias.std().item() == pytest.approx(bias_std, rel=0.15)


def test_what_the_reference_looks_at() -> None:
    """Rectified outputs before any norm, projections raw, shortcuts left out; in the order of execution."""
    weights = golden.tensors("redo", "hook.w.")
    model = module_from(weights)
    links = chain(model)
    assert [link.name for link in links] == DATA["hook.layers"].tolist()
    windows = golden.tensors("redo", "hook.window.")
    given = golden.tensors("redo", "hook.x")
    inputs = torch.cat([given[str(i)] for i in range(len(given))])[-META["hook_window"] :]
    watch = OutputWatch(links, lambda link, x, dims: x if link.projects else x.relu(), only_training=False)
    with watch.on(), torch.no_grad():
        for name, layer in model.named_children():
            if "shortcut" in name:
                layer(inputs)
        x = inputs
        for link in links:
            x = link.layer(x if link.layer.weight.ndim == 4 else x.flatten(1))
    assert windows.keys() == {link.name for link in links}
    for link, seen in zip(links, watch.read(), strict=True):
        torch.testing.assert_close(seen, windows[link.name], rtol=1e-5, atol=1e-6)
    assert not any(module._forward_hooks for module in model.modules())
