"""Record the public code of methods since 2024. Each recorder takes the clone's folder and returns arrays by name."""

import copy
import importlib
import itertools
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from scripts.originals.tools import Arrays, extract, numbers, perceptron


def trained(net: Any, steps: int, take: Callable[[Callable[[], Any]], None]) -> Arrays:
    """Train a network on recorded random inputs, and return the inputs and the parameters after each step.

    Args:
        net: the network, whose loss is the cross-entropy.
        steps: number of steps.
        take: `take(loss)` makes one step; `loss()` returns the loss of the step's inputs.
    """
    import torch
    from torch.nn import functional as F

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(x), y)

    record: Arrays = {"steps": steps} | numbers(net, "start.")
    for t in range(steps):
        x = torch.randn(12, 6)
        y = x[:, :3].argmax(1)
        record |= {f"x@{t}": x.numpy(), f"y@{t}": y.numpy()}
        take(partial(loss, x, y))
        record |= numbers(net, f"after@{t}.")
    return record


def stepping(optimizer: Any) -> Callable[[Callable[[], Any]], None]:
    """Return a step for `trained` with an optimizer that uses gradients."""

    def take(loss: Callable[[], Any]) -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return take


def upgd(clone: Path) -> Arrays:
    """Record steps of UPGD without noise."""
    import torch
    from torch.nn import functional as F

    optimizer = extract(
        clone / "core" / "optim" / "weight_upgd" / "first_order.py", "FirstOrderGlobalUPGD", torch=torch, F=F
    )
    torch.manual_seed(0)
    net = perceptron(6, 10, 8, 3)
    options = {"lr": 0.1, "weight_decay": 0.01, "beta_utility": 0.9, "sigma": 0.0}
    record = trained(net, 12, stepping(optimizer(net.named_parameters(), **options)))
    return record | {f"option.{key}": value for key, value in options.items()}


def clipping(clone: Path) -> Arrays:
    """Record steps of Adam with weight clipping."""
    import math

    import torch

    optimizers = extract(
        clone / "core" / "optim" / "weight_clipping.py", "InitBounds", "WeightClippingAdam", torch=torch, math=math
    )
    torch.manual_seed(0)
    net = perceptron(6, 10, 8, 3)
    options = {"zeta": 0.8}
    optimizer = optimizers.WeightClippingAdam(net.parameters(), lr=0.05, **options)
    record = trained(net, 12, lambda loss: optimizer.step(loss))
    return record | {"option.zeta": 0.8, "option.lr": 0.05}


def swr(clone: Path) -> Arrays:
    """Record gradient descent with SWR after each step, in all its forms; weights are recorded before and after SWR."""
    import torch
    from torch.nn import functional as F

    swr_code = extract(
        clone / "src" / "swr_functions" / "selective_weight_reinitialization.py",
        "compute_utility", "prune_weights", "SelectiveWeightReinitialization", torch=torch,
        np=SimpleNamespace(random=np.random.RandomState(0)), Optimizer=torch.optim.Optimizer,
    )  # fmt: skip
    options: Arrays = {"every": 2, "steps": 6, "threshold": 0.3, "proportional": 0.15, "decay": 0.6}
    record = dict(options)
    for utility, pruning, decay in itertools.product(
        ("gradient", "magnitude"), ("threshold", "proportional"), (0.0, options["decay"])
    ):
        case = f"{utility}.{pruning}.{'running' if decay else 'now'}."
        torch.manual_seed(0)
        # With ReLU whole rows would have no gradient, and which of several equal utilities is the least is open.
        layers = enumerate(perceptron(6, 8, 5, 3))
        net = torch.nn.Sequential(*(torch.nn.Tanh() if i % 2 else layer for i, layer in layers))
        count = len(list(net.parameters()))
        method = swr_code.SelectiveWeightReinitialization(
            net.parameters(), utility, pruning, [0.0] * count, [0.5] * count, [True] * count,
            options["every"], options[pruning], decay,
        )  # fmt: skip
        descent = torch.optim.SGD(net.parameters(), lr=0.1)
        record |= numbers(net, f"{case}start.")
        for t in range(options["steps"]):
            x = torch.randn(12, 6)
            y = x[:, :3].argmax(1)
            descent.zero_grad()
            F.cross_entropy(net(x), y).backward()
            descent.step()
            record |= {f"{case}x@{t}": x.numpy(), f"{case}y@{t}": y.numpy(), **numbers(net, f"{case}stepped@{t}.")}
            method.step()
            record |= numbers(net, f"{case}after@{t}.")
    return record


def trac(clone: Path) -> Arrays:
    """Record steps of Adam under TRAC, with an exact erfi in place of the clone's approximation."""
    import scipy.special
    import torch

    sys.path.insert(0, str(clone))
    module: Any = importlib.import_module("trac")
    start = module.start_trac
    # Its erfi is an approximation in float32, some per cent off near 0: the rest is compared with an exact one.
    module.erfi = lambda x: torch.from_numpy(np.asarray(scipy.special.erfi(x.double().numpy()))).float()
    torch.manual_seed(0)
    net = perceptron(6, 10, 8, 3)
    with tempfile.TemporaryDirectory() as folder:
        optimizer = start(str(Path(folder) / "log"), torch.optim.Adam, s_prev=0.2)(net.parameters(), lr=0.01)
        return trained(net, 30, stepping(optimizer)) | {"option.lr": 0.01, "option.scale": 0.2}


def cpr(clone: Path) -> Arrays:
    """Record CPR's running utility and a partial reset; of ReGraMa, which the same clone has, the score."""
    import flax
    import jax
    import jax.numpy as jnp

    folder = clone / "continual_learning"
    tools = extract(folder / "utils" / "optim.py", "expand_mask_for_weights", "gen_key_tree", jnp=jnp, jax=jax)
    names = {"jax": jax, "jnp": jnp, "flax": flax, "utils": tools}
    parts = extract(
        folder / "optim" / "cpr.py", "get_updated_utility", "calibrated_reset_weights", Callable=Callable, **names
    )
    score = extract(folder / "optim" / "regrama.py", "get_score", **names)
    draw = np.random.RandomState(0)
    shapes = {"a": (5, 8), "b": (8, 6), "output": (6, 3)}
    record: Arrays = {"rate": 0.3, "sharpness": 16.0, "threshold": 1.0, "decay": 0.9, "steps": 5}
    weights = {("net", name): jnp.asarray(draw.randn(*shape), "f") for name, shape in shapes.items()}
    record |= {f"before.{name}": np.asarray(weights["net", name]) for name in shapes}
    utility = {("net", name): jnp.ones(shapes[name][-1]) for name in ("a", "b")}
    for t in range(record["steps"]):
        for name in ("a", "b"):
            gradient = draw.randn(*shapes[name]).astype("f") * draw.rand(shapes[name][-1]).astype("f") ** 3
            utility["net", name] = parts.get_updated_utility(
                jnp.asarray(gradient), utility["net", name], record["decay"]
            )
            record |= {f"gradient@{t}.{name}": gradient, f"utility@{t}.{name}": np.asarray(utility["net", name])}
            record[f"score@{t}.{name}"] = np.asarray(score(jnp.asarray(gradient)))
    keys = {key: jax.random.PRNGKey(0) for key in weights}
    for transform, suffix in {"sigmoid": "", "exp": ".exp", "softplus": ".softplus", "linear": ".linear"}.items():
        after, _ = parts.calibrated_reset_weights(
            keys, dict(weights), utility, lambda key, shape: jnp.full(shape, 0.5), record["rate"],
            record["sharpness"], record["threshold"], transform,
        )  # fmt: skip  # 0.5 in the place of random weights
        record |= {f"after{suffix}.{name}": np.asarray(after["net", name]) for name in shapes}
    return record


def flax_layers(draw: np.random.RandomState, *sizes: int) -> dict[str, Arrays]:
    """Draw weights of linear layers, as flax holds them."""
    return {
        f"layer_{i}": {"kernel": draw.randn(a, b).astype("f") / a**0.5, "bias": draw.randn(b).astype("f") * 0.1}
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    }


def flat(tree: Any, prefix: str) -> Arrays:
    """Return the arrays of a flax tree of layers by their names."""
    return {f"{prefix}{layer}.{name}": np.asarray(v) for layer, entry in tree.items() for name, v in entry.items()}


def l2_er(clone: Path) -> Arrays:
    """Record steps of gradient ascent on the effective rank of a perceptron's two hidden layers."""
    import jax
    import jax.numpy as jnp

    path = clone / "permuted_mnist" / "train_permuted_mnist.py"
    parts = extract(path, "effective_rank", "effective_rank_loss", jnp=jnp)

    def apply(params: Any, x: Any) -> Any:
        features = {"layer_0": None}
        for i in range(2):
            layer = params[f"layer_{i}"]
            features[f"layer_{i + 1}"] = x = jax.nn.relu(x @ layer["kernel"] + layer["bias"])
        return None, features

    agent = SimpleNamespace(network=SimpleNamespace(apply=apply), effective_rank=partial(parts.effective_rank, None))
    draw = np.random.RandomState(0)
    params: Any = flax_layers(draw, 6, 10, 8)
    record: Arrays = {"lr": 0.05, "steps": 5} | flat(params, "start.")
    for t in range(record["steps"]):
        x = draw.randn(12, 6).astype("f")
        loss, gradient = jax.value_and_grad(partial(parts.effective_rank_loss, agent))(params, x)
        params = jax.tree_util.tree_map(lambda p, g: p - record["lr"] * g, params, gradient)  # noqa: B023
        record |= {f"x@{t}": x, f"rank@{t}": -np.asarray(loss), **flat(params, f"after@{t}.")}
    return record


def spectral(clone: Path) -> Arrays:
    """Record the penalty (target 1, many power iterations) of layers without biases and of a layer norm's scale."""
    import jax
    import jax.numpy as jnp

    path = clone / "imagenet" / "train_imagenet.py"
    penalty = extract(path, "power_iteration", "compute_spectral_regularization", jnp=jnp, jax=jax)
    draw, coef = np.random.RandomState(0), 0.3
    params = flax_layers(draw, 6, 10, 8)
    params["layer_0"]["bias"] *= 0
    params["layer_1"]["bias"] *= 0
    params["conv"] = {"kernel": draw.randn(3, 3, 2, 5).astype("f"), "bias": np.zeros(5, "f")}
    params["ln"] = {"scale": draw.rand(10).astype("f"), "bias": np.zeros(10, "f")}
    loss = partial(
        penalty.compute_spectral_regularization, k=2, target=1.0, reg_strength=coef, num_iter=1000
    )  # its converged estimates are the singular values
    value, gradient = jax.value_and_grad(loss)(params)
    return {"coef": coef, "loss": np.asarray(value)} | flat(params, "before.") | flat(gradient, "gradient.")


def c_chain(clone: Path) -> Arrays:
    """Record double DQN with C-CHAIN on random transitions; the reference batch is that of the second update before."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    targets: list[Any] = []
    draw = np.random.RandomState(0)

    def mse_loss(a: Any, b: Any) -> Any:
        targets.append(b.detach())
        return F.mse_loss(a, b)

    class Replay:
        def __init__(self, buffer_size: int) -> None:
            self.batches: list[Any] = []
            self.reference = False

        def sample(self, size: int) -> Any:
            if self.reference:
                self.reference = False
                return self.batches[-3]
            batch = SimpleNamespace(
                state=draw.randn(size, 1, 1, 6).astype("f"), next_state=draw.randn(size, 1, 1, 6).astype("f"),
                action=draw.randint(3, size=size), reward=draw.randn(size).astype("f"),
                is_terminal=draw.rand(size) < 0.2,
            )  # fmt: skip
            self.batches.append(batch)
            self.reference = len(self.batches) > 2
            return batch

    torch.manual_seed(0)
    agent = extract(
        clone / "crl_minatar" / "agents" / "double_dqn_c_chain.py", "DoubleDQN_CCHAIN", torch=torch, np=np, copy=copy,
        F=SimpleNamespace(mse_loss=mse_loss), replay_buffer=Replay, wandb=SimpleNamespace(log=lambda *_, **__: None),
        QNetwork=lambda *_: nn.Sequential(nn.Flatten(), *perceptron(6, 10, 8, 3)),
    )((1, 1, 6), 3, torch.device("cpu"), learning_rate=0.01, hard_replacement_interval=10**9, batch_size=12,
      target_rel_loss_scale=0.5, reg_his_idx=10**9)  # fmt: skip
    record: Arrays = {"steps": 14, "warmup": 8, "scale": 0.5, "coef": 2.0, "lr": 0.01} | numbers(agent.Q_net, "start.")
    agent.update_cnt, agent.reg_coef = 10_000 - record["warmup"], record["coef"]
    for t in range(record["steps"]):
        agent.reg_his_idx = 2 if t >= 2 else 10**9  # from the third step on there is a batch of the second one before
        targets.clear()
        agent.train()
        batch = agent.replay_buffer.batches[-1]
        record |= {f"x@{t}": batch.state[:, 0, 0], f"action@{t}": batch.action, f"target@{t}": targets[0][:, 0].numpy()}
        record |= {f"coefficient@{t}": float(agent.reg_coef), **numbers(agent.Q_net, f"after@{t}.")}
    return record
