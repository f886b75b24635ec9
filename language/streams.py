"""Streams of tasks for language models: where plasticity is lost, and where forgetting is measured.

Methods act from the first phase on, and the optimizer's state survives a boundary unless a method resets it: the
baseline does not know of the boundary. With `optimizer=new` it does.
"""

import functools
from typing import Annotated, Literal

import torch
from torch import Tensor

from fire_core.ranges import checked, within
from harness.config.errors import ConfigError
from harness.training import seeding
from language.benchmark import Benchmark, Corpora, Phase, Setting
from language.data import Mixture, TokenFile
from language.schedule import Length

Tasks = Annotated[int, within(1, 100_000)]  # a list of phases is made of them
Iterations = Annotated[int, within(1, 10**9)]
ONE_TEXT = "dataset=stdlib, pydoc, wikitext103, openwebtext, or dataset=text dataset.path=..."
ROWS = 4  # of a task: the last one has the mean loss of the last quarter, of less where 4 does not divide iterations


class Stream(Benchmark):
    """What streams have in common.

    Args:
        iterations: of each task.
        optimizer: keep: its state survives a boundary, unless a method resets it. new: a new one in each task, as if
            the boundary were known.
    """

    def __init__(self, iterations: int, optimizer: str) -> None:
        self.iterations = iterations
        self.keeps_optimizer = optimizer == "keep"

    def phase(
        self,
        corpora: Corpora,
        names: list[str],
        setting: Setting,
        task: str | None = None,
        iterations: int | None = None,
    ) -> Phase:
        """A phase on some of the corpora, as a task of the given name; None: each corpus under its own name.

        Raises:
            ConfigError: a corpus is shorter than a block.
        """
        share = 1 / len(names)
        files = tuple(corpora[name]["train"] for name in names)
        data = Mixture(files, (share,) * len(names), setting.block_size, "sequence")
        val: dict[str, tuple[TokenFile, float]] = {task or name: (corpora[name]["val"], share) for name in names}
        steps = iterations or self.iterations
        length = Length(steps * setting.tokens_per_iteration, steps, 0, steps, 0, steps)
        return Phase(data, val, length, rows=ROWS)


class PermutedText(Stream):
    """The same text in each task, written in an alphabet that is permuted anew: only the tokens' names change.

    Every order of the alphabet is as hard as another to a network that has just been initialised. What a network learns
    about the next token in one task is of use in the next, once it has learned the alphabet.

    Args:
        tasks: number of tasks.
        iterations: of each task.
        optimizer: see `Stream`.
    """

    @checked
    def __init__(
        self, tasks: Tasks = 12, iterations: Iterations = 200, optimizer: Literal["keep", "new"] = "keep"
    ) -> None:
        super().__init__(iterations, optimizer)
        self.tasks = tasks

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """A phase a task."""
        if len(corpora) != 1:
            raise ConfigError(f"benchmark=permuted_text has one text: {ONE_TEXT}")
        phases = []
        for task in range(self.tasks):
            order = functools.partial(alphabet, setting.vocab_size, setting.seed, task)
            plain = self.phase(corpora, list(corpora), setting, f"task {task}")
            phases.append(Phase(plain.data, plain.val, plain.length, functools.partial(relabel, order), ROWS))
        return phases


class OneText(Stream):
    """Training on one text: a single phase.

    Args:
        iterations: of the run.
    """

    @checked
    def __init__(self, iterations: Iterations = 1000) -> None:
        super().__init__(iterations, "keep")

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """The phase."""
        if len(corpora) != 1:
            raise ConfigError(f"benchmark=one_text has one text: {ONE_TEXT}")
        return [self.phase(corpora, list(corpora), setting)]


class Domains(Stream):
    """Texts of several kinds in turn, round and round; by default each once, then the first again.

    Args:
        tasks: number of tasks; None: one more than there are texts.
        iterations: of each task.
        pretrain: iterations on all texts mixed, before the first task: a phase of its own.
        optimizer: see `Stream`.
    """

    @checked
    def __init__(
        self,
        tasks: Tasks | None = None,
        iterations: Iterations = 200,
        pretrain: Annotated[int, within(0, 10**9)] = 0,
        optimizer: Literal["keep", "new"] = "keep",
    ) -> None:
        super().__init__(iterations, optimizer)
        self.tasks, self.pretrain, self.lead = tasks, pretrain, int(pretrain > 0)

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """A phase a task, after that of the mixture if there is one."""
        names = list(corpora)
        if len(names) < 2:
            raise ConfigError(
                "benchmark=domains needs two texts or more: dataset=domains, or your own by dataset=texts "
                "dataset.first.path=... dataset.second.path=... 'dataset.more=[...]'"
            )
        mixed = [self.phase(corpora, names, setting, iterations=self.pretrain)] if self.pretrain else []
        order = [names[i % len(names)] for i in range(self.tasks or len(names) + 1)]
        return mixed + [self.phase(corpora, [name], setting) for name in order]


@functools.lru_cache(maxsize=64)
def alphabet(vocab_size: int, seed: int, task: int) -> Tensor:
    """A permutation of all tokens, int64 (vocab_size,), from the run's seed and the task's number alone."""
    return torch.randperm(vocab_size, generator=seeding.generator(seed, "alphabet", task))


def relabel(order: functools.partial[Tensor], tokens: Tensor) -> Tensor:
    """Each token's name in the permuted alphabet; int64, of the tokens' shape."""
    return order()[tokens]
