"""The formulae of DQN (Mnih et al., Nature 2015): exploration, target, loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def epsilon(step: int, start: float, end: float, duration: float, wait: int) -> float:
    """Exploration rate: `start` for the first `wait` agent steps, then linear to `end` within `duration` more."""
    return max(end, min(start, start + (end - start) / duration * (step - wait)))


@torch.no_grad()
def td_target(target: nn.Module, observations: Tensor, rewards: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """r + gamma max_a Q_target(s', a), without the second term where the episode terminated, (B,).

    An episode cut by a time limit did not terminate: its last state is bootstrapped from.
    """
    best: Tensor = target(observations).float().amax(1)
    return rewards + gamma * best * (1 - terminated.to(best.dtype))


def chosen(q: nn.Module, observations: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) of the actions (B,) that were taken, (B,)."""
    values: Tensor = q(observations).float()
    return values.gather(1, actions.long()[:, None])[:, 0]


def huber(values: Tensor, targets: Tensor) -> Tensor:
    """Mean Huber loss with threshold 1."""
    return F.smooth_l1_loss(values, targets)
