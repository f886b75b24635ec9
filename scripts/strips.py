"""Draw frames of trained agents, a strip for each run, as docs/use_a_run.md shows them.

    python -m scripts.strips runs/dqn/<base> runs/dqn/<fire> out=both.png

Each strip has eight frames, evenly spaced over the first episode, as `python -m rl.play RUN strip=` writes them. Its
title has the method, the return of that episode, and the mean over ten. `modules=mine` as in `rl.play`, for one module.
"""

import os
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from analysis import style
from harness import load
from harness.config.errors import ConfigError
from rl.play import GAMES, Options, play

EPISODES = 10


def main(words: list[str]) -> None:
    """Draw the runs that the command line names."""
    folders = [word for word in words if not word.startswith(("out=", "modules="))]
    outputs = [word.removeprefix("out=") for word in words if word.startswith("out=")]
    modules = [word.removeprefix("modules=") for word in words if word.startswith("modules=")]
    if not folders or len(outputs) != 1:
        sys.exit(str(__doc__))
    os.environ.setdefault("MUJOCO_GL", "egl")  # as in rl.play: draw without a display
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # else SDL takes SIGTERM, and nothing happens
    style.use()
    figure, axes = plt.subplots(len(folders), 1, figsize=(style.PAGE, 0.85 * len(folders)), squeeze=False)
    for ax, folder in zip(axes[:, 0], folders, strict=True):
        strip, returns, method = strip_of(folder, modules)
        ax.imshow(strip)
        ax.set_axis_off()
        ax.set_title(
            f"{style.name(method)}: return {returns[0]:.0f} in this episode, "
            f"{np.mean(returns):.0f} in mean over {len(returns)} episodes"
        )
    figure.tight_layout(pad=0.3)
    figure.savefig(outputs[0], dpi=200)
    print(f"wrote {outputs[0]}")


def strip_of(folder: str, modules: list[str]) -> tuple[np.ndarray, list[float], str]:
    """Return an agent's strip (height, width, channels), the returns of its episodes, and its method's name."""
    trained = load(folder, modules=modules)
    if trained.program not in GAMES:
        raise ConfigError(f"{folder} is of {trained.program}.train: only agents play")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "strip.png"
        with GAMES[trained.program](trained, 0, trained.learner.phase, True) as game:
            returns = play(game, Options(episodes=EPISODES, strip=str(path)), None)
        return plt.imread(path), returns, trained.config.method["name"]


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ConfigError as error:
        sys.exit(f"error: {error}")
