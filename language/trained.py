"""Load the network of a trained language run, for `harness.load`."""

import functools
from typing import Any

import torch
from torch import Tensor

from harness.trained.load import Trained
from language.learner import Learner
from language.phase import evaluate
from language.task import Task
from language.tokenizers import get_tokenizer


def load(task: Task, state: dict[str, Any]) -> Trained:
    """Return the language model of a checkpoint's state, with its tokenizer."""
    learner = Learner.new(task)
    learner.load_networks(state)
    learner.phase, learner.step = state["phase"], state["step"]
    learner.model.eval()
    return Trained(
        program="language",
        config=task.config,
        modules=learner.net.modules,
        preprocess=functools.partial(tokens_of, task, learner.phase),
        evaluate=functools.partial(evaluate_quietly, task, learner),
        row=state["row"],
        step=state["step"],
        task=task,
        learner=learner,
    )


def tokens_of(task: Task, phase: int, text: str) -> Tensor:
    """Return the tokens of a text, int64 (1, tokens), as phase `phase` numbers them if a stream permutes them."""
    (tokens,) = get_tokenizer(task.config.tokenizer).encode([text])
    plain = torch.from_numpy(tokens.astype("int64"))
    relabel = task.phases[phase].relabel
    return (plain if relabel is None else relabel(plain))[None].to(task.device)


def text_of(task: Task, phase: int, tokens: Tensor) -> str:
    """Return the text of tokens (n,), the inverse of `tokens_of`."""
    plain, relabel = tokens.cpu(), task.phases[phase].relabel
    if relabel is not None:
        plain = relabel(torch.arange(task.vocab_size)).argsort()[plain]
    return get_tokenizer(task.config.tokenizer).decode(plain.tolist())


def evaluate_quietly(task: Task, learner: Learner) -> dict[str, float]:
    """Return the losses of `evaluate`, and leave the model in evaluation mode."""
    losses = evaluate(task, learner)
    learner.model.eval()
    return losses
