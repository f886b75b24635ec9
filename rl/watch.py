"""A video of a trained agent: `python -m rl.watch run=runs/dqn/...`."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import hydra
import numpy as np
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig
from PIL import Image

from fire_core.ranges import Count, Seed, Share, within
from harness.config.checks import check_options
from harness.config.cli import job, run_program
from harness.config.config import Paths
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from harness.run.reader import building, read_run

PLAYERS = {"dqn": "rl.dqn.watch", "sac": "rl.sac.watch"}  # by program; each has a function `play`


@dataclass
class WatchConfig:
    """Options of `rl.watch`; `conf/watch.yaml` says what they mean."""

    program: str = "rl.watch"
    run: str | None = None
    out: str | None = None
    steps: Count = 1500
    episodes: Count = 1
    epsilon: Share = 0.001
    seed: Seed = 0
    fps: Annotated[int, within(1, 1000)] = 15
    device: str = "cpu"
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
        trained, state = read_run(folder, tuple(PLAYERS), config.trust)
        player: Any = importlib.import_module(PLAYERS[trained.program])
        with building(folder):
            frames, returns = player.play(trained, state, config)
        write_video(out, frames, config.fps)
        values = ", ".join(f"{value:g}" for value in returns) or "no episode ended"
        print(f"{out}: {len(frames)} steps; returns: {values}")
        outcome.state = "done"


def write_video(path: Path, frames: Iterable[np.ndarray], fps: int) -> None:
    """Write pictures (height, width, 3) of bytes as a GIF.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    first, *rest = [Image.fromarray(frame).quantize(64) for frame in frames]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # a link in a folder of someone else's would lead to a file of the user's
        first.save(path, "GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)
    except OSError as error:
        raise ConfigError(f"out={path}: {error.strerror or error}") from None


if __name__ == "__main__":
    run_program(main, "watch")
