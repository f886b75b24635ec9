"""Let a trained agent play, print the return of each episode, and film it.

    python -m rl.play RUN episodes=3 video=out.mp4

RUN is a run folder, runs/dqn/<name> or runs/sac/<name>. DQN takes the actions of the largest value, SAC the mean of its
policy. Options: episodes=, video= (an .mp4 of all of them), strip= (a .png of eight frames of the first), task= (of a
stream; null: the run's last), seed=, steps= (at which an episode without a time limit is cut), device=, config_dir=
(what --config-dir was, if the run was trained with it), modules= (your own that hold the run's environments: mine, or
mine,others; no other module that the run's folder names is imported).
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch

from fire_core.ranges import Count, Seed, within
from harness import load
from harness.config.config import set_up_torch
from harness.config.errors import ConfigError
from harness.config.paths import Place, expanded
from harness.trained.command import run_command
from harness.trained.load import Trained
from harness.training import seeding
from rl.common.film import Film, Picture, check_strip, rendered, save_strip, steps_a_second

STEPS_A_SECOND = 30.0  # of films, if an environment does not say its rate


@dataclass(frozen=True)
class Options:
    """Options of `rl.play`."""

    episodes: Count = 1
    video: Place | None = None
    strip: Place | None = None
    task: Annotated[int, within(0, 1_000_000)] | None = None
    seed: Seed = 0
    steps: Count = 100_000
    device: str = "cpu"
    config_dir: Place | None = None
    modules: str | None = None


@dataclass(frozen=True)
class Played:
    """The result of one step of play.

    Attributes:
        picture: the picture after the step; None if no pictures are drawn.
        ended: the return of the episode that the step ended; None if it ended none.
    """

    picture: Picture | None
    ended: float | None


@dataclass(frozen=True)
class Game:
    """An environment that a trained agent plays.

    Attributes:
        first: the picture of the first state; None if no pictures are drawn.
        step: makes a step, and begins a new episode if it ends one.
        rate: steps a second at which the environment is meant to be watched.
        cut: begins a new episode and returns the return of the unfinished one.
    """

    first: Picture | None
    step: Callable[[], Played]
    rate: float
    cut: Callable[[], float]


def main(folder: str, options: Options) -> None:
    """Print the return of each episode, and write the film and the strip."""
    draws = options.video is not None or options.strip is not None
    if draws:
        os.environ.setdefault("MUJOCO_GL", "egl")  # before MuJoCo is imported; it needs no display
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # else SDL takes SIGTERM, and nothing happens
    if options.strip is not None:
        check_strip(expanded(options.strip))
    modules = [name.strip() for name in (options.modules or "").split(",")]
    trained = load(folder, options.device, options.config_dir, modules)
    if trained.program not in GAMES:
        raise ConfigError(f"{folder} is of {trained.program}.train: only agents play")
    if options.task is not None and trained.task.benchmark is None:
        raise ConfigError(f"task={options.task}: {folder} is of one environment, not of a stream of tasks")
    set_up_torch(trained.task.device, trained.config.threads, trained.config.deterministic)
    last = trained.learner.phase
    phase = last if options.task is None else options.task
    if phase > last:
        print(f"task {phase} is new to this agent, whose last task is {last}", flush=True)
    with contextlib.ExitStack() as stack:
        game = stack.enter_context(GAMES[trained.program](trained, options.seed, phase, draws))
        film = None if options.video is None else stack.enter_context(Film(expanded(options.video), game.rate))
        returns = play(game, options, film)
    if film is not None:
        print(f"wrote {film.path}")
    if options.strip is not None:
        print(f"wrote {expanded(options.strip)}")
    print(f"mean of {len(returns)}: {np.mean(returns):.2f}")


def play(game: Game, options: Options, film: Film | None) -> list[float]:
    """Play episodes and return the return of each; film all of them, and write the strip of the first."""
    returns: list[float] = []
    pictures = [] if game.first is None else [game.first]
    if film is not None and game.first is not None:
        film.add(game.first)
    steps = 0
    while len(returns) < options.episodes:
        played = game.step()
        steps += 1
        if played.picture is not None:
            if film is not None:
                film.add(played.picture)
            # When an episode has ended the picture is the next one's first, which does not belong into the strip.
            if not returns and options.strip is not None and played.ended is None:
                pictures.append(played.picture)
        total, note = played.ended, ""
        if total is None and steps >= options.steps:
            total, note = game.cut(), f" (cut after {steps} steps)"
        if total is not None:
            returns.append(total)
            print(f"episode {len(returns)}: return {total:.2f} in {steps} steps{note}", flush=True)
            steps = 0
            if len(returns) == 1 and options.strip is not None:
                save_strip(expanded(options.strip), pictures)
    return returns


@contextlib.contextmanager
def dqn_game(trained: Trained, seed: int, phase: int, draws: bool) -> Iterator[Game]:
    """Yield the game of a DQN agent, which takes the actions of the largest value."""
    from rl.dqn.changing import Changing
    from rl.dqn.learner import greedy_actions
    from rl.dqn.task import make_env

    task, config = trained.task, trained.config
    if draws and "options" in config.env:  # gymnasium's environments; of games of pixels the agent's frames are shown
        config = replace(
            config, env=config.env | {"options": (config.env["options"] or {}) | {"render_mode": "rgb_array"}}
        )
    with contextlib.closing(make_env(config, 1, f"play/{seed}")) as env:
        if isinstance(env.emulator, Changing):
            env.emulator.begin_task(phase)
        env.begin()

        def picture() -> Picture | None:
            return env.emulator.picture(env.observations[0, -1].numpy()) if draws else None

        def step() -> Played:
            env.send(greedy_actions(task, trained.learner, env.observations))
            ended = env.recv().returns
            return Played(picture(), ended[0] if ended else None)

        def cut() -> float:
            total = float(env.returns[0])
            env.begin()
            return total

        yield Game(picture(), step, env.emulator.steps_a_second or STEPS_A_SECOND, cut)


@contextlib.contextmanager
def sac_game(trained: Trained, seed: int, phase: int, draws: bool) -> Iterator[Game]:
    """Yield the game of a SAC agent, which takes the policy's mean actions."""
    from rl.sac.phase import policy
    from rl.sac.workers import Tasks, Worker

    task, control = trained.task, trained.task.control
    if draws and control.suite != "dmc":
        control = replace(control, options=(control.options or {}) | {"render_mode": "rgb_array"})
    tasks = None if task.benchmark is None else Tasks(task.benchmark, control, trained.config.seed)
    worker = Worker(control, seeding.derive(trained.config.seed, "play", seed), tasks=tasks)
    try:
        worker.choose(phase)
        worker.begin()

        def picture() -> Picture | None:
            return rendered(control.name, worker.env.env) if draws else None

        def step() -> Played:
            action = policy(task, trained.learner, worker.observation[None])[0]
            ended_episode = worker.step(action).ended_episode
            return Played(picture(), None if ended_episode is None else ended_episode[0])

        def cut() -> float:
            total = worker.total
            worker.begin()
            return total

        rate = (steps_a_second(worker.env.env) or STEPS_A_SECOND) / control.action_repeat
        yield Game(picture(), step, rate, cut)
    finally:
        worker.close()


GAMES = {"dqn": dqn_game, "sac": sac_game}

if __name__ == "__main__":
    torch.set_num_threads(1)
    run_command(main, Options, str(sys.modules[__name__].__doc__))
