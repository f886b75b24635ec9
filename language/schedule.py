"""The length of a phase and its learning rate, as in the authors' code."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Length:
    """The lengths of one phase.

    Attributes:
        tokens: that the phase trains on.
        iterations: these tokens in whole iterations.
        warmup: iterations of the linear warm-up.
        decay: the iteration at which the rate reaches its lowest value.
        eval_interval: iterations between two evaluations; 0 in phases of fewer than 20.
        steps: optimizer steps made.
    """

    tokens: int
    iterations: int
    warmup: int
    decay: int
    eval_interval: int
    steps: int


def phase_length(
    dataset_tokens: int,
    passes: float,
    tokens_per_iteration: int,
    ratio: float = 1.0,
    warmup_ratio: float = 0.1,
    max_warmup: int = 2000,
    max_eval_interval: int = 2000,
    extra_step: bool = False,
    iterations: int | None = None,
) -> Length | None:
    """The length of a phase, None if it has no token.

    Args:
        dataset_tokens: of the training data, before `ratio`.
        passes: over them.
        tokens_per_iteration: in one optimizer step.
        ratio: fraction of the data that is used.
        warmup_ratio: fraction of the iterations that warms up, at most `max_warmup` iterations.
        max_warmup: see `warmup_ratio`.
        max_eval_interval: largest number of iterations between evaluations, which come every 20th of the phase.
        extra_step: make one step more than the phase has iterations, as the authors' code does.
        iterations: of the phase, overriding `passes`.
    """
    tokens = int(passes * dataset_tokens * ratio) if iterations is None else iterations * tokens_per_iteration
    if tokens <= 0:
        return None
    count = tokens // tokens_per_iteration
    warmup = min(int(warmup_ratio * count), max_warmup)
    return Length(tokens, count, warmup, count, min(max_eval_interval, count // 20), count + extra_step)


def learning_rate(iteration: int, warmup: int, decay: int, lr: float, min_lr: float) -> float:
    """Linear warm-up from lr / (warmup + 1), a half cosine down to `min_lr` at iteration `decay`, then constant.

    Args:
        iteration: of the phase, from 0.
        warmup: iterations of the warm-up.
        decay: the iteration at which the lowest rate is reached.
        lr: the highest rate.
        min_lr: the lowest one.
    """
    if iteration < warmup:
        return lr * (iteration + 1) / (warmup + 1)
    if iteration > decay:
        return min_lr
    done = (iteration - warmup) / max(1, decay - warmup)
    return min_lr + 0.5 * (1 + math.cos(math.pi * done)) * (lr - min_lr)
