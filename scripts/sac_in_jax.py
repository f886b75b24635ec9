"""The SAC update of `rl.sac` in JAX, to be timed beside it (`scripts/bench_sac.py --jax`): jitted whole, float32.

Needs `pip install jax`. Networks are nested dicts of arrays; the two critics are two networks.
"""

import functools
import os
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from rl.sac.networks import EPS, LOG_STD, plain_critic
from rl.sac.update import Batch, Update

Tree = Any  # nested dicts of arrays
WEIGHTS = ("actor", "critics", "temperature")


def tree_of(module: nn.Module) -> Tree:
    """A torch network's weights: the matrices transposed, as JAX multiplies from the left."""
    tree: dict[str, Any] = {}
    for name, parameter in module.named_parameters():
        *path, last = name.split(".")
        node = functools.reduce(lambda part, key: part.setdefault(key, {}), path, tree)
        value = parameter.detach().numpy().copy()
        node[last] = jnp.asarray(value.T if value.ndim == 2 else value)
    return tree


def linear(layer: Tree, x: jax.Array) -> jax.Array:
    """x W + b."""
    return x @ layer["weight"] + layer["bias"]


def layer_norm(layer: Tree, x: jax.Array) -> jax.Array:
    """Over the last dimension."""
    centred = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + EPS)
    return centred * scale * layer["weight"] + layer["bias"]


def encode(encoder: Tree, x: jax.Array) -> jax.Array:
    """SimBa's blocks."""
    x = linear(encoder["input"], x)
    for block in encoder["blocks"].values():
        x = x + linear(block["down"], jax.nn.relu(linear(block["up"], layer_norm(block["norm"], x))))
    return layer_norm(encoder["norm"], x)


def act(actor: Tree, observation: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Actions and their log-probabilities."""
    x, (low, high) = encode(actor["encoder"], observation), LOG_STD
    log_std = low + (high - low) / 2 * (1 + jnp.tanh(linear(actor["head"]["log_std"], x)))
    u = linear(actor["head"]["mean"], x) + jnp.exp(log_std) * noise
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    return jnp.tanh(u), (gaussian - 2 * (jnp.log(2.0) - u - jax.nn.softplus(-2 * u))).sum(-1)


def values(critics: list[Tree], observation: jax.Array, action: jax.Array) -> jax.Array:
    """(n, batch)."""
    x = jnp.concatenate([observation, action], -1)
    return jnp.stack([linear(critic["head"], encode(critic["encoder"], x))[:, 0] for critic in critics])


def adamw(weights: Tree, gradients: Tree, moments: tuple[Tree, Tree], step: jax.Array, lr: float, decay: float) -> Any:
    """AdamW as torch has it; new weights and moments."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradients)
    of_first, of_second = 1 - 0.9**step, 1 - 0.999**step

    def moved(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return w * (1 - lr * decay) - lr * (m / of_first) / (jnp.sqrt(v / of_second) + 1e-8)

    return jax.tree.map(moved, weights, first, second), (first, second)


@functools.partial(jax.jit, static_argnames=("gamma", "tau", "entropy"), donate_argnums=0)
def step(state: Tree, batch: Any, noise: Any, normaliser: Any, *, gamma: float, tau: float, entropy: float) -> Any:
    """One update; the new state, and losses, entropy and mean value as `rl.sac.update.Update` returns them."""
    count, moments = state["count"] + 1, dict(state["moments"])
    mean, scale = normaliser
    observation, action, reward, terminated, following = batch
    x, following = (observation - mean) * scale, (following - mean) * scale
    temperature = jnp.exp(state["temperature"])

    def of_actor(actor: Tree) -> tuple[jax.Array, jax.Array]:
        chosen, log_p = act(actor, x, noise[0])
        return (temperature * log_p - values(state["critics"], x, chosen).min(0)).mean(), -log_p.mean()

    (actor_loss, measured), gradients = jax.value_and_grad(of_actor, has_aux=True)(state["actor"])
    actor, moments["actor"] = adamw(state["actor"], gradients, moments["actor"], count, 1e-4, 1e-2)

    slope = temperature * (measured - entropy)
    log, moments["temperature"] = adamw(state["temperature"], slope, moments["temperature"], count, 1e-4, 0.0)

    chosen, log_p = act(actor, following, noise[1])
    soft = values(state["targets"], following, chosen).min(0) - jnp.exp(log) * log_p
    y = reward + gamma * (1 - terminated) * soft

    def of_critics(critics: list[Tree]) -> tuple[jax.Array, jax.Array]:
        q = values(critics, x, action)
        return jnp.square(q - y).sum(0).mean(), q.mean()

    (critic_loss, q), gradients = jax.value_and_grad(of_critics, has_aux=True)(state["critics"])
    critics, moments["critics"] = adamw(state["critics"], gradients, moments["critics"], count, 1e-4, 1e-2)
    targets = jax.tree.map(lambda slow, new: slow + tau * (new - slow), state["targets"], critics)
    new = {"actor": actor, "critics": critics, "targets": targets, "temperature": log, "moments": moments}
    return {**new, "count": count}, jnp.stack([critic_loss, actor_loss, measured, q])


class JaxSac:
    """An agent with the weights of a torch one, whose call is one update.

    Args:
        update: of `rl.sac`, at its start.
    """

    def __init__(self, update: Update) -> None:
        n = update.critic.n
        state: Tree = {
            "actor": tree_of(update.actor),
            "critics": [tree_of(plain_critic(update.critic, i)) for i in range(n)],
            "targets": [tree_of(plain_critic(update.target, i)) for i in range(n)],
            "temperature": jnp.asarray(update.temperature.log.detach().numpy()),
            "count": jnp.zeros(()),
        }
        zeros = {name: jax.tree.map(jnp.zeros_like, state[name]) for name in WEIGHTS}
        state["moments"] = {name: (tree, jax.tree.map(jnp.copy, tree)) for name, tree in zeros.items()}
        self.state = state
        self.how = {"gamma": update.gamma, "tau": update.tau, "entropy": update.target_entropy}

    def __call__(self, batch: Batch, noise: torch.Tensor, normaliser: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray:
        """One update, and its numbers; waits for both, as torch's update does on a CPU."""
        given = [tuple(np.asarray(part) for part in batch), np.asarray(noise), tuple(map(np.asarray, normaliser))]
        self.state, found = step(self.state, *given, **self.how)
        jax.block_until_ready(self.state)
        return np.asarray(found)
