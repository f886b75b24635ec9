"""See a SAC policy move: `python -m rl.watch_sac run=runs/sac/...`."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from fire_core.harness.build import build
from fire_core.harness.checkpoint import load_newest
from fire_core.harness.cli import job, run_program
from fire_core.harness.config import Paths, resolve_device
from fire_core.harness.errors import ConfigError
from fire_core.methods import Net
from rl.control import Control, Statistics, Worker
from rl.sac_task import SacConfig  # noqa: F401  registers the schema
from rl.sac_update import normalised
from rl.simba import Actor, Networks

NO_OPENGL = (
    "nothing can be drawn here: set MUJOCO_GL=egl (the driver of a GPU) or MUJOCO_GL=osmesa (the CPU; it needs "
    "libosmesa6 from the system's packages) before starting Python"
)


@dataclass
class WatchConfig:
    """Options of `rl.watch_sac`; `conf/watch_sac.yaml` tells what they mean."""

    program: str = "watch_sac"
    run: str | None = None
    out: str | None = None
    episodes: int = 1
    seconds: float = 20.0
    size: int = 240
    every: int = 2
    seed: int = 0
    device: str = "auto"
    paths: Paths | None = None


ConfigStore.instance().store(name="watch_sac_schema", node=WatchConfig)


@hydra.main(version_base="1.3", config_path="../conf", config_name="watch_sac")
def main(config: DictConfig) -> None:
    """Write the animation and tell the returns."""
    with job(config) as outcome:
        if config.run is None:
            raise ConfigError("run= is needed: a folder below runs/sac")
        for option in ("episodes", "seconds", "size", "every"):
            if not config[option] > 0:
                raise ConfigError(f"{option} must be positive, got {config[option]}")
        if "DISPLAY" not in os.environ:
            os.environ.setdefault("MUJOCO_GL", "egl")  # no window can be opened
        folder = Path(config.run)
        out = folder / "watch.gif" if config.out is None else Path(config.out)
        policy = Policy(folder, resolve_device(config.device))
        frames, returns = play(policy, config)
        first, *rest = (Image.fromarray(frame).resize((config.size, config.size)) for frame in frames)
        milliseconds = round(1000 * policy.seconds_each * config.every)
        first.save(out, save_all=True, append_images=rest, duration=milliseconds, loop=0)
        print(f"{out}: {len(frames)} pictures; returns {', '.join(f'{total:.1f}' for total in returns)}")
        outcome.state = "done"


class Policy:
    """The actor of a run's newest checkpoint.

    Args:
        folder: of the run.
        device: where it computes.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        if not (folder / "config.yaml").exists():
            raise ConfigError(f"run={folder}: there is no config.yaml in it")
        trained = OmegaConf.load(folder / "config.yaml")
        assert isinstance(trained, DictConfig)
        if trained.get("program") != "sac":
            raise ConfigError(f"run={folder} is of {trained.get('program')}, not of sac")
        state = load_state(folder, device)
        self.device = device
        self.control: Control = build("env", trained.env)
        networks: Networks = build("networks", trained.networks)
        weights = state["modules"]["actor"]
        actions = weights["head.mean.bias" if "head.mean.bias" in weights else "head.mean.old.bias"].numel()
        self.actor: Actor = networks.actor(len(state["statistics"]["mean"]), actions).to(device)
        method = build("method", trained.method)
        if state["method"] is not None:
            method.load_state_dict(state["method"])
            method.reshape(Net({"actor": self.actor}, {"actor": state["init"]["actor"]}, "sac"))
        self.actor.load_state_dict(weights)
        self.statistics = Statistics(len(state["statistics"]["mean"]))
        self.statistics.load_state_dict(state["statistics"])
        self.seconds_each = 0.02  # a decision's; known once there is an environment

    @torch.inference_mode()
    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """The mean action, (actions,)."""
        x = torch.from_numpy(observation).to(self.device)[None]
        mean, _ = self.actor(normalised(x, self.statistics.tensors(self.device)))
        action: np.ndarray = torch.tanh(mean)[0].cpu().numpy()
        return action


def load_state(folder: Path, device: torch.device) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint, of a run or of a shared first half."""
    state = load_newest(folder / "checkpoints", stored_config(folder), device)
    if state is None:
        raise ConfigError(f"run={folder} has no checkpoint that can be read")
    trainer: dict[str, Any] = state["trainer"]
    return trainer


def stored_config(folder: Path) -> dict[str, Any]:
    """What the newest checkpoint says that it is of."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))
    if not newest:
        raise ConfigError(f"run={folder} has no checkpoint")
    config: dict[str, Any] = torch.load(newest[-1], map_location="cpu", weights_only=True)["config"]
    return config


def play(policy: Policy, config: DictConfig) -> tuple[list[np.ndarray], list[float]]:
    """Pictures (height, width, 3) of the episodes, and their returns as far as they were played.

    Raises:
        ConfigError: nothing can be drawn on this machine.
    """
    frames, returns = [], []
    for episode in range(config.episodes):
        worker = Worker(policy.control, config.seed + episode, render=True)
        dt = getattr(worker.env.unwrapped, "dt", None) if hasattr(worker.env, "unwrapped") else worker.env.dt
        policy.seconds_each = float(dt or 0.02) * policy.control.action_repeat
        total = 0.0
        for number in range(round(config.seconds / policy.seconds_each)):
            if number % config.every == 0:
                frames.append(picture(worker.env))
            stepped = worker.step(policy(worker.observation))
            total += stepped.reward
            if stepped.ended is not None:
                break
        returns.append(total)
        worker.env.close()
    return frames, returns


def picture(env: Any) -> np.ndarray:
    """What the environment looks like, (height, width, 3) of bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what goes wrong is told below
            pixels: np.ndarray = np.asarray(env.render())
        if pixels.ndim != 3:
            raise RuntimeError("no picture came")
    except Exception as error:  # each backend of OpenGL fails in its own way
        now = f"now MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {type(error).__name__}"
        raise ConfigError(f"{NO_OPENGL} ({now})") from error
    return pixels


if __name__ == "__main__":
    run_program(main, "watch_sac")
