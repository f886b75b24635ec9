"""Benchmarks turn corpora into a sequence of phases. Here is that of the paper's figure 3, with a pair of corpora.

Streams of more texts are in `language.streams`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from fire_core.ranges import Count, Share, checked, within
from harness.config.errors import ConfigError
from harness.config.given import is_given
from language.data import Mixture, TokenFile
from language.schedule import Length, phase_length

log = logging.getLogger(__name__)
STARTS = ("best", "end", "scratch")
Passes = Annotated[float, within(0, 1_000_000, open_low=True)]
Ratio = Annotated[float, within(0, 1, open_low=True)]
Iterations = Annotated[int, within(1, 10**12)]
Corpora = Mapping[str, Mapping[str, TokenFile]]  # by name, then by split


@dataclass(frozen=True)
class Setting:
    """The properties of a run that its phases depend on.

    Attributes:
        block_size: the model's context length in tokens.
        tokens_per_iteration: tokens of an optimizer step.
        vocab_size: size of the tokenizer's vocabulary.
        seed: seed of the run.
        replay: probability that a batch (or sequence) of a pair's phase 1 comes from the first corpus.
        mix_by: whether each `batch` or each `sequence` comes from one corpus.
    """

    block_size: int
    tokens_per_iteration: int
    vocab_size: int = 256
    seed: int = 0
    replay: float = 0.0
    mix_by: str = "batch"


@dataclass(frozen=True)
class Phase:
    """The data that are trained on and evaluated on, and for how long.

    Attributes:
        data: where batches are drawn from.
        val: the held-out tokens of each task that the phase trains on, and their weight in val/loss, by the task's
            name. Two phases with the same name train on the same data.
        length: length of the phase.
        relabel: replaces tokens by other tokens, in training and held-out data alike; None leaves them as they are.
        rows: number of rows of the log, at equal distances; None takes the distance `length.eval_interval`.
    """

    data: Mixture
    val: dict[str, tuple[TokenFile, float]]
    length: Length
    relabel: Callable[[Tensor], Tensor] | None = None
    rows: int | None = None

    @property
    def rows_every(self) -> int:
        """Iterations between two rows of the log."""
        return max(1, self.length.eval_interval if self.rows is None else -(-self.length.steps // self.rows))


class Benchmark(ABC):
    """A sequence of phases, and the rules of training in them.

    Attributes:
        start: the checkpoint of phase 0 that phase 1 starts from; streams go on from `end`.
        methods_from_phase: the first phase within which methods act.
        new_tasks: whether each phase is a new task. If so, rows also have averages over the run so far, and the loss on
            earlier tasks (`language.phase`).
        keeps_optimizer: whether the optimizer's state survives a boundary, unless a method resets it.
        lead: number of phases before the first task, which averages over tasks leave out.
        headline: name of the number in a run's summary that is shown and returned.
    """

    start: str | int = "end"
    methods_from_phase = 0
    lead = 0
    new_tasks = True
    keeps_optimizer = True
    headline = "task_end/loss"

    @abstractmethod
    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """Return the phases on these corpora.

        Raises:
            ConfigError: the corpora are too few, too many or too small.
        """


def parse_start(start: str | int) -> str | int:
    """Return `best`, `end`, `scratch` as they are, and a number of iterations (30000, or 30k) as an int.

    Raises:
        ValueError: `start` is none of these.
    """
    start = str(start)
    number = start[:-1] + "000" if start.endswith("k") else start
    if start not in STARTS and not number.isdigit():
        raise ValueError(f"start={start} is unknown; accepted: {', '.join(STARTS)}, iterations such as 600 or 30k")
    return start if start in STARTS else int(number)


class ContinualPretraining(Benchmark):
    """Phase 0 overfits a small corpus; phase 1 continues from one of its checkpoints on a mixture with a larger one.

    With `dataset.replay=0` phase 1 is the larger corpus alone.

    Args:
        start: checkpoint of phase 0 from which phase 1 starts: `best` (validation loss), `end`, one of `checkpoints`
            (30000 or 30k), or `scratch` (the initial weights: phase 0 is not trained).
        passes: passes over the data in each phase.
        checkpoints: iterations of phase 0 at which weights are stored.
        ratio: share of the data that each phase uses.
        iterations: iterations of each phase; None takes those of `passes`.
        warmup_ratio: see `language.schedule.phase_length`.
        max_warmup: see `language.schedule.phase_length`.
        max_eval_interval: see `language.schedule.phase_length`.
        extra_step: see `language.schedule.phase_length`.

    Raises:
        ValueError: an option is out of its range.
    """

    methods_from_phase = 1
    new_tasks = False
    keeps_optimizer = False
    headline = "val/loss"

    @checked
    def __init__(
        self,
        start: str | int = "best",
        passes: tuple[Passes, Passes] = (400, 1),
        checkpoints: Sequence[Count] = (30_000, 60_000),
        ratio: tuple[Ratio, Ratio] = (1.0, 1.0),
        iterations: tuple[Iterations, Iterations] | None = None,
        warmup_ratio: Share = 0.1,
        max_warmup: Count = 2000,
        max_eval_interval: Count = 2000,
        extra_step: bool = False,
    ) -> None:
        self.start = parse_start(start)
        self.checkpoints = sorted(set(checkpoints))
        if isinstance(self.start, int) and self.start not in self.checkpoints:
            accepted = ", ".join(map(str, (*STARTS, *self.checkpoints)))
            raise ValueError(f"start={start} is not kept; accepted: {accepted} (see checkpoints=)")
        self.passes, self.ratio, self.iterations = passes, ratio, iterations
        self.length_options: dict[str, Any] = {
            "warmup_ratio": warmup_ratio,
            "max_warmup": max_warmup,
            "max_eval_interval": max_eval_interval,
            "extra_step": extra_step,
        }

    def phases(self, corpora: Corpora, setting: Setting) -> list[Phase]:
        """Return both phases.

        Raises:
            ConfigError: the corpora are no pair, a phase would have no iteration, or phase 0 ends before a checkpoint.
        """
        if list(corpora) != ["first", "second"]:
            raise ConfigError(
                "benchmark=continual_pretraining needs a pair of corpora: dataset=pydoc_stdlib, texts or wiki_owt; "
                "benchmark=one_text trains on one"
            )
        first, second = corpora["first"], corpora["second"]
        replay, block_size, mix_by = setting.replay, setting.block_size, setting.mix_by
        first_in_phase_0 = first["train"].part(self.ratio[0])
        first_in_phase_1, second_in_phase_1 = (file["train"].part(self.ratio[1]) for file in (first, second))
        mixtures = [Mixture((first_in_phase_0,), (1.0,), block_size, mix_by)]
        val = [{"first": (first["val"], 1.0)}]
        dataset_tokens = [len(first["train"])]
        if replay == 0:
            mixtures.append(Mixture((second_in_phase_1,), (1.0,), block_size, mix_by))
            val.append({"second": (second["val"], 1.0)})
            dataset_tokens.append(len(second["train"]))
        else:
            files = (first_in_phase_1, second_in_phase_1)
            mixtures.append(Mixture(files, (replay, 1 - replay), block_size, mix_by))
            val.append({"first": (first["val"], replay), "second": (second["val"], 1 - replay)})
            dataset_tokens.append(len(first["train"]) + len(second["train"]))
        phases = []
        for i, mixture in enumerate(mixtures):
            length = phase_length(
                dataset_tokens[i],
                self.passes[i],
                setting.tokens_per_iteration,
                self.ratio[i],
                iterations=None if self.iterations is None else self.iterations[i],
                **self.length_options,
            )
            if length is None or length.iterations == 0:
                raise ConfigError(f"phase {i} has less than one iteration of {setting.tokens_per_iteration} tokens")
            phases.append(Phase(mixture, val[i], length))
        steps = phases[0].length.steps
        if beyond := [number for number in self.checkpoints if number > steps]:
            if is_given("benchmark.checkpoints") or self.start in beyond:
                raise ConfigError(
                    f"benchmark.checkpoints={self.checkpoints} go beyond phase 0, which has {steps} steps"
                )
            log.info("benchmark.checkpoints: %s are beyond phase 0, which has %d steps, and not kept", beyond, steps)
        return phases
