"""The phases of continual pre-training (the paper's figure 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fire_core.harness.options.errors import ConfigError
from fire_core.ranges import Count, Share, checked, within
from language.data import Mixture, TokenFile
from language.schedule import Length, phase_length

STARTS = ("best", "end", "scratch")
Passes = Annotated[float, within(0, 1_000_000, open_low=True)]
Ratio = Annotated[float, within(0, 1, open_low=True)]
Iterations = Annotated[int, within(1, 10**12)]


@dataclass(frozen=True)
class Phase:
    """What data, how long, and what it is measured on."""

    data: Mixture
    val: dict[str, tuple[TokenFile, float]]  # name -> held-out tokens and their weight in val/loss
    length: Length

    @property
    def rows_every(self) -> int:
        """Iterations between two rows of the log."""
        return max(1, self.length.eval_interval)


def parse_start(start: str | int) -> str | int:
    """`best`, `end`, `scratch` or a number of iterations: 30k and 30000 alike.

    Raises:
        ValueError: it is none of these.
    """
    start = str(start)
    number = start[:-1] + "000" if start.endswith("k") else start
    if start not in STARTS and not number.isdigit():
        raise ValueError(f"start={start} is unknown; accepted: {', '.join(STARTS)}, iterations such as 600 or 30k")
    return start if start in STARTS else int(number)


class ContinualPretraining:
    """Phase 0 overfits a small corpus; phase 1 continues from one of its checkpoints on a mixture with a larger one.

    Args:
        start: checkpoint of phase 0 from which phase 1 starts: `best` (validation loss), `end`, one of `checkpoints`
            (30000 or 30k), or `scratch` (the initial weights: phase 0 is not trained).
        passes: over the data, in each phase.
        checkpoints: iterations of phase 0 at which weights are kept.
        ratio: part of the data that each phase uses.
        iterations: of each phase, instead of what `passes` come to.
        warmup_ratio, max_warmup, max_eval_interval, extra_step: see `language.schedule.phase_length`.

    Raises:
        ValueError: an option is out of its range.
    """

    methods_from_phase = 1

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
        self.arithmetic: dict[str, Any] = {
            "warmup_ratio": warmup_ratio,
            "max_warmup": max_warmup,
            "max_eval_interval": max_eval_interval,
            "extra_step": extra_step,
        }

    def phases(
        self,
        first: Mapping[str, TokenFile],
        second: Mapping[str, TokenFile],
        block_size: int,
        tokens_per_iteration: int,
        replay: float,
        mix_by: str,
    ) -> list[Phase]:
        """Both phases.

        Args:
            first: the small corpus, by split.
            second: the large one.
            block_size: of the model.
            tokens_per_iteration: of an optimizer step.
            replay: probability with which a batch of phase 1 is of the small corpus.
            mix_by: what is drawn from one corpus, `batch` or `sequence`.

        Raises:
            ConfigError: a phase would have no iteration, or ends before a checkpoint.
        """
        alone = (first["train"].part(self.ratio[0]),)
        both = tuple(file.part(self.ratio[1]) for file in (first["train"], second["train"]))
        mixtures = [
            Mixture(alone, (1.0,), block_size, mix_by),
            Mixture(both, (replay, 1 - replay), block_size, mix_by),
        ]
        whole = [len(first["train"]), len(first["train"]) + len(second["train"])]
        phases = []
        for i, mixture in enumerate(mixtures):
            iterations = None if self.iterations is None else self.iterations[i]
            length = phase_length(
                whole[i], self.passes[i], tokens_per_iteration, self.ratio[i], iterations=iterations, **self.arithmetic
            )
            if length is None or length.iterations == 0:
                raise ConfigError(f"phase {i} has less than one iteration of {tokens_per_iteration} tokens")
            val = {"first": (first["val"], 1.0)}
            if i == 1:
                val = {"first": (first["val"], replay), "second": (second["val"], 1 - replay)}
            phases.append(Phase(mixture, val, length))
        if self.checkpoints and self.checkpoints[-1] > phases[0].length.steps:
            raise ConfigError(
                f"benchmark.checkpoints={self.checkpoints} go beyond phase 0, which has {phases[0].length.steps} steps"
            )
        return phases
