"""What `rl.watch` shows of a DQN agent."""

from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from fire_core.methods import Net
from harness.config.build import build
from harness.config.config import resolve_device
from harness.config.errors import ConfigError
from harness.training import seeding
from rl.dqn.atari import Atari
from rl.dqn.evaluation import epsilon_greedy
from rl.dqn.task import build_network, make_env


@torch.inference_mode()
def play(trained: DictConfig, state: dict[str, Any], options: DictConfig) -> tuple[list[np.ndarray], list[float]]:
    """Play nearly greedily.

    Args:
        trained: the run's configuration.
        state: the trainer's, from a checkpoint.
        options: of `rl.watch`.

    Returns:
        Pictures (210, 160, 3), and the returns of the episodes that ended.

    Raises:
        ConfigError: the environment has no pictures.
    """
    if trained.env._target_ != "rl.dqn.atari.make":
        raise ConfigError(f"env={trained.env.name} has no pictures; rl.watch shows Atari games")
    device = resolve_device(options.device)
    env = make_env(trained, 1, f"watch/{options.seed}")
    emulator = env.emulator
    options_of = {key: trained.env[key] for key in ("noop_max", "fire_reset", "max_frames")}
    sticky = trained.env.sticky if trained.env.sticky_per == "frame" else 0.0
    screen = Atari(trained.env.game, 1, sticky, **options_of, colour=True)  # the same game, in step with `env`

    network = load_network(trained, state, emulator.actions, (emulator.stack, *emulator.frame)).to(device)
    generator = seeding.generator(options.seed, "watch", "epsilon")
    seeds = [env.seed_of(0, 0)]
    env.begin()
    pictures, returns = [screen.reset([0], seeds)[0].copy()], list[float]()
    for _ in range(options.steps):
        greedy = network(env.observations.to(device)).argmax(1).cpu()
        env.send(epsilon_greedy(greedy, emulator.actions, options.epsilon, generator, False))
        screen.send(np.array([env.executed[0][-1]], dtype=np.int64))
        step = env.recv()
        pictures.append(screen.recv()[0][0].copy())
        returns += step.returns
        if len(returns) >= options.episodes:
            break
        if len(step.ended):
            screen.reset([0], [env.seed_of(0, env.numbers[0] - 1)] if emulator.random else None)
    return pictures, returns


def load_network(
    trained: DictConfig, state: dict[str, Any], actions: int, observation: tuple[int, ...]
) -> torch.nn.Module:
    """The Q-network with a checkpoint's weights, and whatever modules the run's method has put into it."""
    network = build_network(trained, actions, observation)
    if state["method"]:
        method = build("method", trained.method)
        method.load_state_dict(state["method"])
        method.reshape(Net({"q": network}, state["init"]))
    network.load_state_dict(state["modules"]["q"])
    return network.eval()
