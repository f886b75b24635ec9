"""What a million frames of MinAtar cost DQN: the games alone, and the whole loop with and without autograd.

    python scripts/bench_minatar.py                         the small scale's options: an update for 4 frames
    python scripts/bench_minatar.py updates_per_step=1.0    options of rl.dqn: an update a frame, as the games' authors
    python scripts/bench_minatar.py --games breakout,seaquest

One thread. Processor time is counted, so that other load on the machine matters less; the variants take turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

if not __package__:
    import sys

    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import hydra
import torch

from fire_core.harness.options.cli import CONF
from rl.dqn.episodes import Episodes
from rl.dqn.learner import Learner
from rl.dqn.minatar import GAMES
from rl.dqn.task import Task
from rl.dqn.train import begin_phase, choose_updates, interact

START = 400  # frames of random play before the first update


def loop(game: str, overrides: list[str], quick: bool) -> tuple[Callable[[], object], Learner]:
    """A step of the trainer's loop, with updates that need autograd or not."""
    options = [f"env=minatar_{game}", "tracker=none", "threads=1", f"learning_starts={START}", *overrides]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        task = Task.from_config(hydra.compose("dqn", options))
    learner = Learner.new(task)
    begin_phase(task, learner, 0)
    learner.quick = choose_updates(task, learner, acts=False) if quick else None
    while learner.step < 2 * START:
        interact(task, learner, acts=False)
    learner.step += int(task.config.epsilon.fraction * task.config.total_steps)  # from here on it explores little
    return lambda: interact(task, learner, acts=False), learner


def random_play(env: Episodes) -> Callable[[], object]:
    """A step of the games without a network."""
    actions = torch.zeros(env.envs, dtype=torch.int64)

    def step() -> None:
        env.send(actions.random_(env.emulator.actions))
        env.recv()

    return step


def seconds_of(step: Callable[[], object], frames: int, each: int) -> float:
    """Of processor time, for each million frames."""
    start = time.process_time()
    for _ in range(frames // each):
        step()
    return (time.process_time() - start) / (frames // each * each) * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--frames", type=int, default=1000, help="of each turn")
    parser.add_argument("--games", default=",".join(GAMES))
    parser.add_argument("overrides", nargs="*", help="options of rl.dqn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("seconds of processor time for a million frames, medians of the rounds")
    print(f"{'game':15} {'game alone':>11} {'autograd':>9} {'this loop':>10} {'ratio':>6}")
    for game in given.games.split(","):
        plain, other = loop(game, given.overrides, quick=False)
        quick, learner = loop(game, given.overrides, quick=True)
        envs = learner.env.envs
        turns = {"alone": random_play(other.env), "autograd": plain, "loop": quick}
        taken: dict[str, list[float]] = {name: [] for name in turns}
        for _ in range(given.rounds):
            for name, turn in turns.items():
                taken[name].append(seconds_of(turn, given.frames, envs))
        alone, slow, fast = (statistics.median(taken[name]) for name in turns)
        ratio = statistics.median(a / b for a, b in zip(taken["autograd"], taken["loop"], strict=True))
        print(f"{game:15} {alone:11.0f} {slow:9.0f} {fast:10.0f} {ratio:6.2f}")
        other.close()
        learner.close()


if __name__ == "__main__":
    main()
