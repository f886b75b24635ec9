"""The length of a phase and its learning rate, as in the authors' code."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Length:
    """The length of a phase and of its parts.

    Attributes:
        tokens: tokens that the phase trains on.
        iterations: whole iterations (optimizer steps) that these tokens make; the learning rate is lowest at the last.
        warmup: iterations of the linear warm-up.
        eval_interval: iterations between two evaluations; 0 in phases of fewer than 20 iterations.
        steps: optimizer steps that are made, one more than `iterations` with `extra_step`.
    """

    tokens: int
    iterations: int
    warmup: int
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
    """Return the length of a phase; None if it has no token.

    Of data that are shorter than one step `iterations` is 0, which the caller refuses.

    Args:
        dataset_tokens: tokens of the training data, before `ratio`.
        passes: passes over the data that are used.
        tokens_per_iteration: tokens of an optimizer step.
        ratio: fraction of the data that is used.
        warmup_ratio: fraction of the iterations in which the rate grows, at most `max_warmup` iterations.
        max_warmup: largest number of iterations in which the rate grows.
        max_eval_interval: largest number of iterations between evaluations, of which there are at least 20 in a phase.
        extra_step: make one step more than the phase has iterations, as the authors' code does.
        iterations: iterations of the phase, instead of those that `passes` and `ratio` make.
    """
    tokens = int(passes * dataset_tokens * ratio) if iterations is None else iterations * tokens_per_iteration
    if tokens <= 0:
        return None
    count = tokens // tokens_per_iteration
    return Length(
        tokens,
        iterations=count,
        warmup=min(int(warmup_ratio * count), max_warmup),
        eval_interval=min(max_eval_interval, count // 20),
        steps=count + extra_step,
    )


def learning_rate(iteration: int, warmup: int, decay: int, lr: float, min_lr: float) -> float:
    """Return the learning rate: linear warm-up from lr / (warmup + 1), half a cosine down to `min_lr`, then constant.

    Args:
        iteration: iteration of the phase, from 0.
        warmup: iterations of the warm-up.
        decay: the iteration at which the lowest rate is reached.
        lr: the highest rate.
        min_lr: the lowest rate.
    """
    if iteration < warmup:
        return lr * (iteration + 1) / (warmup + 1)
    if iteration > decay:
        return min_lr
    progress = (iteration - warmup) / max(1, decay - warmup)  # of the cosine, from 0 to 1
    return min_lr + 0.5 * (1 + math.cos(math.pi * progress)) * (lr - min_lr)
