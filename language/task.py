"""Everything about a language run that is fixed before its first step: options, processes, data, phases."""

import contextlib
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import Tensor

from fire_core.methods import Method, Net
from fire_core.methods.full_reset import FullReset
from fire_core.methods.protocol import Weights, tensors_of
from fire_core.ranges import Positive, Share, Width, one_of, within
from fire_core.triggers import Plateau, Trigger
from harness.config.build import build
from harness.config.checks import Group, check_method, check_optimizer, check_options, check_phases
from harness.config.config import Compile, ProgramConfig, autocast, set_up_torch
from harness.config.errors import ConfigError
from harness.config.given import idle_beside, idle_layout, refuse_idle
from harness.config.groups import register
from harness.config.paths import expanded
from harness.config.trigger import acts_at_boundaries, build_trigger, check_trigger
from harness.run.identity import digest, identity, without
from harness.training import seeding
from harness.training.plasticity import LEVELS, resolve_level
from language.benchmark import STARTS, Benchmark, Phase, Setting, parse_start
from language.copies import warn_of_copies
from language.data import TokenFile, evenly_spaced
from language.model import GPT
from language.prepare import load
from language.process_group import ProcessGroup, world_size
from language.schedule import learning_rate
from language.tokenizers import get_tokenizer


@dataclass
class LanguageConfig(ProgramConfig):
    """Options of `language.train`; `conf/language.yaml` fills them in."""

    program: Annotated[str, one_of("language")] = "language"
    method: Group = MISSING
    dataset: Group = MISSING
    model: Group = MISSING
    benchmark: Group = MISSING
    optimizer: Group = MISSING
    tokenizer: str = "byte"  # byte, gpt2
    batch_size: Width = MISSING  # sequences that one process takes at once
    accumulation: Width = 1  # such batches in an optimizer step, those of all processes together
    eval_sequences: Width = MISSING  # held-out sequences of each corpus that are evaluated
    lr: Positive = 4e-3  # for gpt_tiny; the paper's 6e-4 is in experiment=fig3
    min_lr_ratio: Share = 0.1  # of lr, at the end of each phase
    tuned: str = "auto"  # the setting whose tuned values the method takes, a file of conf/tuned
    grad_clip: Positive | None = 1.0
    # At boundaries. off: SFE alone; weights: DfI too; cheap: losses and divergence too; full: also the weights'
    # stable rank. auto: cheap up to a million weights, beyond weights.
    metrics: Annotated[str, one_of("auto", *LEVELS)] = "auto"
    # Half precision: autocast; float16, the authors' choice, with a gradient scaler.
    precision: Annotated[str, one_of("float32", "bfloat16", "float16")] = "float32"
    compile: Compile = "off"


# Options that a data set of two corpora has in addition, with what they accept.
PAIR = {"dataset.replay": within(0, 1), "dataset.mix_by": one_of("batch", "sequence")}
register("language", LanguageConfig)


@dataclass
class Task:
    """Everything that is fixed before the first step; what changes while a run trains is in the `Learner`.

    Attributes:
        config: the options, as a plain dataclass, because reading a DictConfig takes as long as a small operation.
        group: the processes of the run.
        corpora: token files by the corpus's name (for a pair: first, second), then by split.
        vocab_size: size of the tokenizer's vocabulary.
        benchmark: the benchmark.
        phases: its phases on these corpora.
        model: the network at its initial weights, on the CPU. A template, like the method and the trigger: learners
            copy them.
        method: the method, before the run.
        trigger: the trigger, before the run; None if the method acts at boundaries.
        rows: held-out tokens of each token file, int64 (n, block_size + 1), before a phase relabels them.
    """

    config: LanguageConfig
    group: ProcessGroup
    corpora: dict[str, dict[str, TokenFile]]
    vocab_size: int
    benchmark: Benchmark
    phases: list[Phase]
    model: GPT
    method: Method
    trigger: Trigger | None
    rows: dict[Path, Tensor] = field(default_factory=dict)

    METRICS: ClassVar[tuple[str, ...]] = ("loss",)  # numbers of each step that triggers can follow

    @classmethod
    def from_config(cls, config: DictConfig, prepares: bool = True) -> "Task":
        """Check the options, open the data (prepared here if that needs no download), build network and method.

        Args:
            config: the options.
            prepares: False: a corpus that is not prepared is an error.

        Raises:
            ConfigError: an option is out of its range, the data are not there or damaged, or do not fit together.
        """
        # These checks come before processes join, so that each process reports the error itself.
        check_options(config, PAIR if "replay" in config.dataset else None)
        if config.accumulation % (size := world_size()):
            raise ConfigError(
                f"accumulation={config.accumulation} batches cannot be dealt to {size} processes: take a multiple"
            )
        options = OmegaConf.to_object(config)
        assert isinstance(options, LanguageConfig)
        group = ProcessGroup.join(config.device)
        set_up_torch(group.device, config.threads, config.deterministic)
        tokenizer = get_tokenizer(config.tokenizer)
        # Everything that needs no data is checked first, because preparing data takes time and writes files.
        benchmark = build("benchmark", config.benchmark, Benchmark)
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        model, method = build_model(options, tokenizer.vocab_size), build("method", config.method, Method)
        options.metrics = resolve_level(options.metrics, model)
        trigger = build_trigger(options.trigger)
        keeps_optimizer = benchmark.keeps_optimizer or trigger is not None
        renewed_by = "" if keeps_optimizer else f"benchmark={options.benchmark['name']}"
        check_works(options, group, model, method, renewed_by)
        check_optimizer(config.optimizer)
        idle = {} if has_phase_without_method(benchmark) else idle_beside(method, config)
        idle |= idle_layout(config, method, trigger)
        if benchmark.new_tasks:
            idle |= dict.fromkeys(PAIR, f"with benchmark={config.benchmark.name}, which has no pair of corpora to mix")
        elif config.benchmark.iterations is not None:
            idle["benchmark.passes"] = f"beside benchmark.iterations={config.benchmark.iterations}: set that to null"
        refuse_idle(idle)
        corpora = open_data(config, prepares)
        block, vocabulary = config.model.block_size, tokenizer.vocab_size
        pair = {key: config.dataset[key] for key in ("replay", "mix_by") if key in config.dataset}
        setting = Setting(block, config.batch_size * config.accumulation * block, vocabulary, config.seed, **pair)
        phases = benchmark.phases(corpora, setting)
        check_phases(config.benchmark.name, [phase.length.steps for phase in phases])
        task = cls(options, group, corpora, vocabulary, benchmark, phases, model, method, trigger)
        for index in range(len(phases)):
            task.held_out(index)  # refuses a corpus that is too short before the run starts
        task.check_trigger()
        return task

    def check_trigger(self) -> None:
        """Check that the trigger can work in this run.

        Raises:
            ConfigError: it cannot, with the reason.
        """
        name = self.config.trigger["name"]
        check_trigger(
            self.config.trigger,
            self.trigger,
            self.method,
            Net({"model": self.model}, {}),
            name=self.config.method["name"],
            metrics=self.METRICS,
            after=self.steps_before_trigger,
            total_steps=self.total_steps,
        )
        if isinstance(self.trigger, Plateau) and self.group.size > 1:
            raise ConfigError(f"trigger={name} adds up losses, of which each process has its own: use one process")

    def new_networks(self, *seed_names: object) -> dict[str, Weights]:
        """Return the weights, alike on all ranks, of a network built as at the start but from a seed of these names."""
        with seeding.seeded(self.config.seed, "init", *seed_names):
            model = build_model(self.config, self.vocab_size).to(self.device)
        self.group.broadcast_(list(model.parameters()))
        return {"model": tensors_of(model)}

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self.group.device

    @property
    def guessed(self) -> float | None:
        """The loss of guessing that all tokens are equally likely; None if the headline is no loss."""
        return math.log(self.vocab_size) if self.headline.endswith("/loss") else None

    @property
    def headline(self) -> str:
        """Name of the number in the summary that is shown and returned."""
        return self.benchmark.headline

    @property
    def scores(self) -> tuple[str, ...]:
        """Numbers of the row that ends a phase by which a search may choose, the usual one first."""
        return ("val/loss", "task/loss", "online/loss") if self.benchmark.new_tasks else ("val/loss", "train/loss")

    @property
    def start(self) -> str | int:
        """The checkpoint of phase 0 that phase 1 starts from."""
        return self.benchmark.start

    @property
    def methods_from_phase(self) -> int:
        """The first phase within which methods act."""
        return self.benchmark.methods_from_phase

    @property
    def first_phase(self) -> int:
        """The phase that training starts with; with `start=scratch` there is no phase 0."""
        return 1 if self.start == "scratch" else 0

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.phase_end(len(self.phases) - 1)

    def phase_end(self, index: int) -> int:
        """Return the step of the run at which phase `index` ends."""
        return sum(phase.length.steps for phase in self.phases[self.first_phase : index + 1])

    def rate_factor(self, index: int, step: int) -> float:
        """Return the factor of the base learning rate for step `step` of phase `index`."""
        length = self.phases[index].length
        return learning_rate(step, length.warmup, length.iterations, 1.0, self.config.min_lr_ratio)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of an optimizer step, of all processes together."""
        return int(self.config.batch_size * self.config.accumulation * self.config.model["block_size"])

    def held_out(self, index: int) -> dict[str, Tensor]:
        """Return the held-out tokens of phase `index` by name, int64 (n, block_size + 1) each, always the same."""
        phase, held_out = self.phases[index], {}
        for name, (file, _) in phase.val.items():
            if file.path not in self.rows:
                self.rows[file.path] = evenly_spaced(file, self.config.model["block_size"], self.config.eval_sequences)
            rows = self.rows[file.path]
            held_out[name] = rows if phase.relabel is None else phase.relabel(rows)
        return held_out

    @property
    def reads_optimizer(self) -> bool:
        """Whether some phase is trained by `optimizer=` and `lr=`, and not by an optimizer that the method brings."""
        return has_phase_without_method(self.benchmark) or not self.method.overrides("optimizer")

    def method_acts_in(self, phase: int) -> bool:
        """Return whether the method's hooks are called within phase number `phase`."""
        return self.method.acts_within_phases and phase >= self.methods_from_phase

    def asks_in(self, phase: int) -> bool:
        """Return whether the trigger is asked within phase number `phase`."""
        return self.trigger is not None and phase >= self.methods_from_phase

    @property
    def steps_before_trigger(self) -> int:
        """Optimizer steps before the first step that the trigger is asked about."""
        return sum(phase.length.steps for phase in self.phases[self.first_phase : self.methods_from_phase])

    def identity(self) -> dict[str, Any]:
        """Return everything that shapes the run's numbers: its options, and digests of the tokens."""
        tokens = {
            part: {split: file.header["sha256"] for split, file in files.items()}
            for part, files in self.corpora.items()
        }
        run_identity = {**identity(asdict(self.config)), "tokens": tokens}
        if "start" in run_identity["benchmark"]:  # 30k and 30000 are one
            start = parse_start(run_identity["benchmark"]["start"])
            run_identity["benchmark"] = run_identity["benchmark"] | {"start": start}
        if self.forgets_start:
            run_identity["benchmark"] = run_identity["benchmark"] | {"start": STARTS[0]}
        return run_identity

    @property
    def forgets_start(self) -> bool:
        """Whether a full reset makes phase 1 the same from any checkpoint of phase 0, so that such runs are one run."""
        resets = isinstance(self.method, FullReset) and acts_at_boundaries(self.config.trigger)
        return resets and not self.benchmark.new_tasks and self.first_phase == 0

    @property
    def name(self) -> str:
        """A name that the processes of one job of a sweep share, and no other job has."""
        return digest(self.identity())

    def seed_dropout(self, learner: Any, *names: object) -> None:
        """Seed what follows in a step if the network drops units, so that no number of processes changes what it drops.

        Args:
            learner: says at which step of which phase it is.
            names: what follows: the number of a micro-batch in the step, or a word.
        """
        if self.config.model.get("dropout"):
            names = ("dropout", learner.phase, learner.phase_step, *names)
            torch.manual_seed(seeding.derive(self.config.seed, *names))

    def first_phase_identity(self) -> dict[str, Any] | None:
        """Return the part of the identity that shapes the first phase; None if its result cannot be shared.

        Runs of several methods share a first phase in which no method acts. Nothing that concerns later phases alone is
        in the result.
        """
        if self.first_phase > 0 or self.method_acts_in(0) or self.asks_in(0):
            return None
        run_identity = self.identity()
        without_method = without(run_identity, ("method", "metrics", "trigger"))
        if self.benchmark.new_tasks:
            return without_method if len(self.phases) > 1 else None
        benchmark = without(run_identity["benchmark"], ("start",))
        for key in ("passes", "ratio", "iterations"):
            benchmark[key] = benchmark[key] and benchmark[key][:1]
        first_corpus = {"dataset": run_identity["dataset"]["first"], "tokens": run_identity["tokens"]["first"]}
        first_corpus["mix_by"] = run_identity["dataset"]["mix_by"]  # batches draw their text, also where there is one
        return {**without_method, "benchmark": benchmark, **first_corpus}

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the network computes in the precision of `precision=`."""
        return autocast(self.device, self.config.precision)


def open_data(config: DictConfig, prepares: bool = True) -> dict[str, dict[str, TokenFile]]:
    """Return the corpora of a configuration by name and split, and prepare those that need no download.

    Args:
        config: the options.
        prepares: False: a corpus that is not prepared is an error.

    Raises:
        ConfigError: they are not there or damaged, or the tokenizer is not.
    """
    tokenizer = get_tokenizer(config.tokenizer)
    dataset: Any = OmegaConf.to_container(config.dataset, resolve=True)
    parts = parts_of_dataset(dataset)
    corpora = {
        name: load(expanded(config.paths.data), corpus, tokenizer, corpus["local"], prepares)
        for name, corpus in parts.items()
    }
    if any("path" in corpus for corpus in parts.values()):  # of a user's own texts nothing is known
        warn_of_copies(corpora, tokenizer)
    return corpora


def parts_of_dataset(dataset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each corpus of `dataset=`, by name.

    These are a single corpus, those of a pair or of domains, and the user's own texts in `dataset.more`.

    Raises:
        ConfigError: `dataset.more` is no list of paths.
    """
    if "_target_" in dataset:
        return {dataset["name"]: dataset}
    parts = {name: part for name, part in dataset.items() if isinstance(part, dict) and "_target_" in part}
    more = dataset.get("more", [])
    if not isinstance(more, list) or not all(isinstance(path, str) for path in more):
        raise ConfigError(f"dataset.more must be a list of files or folders, got {more!r}")
    return parts | {f"text {number}": parts["first"] | {"path": path} for number, path in enumerate(more, 3)}


def has_phase_without_method(benchmark: Benchmark) -> bool:
    """Return whether a run begins with a phase within which no method acts."""
    return benchmark.methods_from_phase > 0 and benchmark.start != "scratch"


def check_works(config: LanguageConfig, group: ProcessGroup, model: GPT, method: Method, renewed_by: str) -> None:
    """Check that the method can work on the model, and in the way in which it is trained here; see `check_method`.

    Raises:
        ConfigError: it cannot, with the reason.
    """
    refused: dict[str, str] = {}
    if group.size > 1:
        local = "acts on what one process sees: the processes would drift apart. Use one"
        refused |= {"before_step": local, "after_step": local, "after_epoch": local}
    if config.precision == "float16":
        skipped = "acts at each step, also where the gradient scaler has skipped one: precision=bfloat16"
        refused |= {"before_step": skipped, "after_step": skipped}
    if config.compile != "off":
        refused["watch"] = "watches units, which compiled code does not show: compile=off"
    net, network = Net({"model": model}, {}), f"model={config.model['name']}"
    name = config.method["name"]
    check_method(method, net, name=name, network=network, without=refused, renewed_by=renewed_by)


def build_model(config: LanguageConfig | DictConfig, vocab_size: int) -> GPT:
    """Build the network of `model=` for the tokenizer's vocabulary."""
    options = {key: config.model[key] for key in config.model if key != "layout"}
    model: GPT = build("model", options, GPT, vocab_size=vocab_size)
    return model


def batch_at(task: Task, phase: int, step: int, number: int) -> tuple[Tensor, Tensor]:
    """Return micro-batch `number` of a step: inputs and next tokens (batch_size, block_size), on the device.

    Its positions in the text have a seed of their own, so that neither a resume nor the number of processes changes
    them.
    """
    generator = np.random.Generator(np.random.Philox(seeding.derive(task.config.seed, "batch", phase, step, number)))
    return draw_batch(task, phase, generator, task.config.batch_size)


def micro_batches(task: Task, phase: int, step: int) -> list[tuple[Tensor, Tensor]]:
    """Return the micro-batches of a step that this process computes, one after the other."""
    own_numbers = range(task.group.rank, task.config.accumulation, task.group.size)
    return [batch_at(task, phase, step, number) for number in own_numbers]


def draw_batch(task: Task, phase: int, generator: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Draw inputs and next tokens (size, block_size) of a phase, and return them on the device."""
    inputs, targets = task.phases[phase].data.batch(generator, size)
    if (relabel := task.phases[phase].relabel) is not None:
        inputs, targets = relabel(inputs), relabel(targets)
    if task.device.type != "cuda":
        return inputs.to(task.device), targets.to(task.device)
    # The GPU is still at the step before. From pinned memory it can take the batch later, without the host waiting.
    return (
        inputs.contiguous().pin_memory().to(task.device, non_blocking=True),
        targets.contiguous().pin_memory().to(task.device, non_blocking=True),
    )
