"""Streams of tasks for language models, in which plasticity is lost and forgetting is measured.

Methods act from the first phase on. The optimizer's state survives a boundary unless a method resets it, because the
baseline must not know of boundaries; with `optimizer=new` each task has a new optimizer.
"""

import functools
from typing import Annotated, Literal

import torch
from torch import Tensor

from fire_core.ranges import checked, within
from harness.config.errors import ConfigError
from harness.training import seeding
from language.benchmark import Benchmark, Corpora, Iterations, Phase, Setting
from language.data import Mixture, TokenFile
from language.schedule import Length

Tasks = Annotated[int, within(1, 100_000)]  # limited, as all phases are held in a list
ONE_TEXT = "dataset=stdlib, pydoc, wikitext103, openwebtext, or dataset=text dataset.path=..."
# Rows of the log in a task. The last one has the mean loss of the last quarter, or less if 4 does not divide the steps.
ROWS = 4


class Stream(Benchmark):
    """Base class of streams, with the same number of iterations in each task.

    Args:
        iterations: iterations of each task.
        optimizer: `keep` lets its state survive a boundary, unless a method resets it. `new` starts a new optimizer in
            each task, as if boundaries were known.
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
        """Return a phase on a mixture of corpora in equal shares.

        Args:
            corpora: all corpora by name.
            names: the corpora that the phase trains on.
            setting: properties of the run.
            task: name of the task; None evaluates each corpus under its own name.
            iterations: iterations of the phase; None takes those of a task.

        Raises:
            ConfigError: a corpus is too short for a sequence.
        """
        share = 1 / len(names)
        files = tuple(corpora[name]["train"] for name in names)
        data = Mixture(files, (share,) * len(names), setting.block_size, "sequence")
        val: dict[str, tuple[TokenFile, float]] = {task or name: (corpora[name]["val"], share) for name in names}
        steps = iterations or self.iterations
        tokens = steps * setting.tokens_per_iteration
        length = Length(tokens, iterations=steps, warmup=0, eval_interval=0, steps=steps)
        return Phase(data, val, length, rows=ROWS)


class PermutedText(Stream):
    """The same text in each task, with a new permutation of the tokens' numbers.

    To a newly initialised network every permutation is equally hard. What a network learns about the next token in one
    task is of use in the next, once it has learned the new numbers.

    Args:
        tasks: number of tasks.
        iterations: iterations of each task.
        optimizer: see `Stream`.
    """

    @checked
    def __init__(
        self, tasks: Tasks = 12, iterations: Iterations = 200, optimizer: Literal["keep", "new"] = "keep"
    ) -> None:
        super().__init__(iterations, optimizer)
        self.tasks = tasks

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """Return a phase for each task; see `Benchmark.phases`."""
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
        iterations: iterations of the run.
    """

    @checked
    def __init__(self, iterations: Iterations = 1000) -> None:
        super().__init__(iterations, "keep")

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """Return the only phase; see `Benchmark.phases`."""
        if len(corpora) != 1:
            raise ConfigError(f"benchmark=one_text has one text: {ONE_TEXT}")
        return [self.phase(corpora, list(corpora), setting)]


class Domains(Stream):
    """Texts of several kinds, one after the other and then from the first on again.

    Args:
        tasks: number of tasks; None takes one more than there are texts, so that the first text comes twice.
        iterations: iterations of each task.
        pretrain: iterations on a mixture of all texts in a phase before the first task; with 0 there is no such phase.
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
        """Return a phase for each task, after that of the mixture if there is one; see `Benchmark.phases`."""
        names = list(corpora)
        if len(names) < 2:
            raise ConfigError(
                "benchmark=domains needs two texts or more: dataset=domains, or your own by dataset=texts "
                "dataset.first.path=... dataset.second.path=... 'dataset.more=[...]'"
            )
        phases = [self.phase(corpora, names, setting, iterations=self.pretrain)] if self.pretrain else []
        for i in range(self.tasks or len(names) + 1):
            phases.append(self.phase(corpora, [names[i % len(names)]], setting))
        return phases


@functools.lru_cache(maxsize=64)
def alphabet(vocab_size: int, seed: int, task: int) -> Tensor:
    """Return a permutation of all tokens, int64 (vocab_size,), drawn from the run's seed and the task's number."""
    return torch.randperm(vocab_size, generator=seeding.generator(seed, "alphabet", task))


def relabel(order: functools.partial[Tensor], tokens: Tensor) -> Tensor:
    """Return each token's number in the permutation that `order()` returns; int64, of the shape of `tokens`."""
    return order()[tokens]
