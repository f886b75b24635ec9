"""A video of a trained agent: `python -m rl.watch run=runs/dqn/...`."""

import contextlib
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from PIL import Image
from torch import nn

from fire_core.methods import Net
from fire_core.ranges import Count, Seed
from harness.config.build import build
from harness.config.checks import check_options
from harness.config.cli import job, run_program
from harness.config.config import Paths
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.run.reader import building, read_run
from harness.training import seeding
from rl.common.task import build_benchmark
from rl.dqn.changing import Changing
from rl.dqn.evaluation import epsilon_greedy
from rl.dqn.task import build_network, make_env
from rl.sac.control import Statistics
from rl.sac.update import normalised
from rl.sac.workers import Tasks, Worker

SIDE = 240  # pixels
EPSILON = 0.001  # of DQN, as in the paper's evaluation
MILLISECONDS = 67  # a decision: the game's own speed
NO_OPENGL = (
    "nothing can be drawn here: set MUJOCO_GL=egl (the driver of a GPU) or MUJOCO_GL=osmesa (the CPU; it needs "
    "libosmesa6 from the system's packages) before starting Python"
)


@dataclass
class WatchConfig:
    """Options of `rl.watch`; `conf/watch.yaml` says what they mean."""

    program: str = "rl.watch"
    run: str | None = None
    out: str | None = None
    steps: Count = 1500
    episodes: Count = 1
    seed: Seed = 0
    trust: bool = False
    paths: Paths | None = None


ConfigStore.instance().store(name="watch_schema", node=WatchConfig)


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="watch")
def main(config: DictConfig) -> None:
    """Let the agent play, and write what it saw and did."""
    with job(config) as outcome:
        if config.run is None:
            raise ConfigError("run= is needed: a folder below runs/dqn or runs/sac")
        check_options(config)
        folder = Path(config.run)
        out = Path(config.out) if config.out else folder / "agent.gif"
        if out.suffix != ".gif":
            raise ConfigError(f"out={out} must end in .gif")
        trained, state = read_run(folder, ("dqn", "sac"), config.trust)
        with building(folder):
            pictures, returns = play(trained, state, config)
        write_video(out, pictures)
        values = ", ".join(f"{value:g}" for value in returns) or "no episode ended"
        print(f"{out}: {len(pictures)} steps; returns: {values}")
        outcome.state = "done"


@torch.inference_mode()
def play(trained: DictConfig, state: dict[str, Any], options: DictConfig) -> tuple[list[np.ndarray], list[float]]:
    """A picture of each step, and the returns of the episodes that ended.

    Args:
        trained: the run's configuration.
        state: the trainer's, from a checkpoint.
        options: of `rl.watch`.

    Raises:
        ConfigError: the environment has no pictures, or nothing can be drawn on this machine.
    """
    played = (play_dqn if trained.program == "dqn" else play_sac)(trained, state, options.seed)
    pictures, returns = list[np.ndarray](), list[float]()
    for shown, ended in itertools.islice(played, options.steps + 1):
        pictures.append(shown)
        returns += ended
        if len(returns) >= options.episodes:
            break
    return pictures, returns


def play_dqn(trained: DictConfig, state: dict[str, Any], seed: int) -> Iterator[tuple[np.ndarray, list[float]]]:
    """The frames that a nearly greedy agent sees, (84, 84), in the task in which the checkpoint was written."""
    env = make_env(trained, 1, f"watch/{seed}")
    emulator = env.emulator
    if len(emulator.frame) != 2:
        raise ConfigError(f"env={trained.env.name} has no pictures; rl.watch shows Atari games")
    network = build_network(trained, emulator.actions, (emulator.stack, *emulator.frame))
    load_weights(network, "q", trained, state)
    if isinstance(emulator, Changing):
        emulator.begin_task(state["phase"])
    generator = seeding.generator(seed, "watch", "epsilon")
    yield env.begin()[0].numpy(), []
    while True:
        greedy = network(env.observations).argmax(1)
        env.send(epsilon_greedy(greedy, emulator.actions, EPSILON, generator, False))
        step = env.recv()
        yield step.frames[0].numpy(), step.returns


def play_sac(trained: DictConfig, state: dict[str, Any], seed: int) -> Iterator[tuple[np.ndarray, list[float]]]:
    """What the policy's mean actions do, in the task in which the checkpoint was written."""
    if "DISPLAY" not in os.environ:
        os.environ.setdefault("MUJOCO_GL", "egl")  # no window can be opened
    control, benchmark = build("env", trained.env), build_benchmark(trained)
    tasks = None if benchmark is None else Tasks(benchmark, control, trained.seed)
    statistics = Statistics(len(state["statistics"]["mean"]))
    statistics.load_state_dict(state["statistics"])
    actions = len(state["init"]["actor"]["head.mean.bias"])
    actor = build("networks", trained.networks).actor(len(statistics.mean), actions)
    load_weights(actor, "actor", trained, state)
    with contextlib.closing(Worker(control, seed, render=True, tasks=tasks)) as worker:
        worker.choose(state["phase"])
        worker.begin()
        yield picture(worker.env), []
        while True:
            x = torch.from_numpy(worker.observation)[None]
            mean, _ = actor(normalised(x, statistics.tensors(torch.device("cpu"))))
            ended = worker.step(torch.tanh(mean)[0].numpy()).ended
            yield picture(worker.env), [] if ended is None else [ended[0]]


def load_weights(network: nn.Module, name: str, trained: DictConfig, state: dict[str, Any]) -> None:
    """Give a new network a checkpoint's weights, and whatever modules the run's method has put into it."""
    if state["method"]:
        method = build("method", trained.method)
        method.load_state_dict(state["method"])
        method.reshape(Net({name: network}, {name: state["init"][name]}))
    network.load_state_dict(state["modules"][name])
    network.eval()


def picture(env: Any) -> np.ndarray:
    """What the environment looks like, (height, width, 3) of bytes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below says what is wrong
            pixels = np.asarray(env.render())
        if pixels.ndim != 3:
            raise RuntimeError("no picture came")
    except Exception as error:  # each backend of OpenGL fails in its own way
        now = f"now MUJOCO_GL={os.environ.get('MUJOCO_GL', '')}: {type(error).__name__}"
        raise ConfigError(f"{NO_OPENGL} ({now})") from error
    return pixels


def write_video(path: Path, pictures: Iterable[np.ndarray]) -> None:
    """Write pictures of bytes, (height, width) or (height, width, 3), as a GIF.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    first, *rest = [Image.fromarray(shown).resize((SIDE, SIDE)).quantize(64) for shown in pictures]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link in a folder of someone else's would lead to a file of the user's
        first.save(path, "GIF", save_all=True, append_images=rest, duration=MILLISECONDS, loop=0)
    except OSError as error:
        raise ConfigError(f"out={path}: {error.strerror or error}") from None


if __name__ == "__main__":
    run_program(main, "watch")
