"""Measure SAC's updates per second at the paper's size, for this tree and an earlier commit in turns.

    python scripts/bench_sac.py baa4b32e                           the ratio of this tree to that commit
    python scripts/bench_sac.py baa4b32e --networks mlp --rounds 20

Both trees train the networks of `experiment=fig4b_*` (SimBa: an actor of 128, critics of 512) with batches of 256 on
observations of Humanoid-v5's size. Each tree has a process of its own, and the two take turns, so that other load on
the machine meets both. Each trains in one thread on the CPU and reads the processor's own clock; the least time of each
counts. The environment is not stepped.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UPDATES = 5  # in one turn
CHILD = "--take-turns"  # this script's first argument in the process of one tree


def main() -> None:
    """Print the rates of both trees and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier commit")
    parser.add_argument("--networks", default="simba", help="simba or mlp (default: simba)")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each tree (default: 15)")
    arguments = parser.parse_args()
    options = [f"networks={arguments.networks}", "threads=1", "device=cpu"]
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "-q", "--detach", earlier, arguments.commit], check=True)
        try:
            children = {"earlier": start(earlier, options), "this tree": start(ROOT, options)}
            seconds: dict[str, list[float]] = {name: [] for name in children}
            for number in range(arguments.rounds + 1):
                for name, child in children.items():
                    elapsed = ask(child)
                    if number:  # the first turn warms up
                        seconds[name].append(elapsed)
            for child in children.values():
                child.communicate()
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", earlier], check=True)
    for name, times in seconds.items():
        print(f"{name:10} {UPDATES / min(times):8.1f} updates/s")
    print(f"this tree makes {min(seconds['earlier']) / min(seconds['this tree']):.2f} of the earlier updates a second")


def start(tree: Path, options: Sequence[str]) -> "subprocess.Popen[str]":
    """Start this script as a process that imports a tree and trains a turn for each line that it reads."""
    command = [sys.executable, __file__, CHILD, str(tree), *options]
    return subprocess.Popen(command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(child: "subprocess.Popen[str]") -> float:
    """Let a process take its turn, and return the seconds that it took."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return float(child.stdout.readline())


def take_turns(tree: str, *options: str) -> None:
    """Print the processor seconds of `UPDATES` updates of one tree for each line of the input.

    Args:
        tree: path of the tree that is imported.
        options: options of rl.sac.train.
    """
    sys.path[0] = tree
    import torch

    from harness.config import groups
    from rl.sac.learner import Learner
    from rl.sac.task import Task
    from rl.sac.train import begin_phase, learn
    from rl.sac.transitions import Batch

    overrides = ["scale=paper", "env=humanoid", "boundary=sac_paper", "replay_size=10000", f"updates={UPDATES}"]
    task = Task.from_config(groups.compose("sac", [*overrides, "tracker=none", *options]))
    learner = Learner.new(task)
    begin_phase(task, learner, 0, None)
    for _ in range(2000):
        o, a = torch.randn(2, 1, task.observations), torch.rand(1, task.actions) * 2 - 1
        learner.replay.add(Batch(o[0], a, torch.randn(1), torch.zeros(1), o[1]))
    for _ in sys.stdin:
        began = time.process_time()
        learn(task, learner, False)
        print(time.process_time() - began, flush=True)
    learner.close()


if __name__ == "__main__":
    take_turns(*sys.argv[2:]) if sys.argv[1:2] == [CHILD] else main()
