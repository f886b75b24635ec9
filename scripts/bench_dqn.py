"""Agent steps a second of DQN's whole loop, against a plain loop, alternating in one process.

    python scripts/bench_dqn.py                       the paper's sizes: 4 environments, an update a step, batch 32
    python scripts/bench_dqn.py --threads 2 precision=bfloat16 compile=default     options of rl.dqn
    python scripts/bench_dqn.py device=cuda compile=reduce-overhead                a GPU

The plain loop is that of single-file implementations: Gymnasium's AsyncVectorEnv with wrapped environments, a
replay of stacked frames in numpy, eager float32 updates. Both train networks of the same shape on the same game. Then
this update alone, on a prepared batch, which shows what the rest of the loop costs.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import ale_py
import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from harness.config.groups import compose
from rl.dqn.frames import Batch
from rl.dqn.learner import Learner, on_device
from rl.dqn.networks import NatureCNN
from rl.dqn.task import Task
from rl.dqn.train import interact, train_step
from scripts.interleaved import report, seconds_of

START = 2000  # steps of random play before the first update, in both loops


class Skip(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Four frames a step, the maximum of the last two."""

    def step(self, action: Any) -> Any:
        total = 0.0
        last: list[Any] = []
        for _ in range(4):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total, last = total + float(reward), [*last[-1:], observation]
            if terminated or truncated:
                break
        return np.max(last, axis=0), total, terminated, truncated, info


class Shrink(gymnasium.ObservationWrapper[Any, Any, Any]):
    """84x84, by area."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)

    def observation(self, observation: Any) -> Any:
        return np.asarray(Image.fromarray(observation).resize((84, 84), Image.Resampling.BOX))


def wrapped(game: str) -> gymnasium.Env[Any, Any]:
    """One game as single-file implementations wrap it."""
    gymnasium.register_envs(ale_py)
    name = "".join(part.capitalize() for part in game.split("_"))
    env = gymnasium.make(f"ALE/{name}-v5", obs_type="grayscale", frameskip=1, repeat_action_probability=0.0)
    env = gymnasium.wrappers.StickyAction(Skip(env), 0.25)
    return gymnasium.wrappers.FrameStackObservation(Shrink(env), 4)


class PlainLoop:
    """The loop of single-file implementations.

    Args:
        game: ALE's name.
        envs: how many.
        width: of the network.
        device: of the network.
        capacity: of the replay.
    """

    def __init__(self, game: str, envs: int, width: float, device: torch.device, capacity: int) -> None:
        self.envs, self.device, self.rows = envs, device, capacity // envs
        self.env = gymnasium.vector.AsyncVectorEnv([lambda: wrapped(game)] * envs)
        self.actions = int(self.env.single_action_space.n)  # type: ignore[attr-defined]
        self.q, self.target = (NatureCNN(self.actions, width=width).to(device) for _ in range(2))
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=6.25e-5, eps=1.5e-4)
        self.observations = np.zeros((self.rows, envs, 4, 84, 84), dtype=np.uint8)
        self.next_observations = np.zeros_like(self.observations)
        self.taken = np.zeros((self.rows, envs), dtype=np.int64)
        self.rewards, self.dones = (np.zeros((self.rows, envs), dtype=np.float32) for _ in range(2))
        self.now, _ = self.env.reset(seed=0)
        self.added = 0

    def step(self, learn: bool = True) -> None:
        """One step of every environment and as many updates."""
        with torch.no_grad():
            best = self.forward(self.q, torch.as_tensor(self.now, device=self.device)).argmax(1).cpu().numpy()
        explore = np.random.default_rng(self.added).random(self.envs) < 0.05
        action = np.where(explore, self.env.action_space.sample(), best)
        following, reward, terminated, _, _ = self.env.step(action)
        at = self.added % self.rows
        self.observations[at], self.next_observations[at] = self.now, following
        self.taken[at], self.rewards[at], self.dones[at] = action, np.sign(reward), terminated
        self.now, self.added = following, self.added + 1
        for _ in range(self.envs if learn else 0):
            self.update()

    def forward(self, net: NatureCNN, x: torch.Tensor) -> torch.Tensor:
        """The update of single-file implementations."""
        values: torch.Tensor = net.head(net.encoder(x / 255.0))
        return values

    def update(self) -> None:
        """Of 32 transitions."""
        row = np.random.randint(0, min(self.added, self.rows), 32)  # noqa: NPY002
        env = np.random.randint(0, self.envs, 32)  # noqa: NPY002
        columns = (self.observations, self.next_observations, self.taken, self.rewards, self.dones)
        x, following, action, reward, done = (torch.as_tensor(c[row, env], device=self.device) for c in columns)
        with torch.no_grad():
            y = reward + 0.99 * self.forward(self.target, following).max(1).values * (1 - done)
        loss = F.smooth_l1_loss(self.forward(self.q, x).gather(1, action[:, None]).squeeze(1), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def ours(overrides: list[str], capacity: int) -> tuple[Task, Learner]:
    """A task and a learner of rl.dqn, as `train` has them."""
    options = ["scale=paper", "tracker=none", f"replay.capacity={capacity}", f"learning_starts={START}", *overrides]
    config = compose("dqn", options)
    task = Task.from_config(config)
    learner = Learner.new(task)
    learner.renew_optimizers(task)
    return task, learner


def alone(task: Task, learner: Learner) -> Callable[[], None]:
    """As many updates as a step of the loop makes, on a prepared batch; targets included."""
    size, count = task.config.batch_size, task.config.num_envs
    batch = learner.replay.sample(count * size, torch.Generator().manual_seed(0))
    batch = batch._replace(frames=batch.frames.clone())

    def run() -> None:
        there = on_device(task, batch)
        for part in zip(*(column.split(size) for column in there), strict=True):
            train_step(task, learner, Batch(*part), acts=False)

    return run


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of each turn, in every environment")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch, in both loops")
    parser.add_argument("--capacity", type=int, default=20_000, help="of both replays")
    parser.add_argument("overrides", nargs="*", help="options of rl.dqn")
    given = parser.parse_args()
    overrides = [*given.overrides, f"threads={given.threads}"]
    task, learner = ours(overrides, given.capacity)
    config, device = task.config, task.device

    def step() -> None:
        interact(task, learner, acts=False)

    plain = PlainLoop(config.env["game"], config.num_envs, config.model["width"], device, given.capacity)
    torch.use_deterministic_algorithms(False)
    while learner.step < START + config.num_envs:
        step()
    while plain.added * config.num_envs < START:
        plain.step(learn=False)
    turns = {"plain loop": plain.step, "this loop": step, "this update alone": alone(task, learner)}
    seconds = seconds_of(turns, given.rounds, times=given.steps)
    report(seconds, given.steps * config.num_envs, "agent steps")
    plain.env.close()


if __name__ == "__main__":
    main()
