"""What `rl.watch` shows of a SAC agent."""

import contextlib
import os
import warnings
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from PIL import Image

from fire_core.methods import Net
from harness.config.build import build
from harness.config.config import resolve_device
from harness.config.errors import ConfigError
from rl.common.continual import ContinualControl
from rl.sac.control import Control, Statistics
from rl.sac.networks import Actor, Networks
from rl.sac.update import normalised
from rl.sac.workers import Tasks, Worker

SIDE = 240  # pixels
NO_OPENGL = (
    "nothing can be drawn here: set MUJOCO_GL=egl (the driver of a GPU) or MUJOCO_GL=osmesa (the CPU; it needs "
    "libosmesa6 from the system's packages) before starting Python"
)


@torch.inference_mode()
def play(trained: DictConfig, state: dict[str, Any], options: DictConfig) -> tuple[list[np.ndarray], list[float]]:
    """Play the policy's mean actions.

    Args:
        trained: the run's configuration.
        state: the trainer's, from a checkpoint.
        options: of `rl.watch`; `epsilon` is of no use here.

    Returns:
        Pictures (240, 240, 3), one a decision, and the returns of the episodes that ended.

    Raises:
        ConfigError: nothing can be drawn on this machine.
    """
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")  # no window can be opened
    device = resolve_device(options.device)
    control: Control = build("env", trained.env)
    actor, statistics = load_policy(trained, state, device)
    tasks = None
    if trained.get("benchmark") is not None:  # the task in which the checkpoint was written
        tasks = Tasks(build("benchmark", trained.benchmark, ContinualControl), control, trained.seed)
    worker = Worker(control, options.seed, render=True, tasks=tasks)
    with contextlib.closing(worker):
        worker.choose(state["phase"])
        worker.begin()
        pictures, returns = [picture(worker.env)], list[float]()
        for _ in range(options.steps):
            x = torch.from_numpy(worker.observation).to(device)[None]
            mean, _ = actor(normalised(x, statistics.tensors(device)))
            stepped = worker.step(torch.tanh(mean)[0].cpu().numpy())
            pictures.append(picture(worker.env))
            if stepped.ended is not None:
                returns.append(stepped.ended[0])
                if len(returns) >= options.episodes:
                    break
    return pictures, returns


def load_policy(trained: DictConfig, state: dict[str, Any], device: torch.device) -> tuple[Actor, Statistics]:
    """The actor with a checkpoint's weights, and whatever its method has put into it; the observations' statistics."""
    networks: Networks = build("networks", trained.networks)
    weights, first = state["modules"]["actor"], state["init"]["actor"]
    size = len(state["statistics"]["mean"])
    actor = networks.actor(size, len(first["head.mean.bias"]))
    if state["method"]:
        method = build("method", trained.method)
        method.load_state_dict(state["method"])
        method.reshape(Net({"actor": actor}, {"actor": first}, "sac"))
    actor.load_state_dict(weights)
    statistics = Statistics(size)
    statistics.load_state_dict(state["statistics"])
    return actor.to(device), statistics


def picture(env: Any) -> np.ndarray:
    """What the environment looks like, (240, 240, 3) of bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says what is wrong
            pixels = np.asarray(env.render())
        if pixels.ndim != 3:
            raise RuntimeError("no picture came")
    except Exception as error:  # each backend of OpenGL fails in its own way
        now = f"now MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {type(error).__name__}"
        raise ConfigError(f"{NO_OPENGL} ({now})") from error
    return np.asarray(Image.fromarray(pixels).resize((SIDE, SIDE)))
