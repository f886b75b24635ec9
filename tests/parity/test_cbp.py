"""Continual backpropagation as in the authors' code (tests/golden/cbp.npz): bookkeeping, effects, windows."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fire_core.methods.fire_paper import FirePaperCBP, Link, OutputWatch, chain, he_normal
from tests.parity import golden
from tests.parity.trees import module_from

META = golden.meta("cbp")
DATA = golden.load("cbp")
NETWORKS = sorted({key.split(".")[0] for key in DATA if ".w0." in key})
RTOL = 1e-5


def pairs(name: str) -> dict[str, str]:
    return dict(pair.split("->") for pair in DATA[name].tolist() if pair != "-")


def build(network: str) -> tuple[nn.Module, list[Link]]:
    """The network and its chain; a max-pool is not among its arrays, so it is put in by its name."""
    model = module_from(golden.tensors("cbp", f"{network}.w0."))
    links = chain(model)
    norms = pairs(f"{network}.bn_of")
    for link in links:
        assert link.norm is (getattr(model, norms[link.name]) if link.name in norms else None)
    return model, links


def reference(links: list[Link]) -> FirePaperCBP:
    return FirePaperCBP([links], META["replacement_rate"], META["maturity_threshold"], META["decay_rate"], {})


def steps_of(network: str) -> int:
    return len({key for key in DATA if key.startswith(f"{network}.t") and ".mean_feature_mag." in key}) // len(
        DATA[f"{network}.in_layers"]
    )


def features(cbp: FirePaperCBP, network: str, t: int) -> list[Tensor]:
    """Mean |feature| of the given windows, which are pooled already."""
    result = []
    for link in cbp.links:
        x = golden.tensors("cbp", f"{network}.feat.{link.name}.t")[str(t)]
        channel = 1 if x.ndim == 4 else x.ndim - 1
        result.append(cbp.reduce(link, x, [d for d in range(x.ndim) if d != channel]))
    return result


@pytest.mark.parametrize("network", NETWORKS)
def test_pairs_of_layers(network: str) -> None:
    model, links = build(network)
    cbp = reference(links)
    assert [link.name for link in cbp.links] == DATA[f"{network}.in_layers"].tolist()
    names = {module: name for name, module in model.named_modules()}
    readers = {link.name: names[r] for link, r in zip(cbp.links, cbp.readers, strict=True) if r is not None}
    assert readers == pairs(f"{network}.out_of")


@pytest.mark.parametrize("network", NETWORKS)
def test_every_step(network: str) -> None:
    model, links = build(network)
    cbp = reference(links)
    aliased = {link.name: False for link in cbp.links}  # without a reader, magnitude is utility from then on
    for t in range(steps_of(network)):
        model.load_state_dict(golden.tensors("cbp", f"{network}.w0."))
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        chosen = cbp.update(features(cbp, network, t), torch.Generator().manual_seed(t))
        for i, link in enumerate(cbp.links):
            at = f"{network}.t{t}.{{}}.{link.name}"
            replaced = np.zeros_like(DATA[at.format("replaced_out_features")])
            replaced[chosen[i].numpy()] = True
            np.testing.assert_array_equal(replaced, DATA[at.format("replaced_out_features")], at)
            rows = (link.layer.weight != before[f"{link.name}.weight"]).flatten(1).all(1)
            np.testing.assert_array_equal(rows.numpy(), DATA[at.format("replaced_in_units")], at)
            close(cbp.state["magnitude"][i], DATA[at.format("mean_feature_mag")])
            assert cbp.state["debt"][i] == pytest.approx(float(DATA[at.format("accumulator")]), abs=1e-9)
            np.testing.assert_array_equal(cbp.state["age"][i].numpy(), DATA[at.format("ages_after")])
            if cbp.utility[i] is None:
                assert not DATA[at.format("util")].any(), at  # as the reference starts, until something is replaced
            elif len(chosen[i]) or aliased[link.name]:
                close(cbp.utility[i], DATA[at.format("util")])
            aliased[link.name] |= cbp.readers[i] is None and len(chosen[i]) > 0
        if t == DATA[f"{network}.effect_step"]:
            check_effect(network, model, before)


def check_effect(network: str, model: nn.Module, before: dict[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        if (rows := DATA.get(f"{network}.effect.rows_redrawn.{name}")) is not None:
            np.testing.assert_array_equal((tensor != before[name]).flatten(1).all(1).numpy(), rows, name)
            zero = (tensor[torch.from_numpy(~rows)] == 0).transpose(0, 1).flatten(1).all(1)
            if not rows.all():  # of no rows, all columns or none are zero
                np.testing.assert_array_equal(zero.numpy(), DATA[f"{network}.effect.cols_zero.{name}"], name)
        if (after := DATA.get(f"{network}.effect.after.{name}")) is not None:
            close(tensor, after)


@pytest.mark.parametrize(
    ("network", "layer"), [(net, layer) for net in NETWORKS for layer in DATA[f"{net}.in_layers"].tolist()]
)
def test_deviation_of_new_rows(network: str, layer: str) -> None:
    fan_in = int(np.prod(DATA[f"{network}.w0.{layer}.weight"].shape[1:]))
    assert float(DATA[f"{network}.reinit_std.{layer}"]) == pytest.approx((2 / fan_in) ** 0.5, rel=1e-6)
    drawn = he_normal(nn.Linear(fan_in, 1), (4000,), torch.Generator().manual_seed(0))
    assert drawn.std().item() == pytest.approx(float(DATA[f"{network}.reinit_std.{layer}"]), rel=0.04)


def test_windows_are_raw_outputs_pooled_where_a_pool_follows() -> None:
    """The stored passes through the whole network in train mode, and what the hooks make of each layer."""
    model = module_from(golden.tensors("cbp", "hook.w."))
    names = {key.removeprefix("hook.w.") for key in DATA if key.startswith("hook.w.")}
    (network,) = [net for net in NETWORKS if names == set(golden.tensors("cbp", f"{net}.w0."))]
    links, pooled, norms = chain(model), set(pairs(f"{network}.pool_of")), pairs(f"{network}.bn_of")
    for link in links:
        link.pool = nn.MaxPool2d(2) if link.name in pooled else None
        if link.layer.weight.ndim == 4:
            link.layer.padding = tuple(k // 2 for k in link.layer.kernel_size)
    watch = OutputWatch(links, lambda link, x, dims: x if link.pool is None else link.pool(x), only_training=False)
    seen: dict[str, list[Tensor]] = {link.name: [] for link in links}
    given = golden.tensors("cbp", "hook.x")
    with watch.on(), torch.no_grad():
        for i in range(len(given)):
            x = given[str(i)]
            for link in links:
                x = link.layer(x if link.layer.weight.ndim == 4 else x.flatten(1))
                if link.name in norms:
                    norm = getattr(model, norms[link.name])
                    x = F.batch_norm(x, None, None, norm.weight, norm.bias, training=True, eps=norm.eps)
                x = x.relu() if link.pool is None else link.pool(x.relu())
            for link, window in zip(links, watch.read(), strict=True):
                seen[link.name].append(window)
    windows = golden.tensors("cbp", "hook.window.")
    assert list(windows) == DATA[f"{network}.in_layers"].tolist()
    for name, window in windows.items():
        mine = torch.cat(seen[name])[-META["hook_window"] :]
        torch.testing.assert_close(mine, window, rtol=RTOL, atol=1e-5)


def close(actual: Tensor, expected: np.ndarray) -> None:
    expected = torch.from_numpy(np.asarray(expected))
    torch.testing.assert_close(actual.detach(), expected, rtol=RTOL, atol=1e-7)
