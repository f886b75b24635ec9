"""Record the public code of methods that the FIRE paper compares with.

Each recorder takes the clone's folder and returns arrays by name.
"""

import copy
import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from scripts.originals.tools import Arrays, extract, numbers, perceptron


def cbp(clone: Path) -> Arrays:
    """Record CBP's utilities, ages and weights over steps of gradient descent."""
    import torch
    from torch.nn import functional as F

    sys.path.insert(0, str(clone))
    GnT = importlib.import_module("lop.algos.gnt").GnT
    torch.manual_seed(0)
    net, steps = perceptron(6, 10, 8, 3), 30
    options = {"replacement_rate": 0.05, "decay_rate": 0.9, "maturity_threshold": 5}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    test = GnT(net, "relu", optimizer, accumulate=True, **options)
    record: Arrays = {f"option.{key}": value for key, value in options.items()} | {"steps": steps}
    record |= numbers(net, "start.")
    for t in range(steps):
        x, y = torch.randn(12, 6), torch.randint(3, (12,))
        record |= {f"x@{t}": x.numpy()}
        features = [net[:2](x), net[:4](x)]
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        record |= numbers(net, f"stepped@{t}.")
        test.gen_and_test(features)
        record |= numbers(net, f"after@{t}.")
        for i in range(2):
            record |= {f"utility@{t}.{i}": test.util[i].numpy().copy(), f"age@{t}.{i}": test.ages[i].numpy().copy()}
    return record


def muon(clone: Path) -> Arrays:
    """Record Muon's updates of a wide, a tall and a convolutional weight."""
    import torch
    from torch import nn

    Muon = extract(
        clone / "muon.py", "zeropower_via_newtonschulz5", "muon_update", "SingleDeviceMuon", torch=torch
    ).SingleDeviceMuon
    torch.manual_seed(0)
    record: Arrays = {"lr": 0.02}
    for name, shape in {"wide": (6, 20), "tall": (24, 6), "conv": (8, 5, 3, 3)}.items():
        parameter = nn.Parameter(torch.zeros(shape))
        optimizer = Muon([parameter], lr=0.02)
        for t in range(3):
            parameter.grad = torch.randn(shape)
            record[f"gradient@{t}.{name}"] = parameter.grad.numpy().copy()
            optimizer.step()
            record[f"parameter@{t}.{name}"] = parameter.detach().numpy().copy()
    return record


def parseval(clone: Path) -> Arrays:
    """Record the loss and gradients of the Parseval penalty."""
    import torch

    agent = SimpleNamespace(init_gain=None, parseval_norm=False, parseval_num_groups=1)
    penalty = extract(clone / "parseval_reg" / "agent.py", "parseval_reg_network", torch=torch, self=agent)
    torch.manual_seed(0)
    net, width, coef = perceptron(5, 32, 32, 3), 32, 1e-3
    names = {"0.weight": "linear_orthog_1.weight", "2.weight": "linear_orthog_2.weight"}  # as the clone builds it
    loss = coef * (64 / width) ** 2 * penalty((names.get(n, f"other.{n}"), p) for n, p in net.named_parameters())
    loss.backward()
    gradients = {f"gradient.{n}": p.grad.numpy() for n, p in net.named_parameters() if p.grad is not None}
    return numbers(net, "before.") | gradients | {"loss": loss.item(), "coef": coef}


def dash(clone: Path) -> Arrays:
    """Record the weights before and after DASH shrinks them."""
    import torch
    from einops import rearrange
    from torch import nn

    cuda_free = SimpleNamespace(mark_step=lambda: None)
    shrink = extract(
        clone / "utils" / "train_utils.py", "dash", torch=torch, nn=nn, copy=copy, rearrange=rearrange, htcore=cuda_free
    )
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4)).eval()
    options = {"alpha": 0.3, "lambda": 0.05}
    arguments = SimpleNamespace(dash_alpha=0.3, dash_lambda=0.05, device="cpu")
    chunks = [(torch.randn(8, 3, 6, 6), torch.randint(4, (8,))) for _ in range(3)]
    record = numbers(net, "before.") | {f"option.{key}": value for key, value in options.items()}
    for i, (x, y) in enumerate(chunks):
        record |= {f"x@{i}": x.numpy(), f"y@{i}": y.numpy()}
    return record | numbers(shrink(arguments, net, nn.CrossEntropyLoss(), chunks), "after.")


def redo(clone: Path) -> Arrays:
    """Record weights and Adam's moments before and after ReDo recycles dead neurons."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax.core import freeze

    sys.path.insert(0, str(clone / "dopamine" / "labs" / "redo"))
    recyclers = importlib.import_module("weight_recyclers")
    draw = np.random.RandomState(0)
    shapes = {"conv": (3, 3, 2, 6), "dense": (24, 10), "final": (10, 4)}  # the map is 2 x 2 in front of `dense`
    layers = {
        name: {"kernel": draw.randn(*shape).astype("f"), "bias": draw.randn(shape[-1]).astype("f")}
        for name, shape in shapes.items()
    }
    seen = {"conv_act": draw.randn(16, 2, 2, 6).clip(0), "dense_act": draw.randn(16, 10).clip(0)}
    for name, dead in (("conv_act", [1, 4]), ("dense_act", [0, 3, 7])):
        seen[name][..., dead] *= 0.02
    state = (optax.ScaleByAdamState(jnp.ones([], "i"), *(freeze({"params": layers}) for _ in range(2))),)
    recycler = recyclers.NeuronRecycler(list(shapes), dead_neurons_threshold=0.1)
    intermediates = freeze({name: {"__call__": (jnp.asarray(x, "f"),)} for name, x in seen.items()})
    intermediates = freeze({"final_act": {"__call__": (jnp.ones((16, 4)),)}, **intermediates})
    after, moments = recycler.recycle_dead_neurons(
        freeze(intermediates), freeze({"params": layers}), jax.random.PRNGKey(0), state
    )
    record: Arrays = {f"seen.{name}": x.astype("f") for name, x in seen.items()}
    for name in shapes:
        for part in ("kernel", "bias"):
            record[f"before.{name}.{part}"] = layers[name][part]
            record[f"after.{name}.{part}"] = np.asarray(after["params"][name][part])
            record[f"moment.{name}.{part}"] = np.asarray(moments[0].mu["params"][name][part])
    return record | {"threshold": 0.1}


def snr(clone: Path) -> Arrays:
    """Record ages, resets and thresholds of SNR for two percentiles."""
    import jax.numpy as jnp
    import jax.random as jr

    for name, folder in (("snr", clone / "src"), ("snr.algorithms", clone / "src" / "algorithms")):
        sys.modules[name] = ModuleType(name)  # without the package's own __init__, which loads data sets
        sys.modules[name].__path__ = [str(folder)]
    original: Any = importlib.import_module("snr.algorithms.snr")
    models = importlib.import_module("snr.models")
    original.model = models.MLP(num_classes=3, width=12)
    draw, batch, steps, tasks = np.random.RandomState(0), 100, 30, 6  # its update of thresholds knows batches of 100
    record: Arrays = {"batch": batch, "steps": steps, "tasks": tasks, "every": 2, "max_age": 4000, "growth": 2}
    for percentile in (0.9, 0.99):
        params = original.model.init(jr.PRNGKey(0), jnp.ones((1, 5)))["params"]
        state = models.LearnerState(
            params=params, lr=0.1, threshold=record["max_age"] // 2, reg_str=0.0, reg_params=0, algorithm=3,
            reset_freq=0, decay_rate=0.99, threshold_reset_freq=2, threshold_percentile=percentile,
            threshold_expansion_factor=2,
        )  # fmt: skip
        ages = {f"Dense_{i}": jnp.zeros(size, dtype=int) for i, size in enumerate((12, 12, 3))}
        counts = original.initialize_neuron_ages_hist(ages, record["max_age"])
        state = original.reinitialize_tau_indiv(state, ages)
        chance = {layer: draw.choice([0.05, 0.3, 0.7, 0.95, 1.0], len(age)) for layer, age in ages.items()}
        for task in range(tasks):
            for t in range(steps):
                step = task * steps + t
                fired = {layer: draw.rand(len(p)) < p * (1 - (task == 3) * (p == 1)) for layer, p in chance.items()}
                values = {
                    name: {"__call__": (jnp.where(f, 1.0, -1.0) * jnp.ones((batch, 1)),)} for name, f in fired.items()
                }
                ages, counts = original.increment_neuron_ages_snr({"intermediates": values}, ages, counts)
                before = {layer: np.asarray(age) for layer, age in ages.items()}
                state, ages, counts = original.reset_neurons_snr(state, ages, counts, jr.PRNGKey(t), jnp.ones(5))
                for layer in ("Dense_0", "Dense_1"):
                    record[f"fired@{step}.{layer}.{percentile}"] = fired[layer]
                    record[f"reset@{step}.{layer}.{percentile}"] = before[layer] >= np.asarray(state.threshold[layer])
                    record[f"age@{step}.{layer}.{percentile}"] = np.asarray(ages[layer])
            state, counts = original.update_tau(state, counts, task + 1)
            for layer in ("Dense_0", "Dense_1"):
                record[f"threshold@{task}.{layer}.{percentile}"] = np.asarray(state.threshold[layer])
    return record
