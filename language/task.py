"""What is fixed before the first step of `language.train`: options, processes, data, phases."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import Tensor, nn

from fire_core.harness.options.build import build
from fire_core.harness.options.config import Trunk, identity, set_up_torch
from fire_core.harness.options.errors import ConfigError
from fire_core.harness.options.tables import register
from fire_core.harness.training import seeding
from fire_core.methods import Method, Net
from language.benchmark import Phase
from language.data import TokenFile, evenly_spaced
from language.model import GPT
from language.prepare import load
from language.process_group import Team
from language.tokenizers import get_tokenizer


@dataclass
class LanguageConfig(Trunk):
    """Options of `language.train`; `conf/language.yaml` fills them in."""

    program: str = "language"
    method: Any = MISSING
    dataset: Any = MISSING
    model: Any = MISSING
    benchmark: Any = MISSING
    optimizer: Any = MISSING
    tokenizer: str = "byte"  # byte, gpt2
    batch_size: int = MISSING  # sequences that one process takes at once
    accumulation: int = 1  # such batches in an optimizer step, those of all processes together
    eval_sequences: int = MISSING  # held-out sequences of each corpus that are looked at
    lr: float = 4e-3  # for gpt_tiny; the paper's 6e-4 is in experiment=fig3
    min_lr_ratio: float = 0.1  # of lr, at the end of each phase
    grad_clip: float | None = 1.0
    precision: str = "float32"  # float32, bfloat16 (autocast)
    compile: bool = False  # torch.compile
    parallel: str = "ddp"  # several processes: ddp (copies of the weights), fsdp (shards of them)


register("language", LanguageConfig, "budget/language", "tuned/language", "tuned/language_experiment")


@dataclass
class Task:
    """What is fixed before the first step: processes, data, phases, options. Everything else is a `Learner`."""

    config: DictConfig
    team: Team
    corpora: dict[str, dict[str, TokenFile]]  # first and second, by split
    vocab_size: int
    phases: list[Phase]
    val: list[dict[str, Tensor]]  # of each phase: (n, block_size + 1) held-out tokens by corpus
    start: str | int
    methods_from_phase: int
    method_acts_within: bool

    @classmethod
    def from_config(cls, config: DictConfig, team: Team) -> "Task":
        """Check the options and open the data, which are prepared if that needs no download.

        Raises:
            ConfigError: an option is out of its range, or the data are not there or not good.
        """
        check_options(config, team)
        set_up_torch(team.device, config.threads, config.deterministic)
        tokenizer = get_tokenizer(config.tokenizer)
        corpora = {}
        for part in ("first", "second"):
            options: Any = OmegaConf.to_container(config.dataset[part], resolve=True)
            corpora[part] = load(Path(config.paths.data), options, tokenizer, local=options["local"])
        benchmark = build("benchmark", config.benchmark)
        block = config.model.block_size
        phases = benchmark.phases(
            corpora["first"],
            corpora["second"],
            block,
            config.batch_size * config.accumulation * block,
            config.dataset.replay,
            config.dataset.mix_by,
        )
        val = [
            {name: evenly_spaced(file, block, config.eval_sequences) for name, (file, _) in phase.val.items()}
            for phase in phases
        ]
        method = build("method", config.method)
        task = cls(
            config, team, corpora, tokenizer.vocab_size, phases, val, benchmark.start, benchmark.methods_from_phase,
            method.acts_within_phases,
        )  # fmt: skip
        check_method(task, method)
        build("optimizer", config.optimizer, params=[nn.Parameter(torch.zeros(1))])
        return task

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.team.device

    @property
    def sharded(self) -> bool:
        """Whether each process holds a part of every weight."""
        return self.team.size > 1 and bool(self.config.parallel == "fsdp")

    @property
    def first_phase(self) -> int:
        """The phase that training starts with: from scratch there is no phase 0."""
        return 1 if self.start == "scratch" else 0

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return sum(phase.length.steps for phase in self.phases[self.first_phase :])

    @property
    def tokens_per_step(self) -> int:
        """Over all processes."""
        return int(self.config.batch_size * self.config.accumulation * self.config.model.block_size)

    def method_acts_in(self, phase: int) -> bool:
        """Whether the method shapes what happens within `phase`."""
        return self.method_acts_within and phase >= self.methods_from_phase

    def identity(self) -> dict[str, Any]:
        """What shapes the run's numbers: its options, and the tokens themselves rather than where they lie."""
        options: Any = OmegaConf.to_container(self.config, resolve=True)
        tokens = {
            part: {split: file.header["sha256"] for split, file in files.items()}
            for part, files in self.corpora.items()
        }
        return {**identity(options, "parallel"), "tokens": tokens}

    def autocast(self) -> torch.autocast:
        """bfloat16 where it is asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")


def check_options(config: DictConfig, team: Team) -> None:
    """Refuse what would fail later.

    Raises:
        ConfigError: with the option's name and what is accepted.
    """
    for option in ("batch_size", "accumulation", "eval_sequences"):
        if config[option] < 1:
            raise ConfigError(f"{option} must be at least 1, got {config[option]}")
    for option in ("lr", "grad_clip"):
        if config[option] is not None and not config[option] > 0:
            raise ConfigError(f"{option} must be positive, got {config[option]}")
    for option, value in (("min_lr_ratio", config.min_lr_ratio), ("dataset.replay", config.dataset.get("replay"))):
        if value is None or not 0 <= value <= 1:
            raise ConfigError(f"{option} must be in [0, 1], got {value}")
    for option, value, accepted in (
        ("precision", config.precision, ("float32", "bfloat16")),
        ("parallel", config.parallel, ("ddp", "fsdp")),
        ("on_nan", config.on_nan, ("stop", "skip")),
        ("dataset.mix_by", config.dataset.mix_by, ("batch", "sequence")),
    ):
        if value not in accepted:
            raise ConfigError(f"{option}={value} is unknown; accepted: {', '.join(accepted)}")
    if config.accumulation % team.size:
        raise ConfigError(
            f"accumulation={config.accumulation} batches cannot be dealt to {team.size} processes: take a multiple"
        )


def check_method(task: Task, method: Method) -> None:
    """Whether the method can work on the model, and the way in which it is trained here.

    Raises:
        ConfigError: it cannot.
    """
    config, kind = task.config, type(method)
    try:
        method.check(Net({"model": build_model(config, task.vocab_size)}, {}))
    except ValueError as error:
        raise ConfigError(f"method={config.method.name} cannot work with model={config.model.name}: {error}") from error
    looks = kind.after_step is not Method.after_step or kind.after_epoch is not Method.after_epoch
    if looks and task.team.size > 1:
        raise ConfigError(
            f"method={config.method.name} acts on what one process sees: the processes would drift apart. Use one"
        )
    if method.acts_within_phases and task.sharded:
        raise ConfigError(f"method={config.method.name} acts within phases, on whole weights: it needs parallel=ddp")
    if kind.watch is not Method.watch and config.compile:
        raise ConfigError(
            f"method={config.method.name} watches units, which compiled code does not show: compile=false"
        )


def build_model(config: DictConfig, vocab_size: int) -> GPT:
    """The network of `model=`, for the tokenizer's vocabulary."""
    options = {key: config.model[key] for key in config.model if key != "layout"}
    model: GPT = build("model", options, vocab_size=vocab_size)
    return model


def draw(task: Task, phase: int, step: int, number: int) -> tuple[Tensor, Tensor]:
    """Batch `number` of a step, wherever it is computed: (batch_size, block_size) inputs and next tokens.

    Its places come from a seed of its own, so that neither a resume nor the number of processes changes them.
    """
    generator = np.random.Generator(np.random.Philox(seeding.derive(task.config.seed, "batch", phase, step, number)))
    inputs, targets = task.phases[phase].data.batch(generator, task.config.batch_size)
    if task.device.type != "cuda":
        return inputs.to(task.device), targets.to(task.device)
    # The GPU is still at the step before: it takes the batch from pinned memory when it gets there.
    return (
        inputs.contiguous().pin_memory().to(task.device, non_blocking=True),
        targets.contiguous().pin_memory().to(task.device, non_blocking=True),
    )


def first_phase_shape(what: dict[str, Any]) -> dict[str, Any]:
    """The part of a run's identity that shapes phase 0: neither the method nor anything of phase 1."""
    benchmark = {key: value for key, value in what["benchmark"].items() if key != "start"}
    for key in ("passes", "ratio", "iterations"):
        benchmark[key] = benchmark[key] and benchmark[key][:1]
    rest = {key: value for key, value in what.items() if key not in ("method", "dataset", "tokens")}
    return {**rest, "benchmark": benchmark, "dataset": what["dataset"]["first"], "tokens": what["tokens"]["first"]}
