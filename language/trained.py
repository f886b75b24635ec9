"""Load the network of a trained language run, for `harness.load`."""

import functools
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from harness.config.config import Paths
from harness.trained.load import Trained
from language.learner import Learner
from language.phase import evaluate
from language.task import Task
from language.tokenizers import get_tokenizer


def load(config: DictConfig, state: dict[str, Any]) -> Trained:
    """Return the language model of a checkpoint's state, with its tokenizer."""
    # The folder of data that the run names may be anywhere: tokens are only written where any program here writes them.
    task = Task.from_config(config, prepares=config.paths.data == Paths.data)
    learner = Learner.new(task)
    preprocess = functools.partial(tokens_of, task, state["phase"])
    measure = functools.partial(evaluate, task, learner)
    return Trained.of("language", task, learner, state, preprocess, measure)


def tokens_of(task: Task, phase: int, text: str) -> Tensor:
    """Return the tokens of a text, int64 (1, tokens), as phase `phase` numbers them if a stream permutes them.

    Raises:
        TypeError: it is no text, such as tokens or a list of texts.
    """
    if not isinstance(text, str):
        raise TypeError(f"preprocess takes one text, and this is {type(text).__name__}")
    (tokens,) = get_tokenizer(task.config.tokenizer).encode([text])
    return as_numbered(task, phase, torch.from_numpy(tokens.astype("int64")))


def end_of(task: Task, phase: int) -> Tensor:
    """Return the token between two documents, int64 (1, 1), as phase `phase` numbers it."""
    return as_numbered(task, phase, torch.tensor([get_tokenizer(task.config.tokenizer).end]))


def as_numbered(task: Task, phase: int, tokens: Tensor) -> Tensor:
    """Return the tokenizer's tokens (n,) as phase `phase` numbers them, int64 (1, n)."""
    relabel = task.phases[phase].relabel
    return (tokens if relabel is None else relabel(tokens))[None].to(task.device)


def text_of(task: Task, phase: int, tokens: Tensor) -> str:
    """Return the text of tokens (n,), the inverse of `tokens_of`."""
    plain, relabel = tokens.cpu(), task.phases[phase].relabel
    if relabel is not None:
        plain = relabel(torch.arange(task.vocab_size)).argsort()[plain]
    return get_tokenizer(task.config.tokenizer).decode(plain.tolist())
