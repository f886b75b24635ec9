"""Everything about a vision run that is fixed before its first step: options, data on the device, phases."""

import contextlib
import copy
import functools
import hashlib
import inspect
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from omegaconf import MISSING, DictConfig, OmegaConf
from torch import Tensor, nn

from fire_core.methods import Method, Net
from fire_core.methods.full_reset import FullReset
from fire_core.methods.protocol import Weights, tensors_of
from fire_core.ranges import Count, Positive, Share, Width, one_of, within
from fire_core.triggers import Trigger
from harness.config.build import build, find_target, refusal_of
from harness.config.checks import Group, check_method, check_optimizer, check_options, check_outputs, check_phases
from harness.config.config import Compile, ProgramConfig, autocast, resolve_device, set_up_torch
from harness.config.errors import ConfigError, first_line
from harness.config.given import idle_beside, idle_layout, refuse_idle
from harness.config.groups import register
from harness.config.trigger import acts_at_boundaries, build_trigger, check_trigger
from harness.run.identity import identity, without
from harness.training import seeding
from harness.training.plasticity import LEVELS, resolve_level
from vision.benchmarks import Benchmark, Phase
from vision.data import ImageData
from vision.data.bits import BitData
from vision.schedule import authors_factor, warmup


@dataclass
class VisionConfig(ProgramConfig):
    """Options of `vision.train`; `conf/vision.yaml` fills them in."""

    program: Annotated[str, one_of("vision")] = "vision"
    method: Group = MISSING
    dataset: Group = MISSING
    model: Group = MISSING
    benchmark: Group = MISSING
    optimizer: Group = MISSING
    epochs: Count = MISSING  # displayed epochs of a phase
    lr: Positive = 1e-3
    batch_size: Width = 256
    eval_batch_size: Width = 2048
    tuned: str = "auto"  # the setting whose tuned values the method takes, a file of conf/tuned
    holdout: Annotated[float, within(0, 0.9)] = 0.0  # share of the training images that is tested on instead
    augmentation: Annotated[str, one_of("none", "crop_flip")] = "none"  # of training batches: vision/data/augment.py
    grad_clip: Positive | None = 0.5
    warmup: Share = 0.1  # fraction of each phase
    schedule: Annotated[str, one_of("warmup", "reference")] = "warmup"
    # Taken before and after a method acts. off: SFE alone; weights: DfI too, no pass over data; cheap: accuracy, ranks
    # and dormancy too; full: see harness/training/plasticity.py. auto: cheap up to a million weights, beyond weights.
    metrics: Annotated[str, one_of("auto", *LEVELS)] = "auto"
    precision: Annotated[str, one_of("float32", "bfloat16")] = "float32"  # bfloat16: autocast
    memory_format: Annotated[str, one_of("channels_last", "contiguous")] = "channels_last"  # of images and filters
    compile: Compile = "off"  # the training passes
    cuda_graph: bool = False  # the whole training step as one CUDA graph: vision/graph.py
    skip_first_phase: bool = False  # begin with the second one, which a full reset makes independent of the first


register("vision", VisionConfig)


@dataclass
class Task:
    """Everything that is fixed before the first step; what changes while a run trains is in the `Learner`.

    Attributes:
        config: the options, as a plain dataclass, because reading a DictConfig takes as long as a small operation.
        device: the device on which the run trains.
        data: the run's data set, on the device.
        benchmark: the benchmark.
        phases: its phases on this data set.
        model: the network at its initial weights. A template, like the method and the trigger: learners copy them.
        method: the method, before the run.
        trigger: the trigger, before the run; None if the method acts at boundaries.
        changed: data sets of the latest phases that change the run's data set, by the phase's number.
    """

    config: VisionConfig
    device: torch.device
    data: ImageData
    benchmark: Benchmark
    phases: list[Phase]
    model: nn.Module
    method: Method
    trigger: Trigger | None
    changed: dict[int, ImageData] = field(default_factory=dict)

    METRICS: ClassVar[tuple[str, ...]] = ("loss",)  # numbers of each step that triggers can follow

    @classmethod
    def from_config(cls, config: DictConfig, data: ImageData | None = None) -> "Task":
        """Check the options, load the data unless they are given, build network and method; nothing is written.

        Raises:
            ConfigError: an option is out of its range, the data are not there, or options do not fit together.
        """
        check_options(config)
        options = OmegaConf.to_object(config)
        assert isinstance(options, VisionConfig)
        name, network = options.method["name"], f"model={options.model['name']}"
        stream = f"benchmark={options.benchmark['name']}"
        device = resolve_device(config.device)
        set_up_torch(device, config.threads, config.deterministic)
        data = open_data(config) if data is None else data
        benchmark = build("benchmark", config.benchmark, Benchmark)
        if benchmark.needs_classes and data.num_classes < 2:
            images = f"dataset={options.dataset['name']}"
            raise ConfigError(f"{images} has fewer than two classes: {stream} has nothing to tell apart")
        if config.augmentation != "none" and isinstance(data, BitData):
            raise ConfigError(
                f"augmentation={config.augmentation} is of images, and dataset={options.dataset['name']} has none"
            )
        phases = phases_of(options, benchmark, data)
        if config.holdout:
            if not any(len(phase.test) for phase in phases):
                raise ConfigError(f"holdout={config.holdout} has no effect: {stream} tests on no images")
            data = data.held_out(config.holdout)
            try:
                phases = phases_of(options, benchmark, data)
            except ConfigError as error:
                raise ConfigError(f"holdout={config.holdout}: {error}") from error
        if benchmark.headline.startswith("test/") and not all(len(phase.test) for phase in phases):
            raise ConfigError(f"dataset={options.dataset['name']} has no test images: {stream} is scored on them")
        method = build("method", config.method, Method)
        seeding.seed_everything(seeding.derive(config.seed, "init"))
        model = build_model(options, data)
        options.metrics = resolve_level(options.metrics, model)
        trigger = build_trigger(options.trigger)
        task = cls(options, device, data.to(device), benchmark, phases, model, method, trigger)
        model.to(memory_format=task.memory_format)
        task.check_network()
        net = Net({"model": model}, {})
        renewed_by = "" if benchmark.keeps_optimizer or trigger is not None else stream
        check_method(method, net, name=name, network=network, renewed_by=renewed_by)
        check_trigger(
            options.trigger,
            trigger,
            method,
            net,
            name=name,
            metrics=cls.METRICS,
            after=task.steps_before_trigger,
            total_steps=task.total_steps,
        )
        check_optimizer(config.optimizer)
        if config.optimizer.get("fused") and any(parameter.is_complex() for parameter in model.parameters()):
            raise ConfigError(
                f"{network} has complex weights, which torch's fused optimizers cannot take: optimizer.fused=false"
            )
        idle = {} if task.reads_optimizer else idle_beside(method, config)
        idle |= idle_layout(config, method, trigger)
        if config.dataset.get("pixel_noise") == 0:
            idle["dataset.noise_seed"] = "with dataset.pixel_noise=0"
        if not any(len(phase.test) for phase in phases):
            idle["dataset.test_statistics"] = f"with {stream}, which tests on no images"
        refuse_idle(idle)
        task.check_schedule()
        task.check_cuda_graph()
        task.check_skip()
        return task

    def check_skip(self) -> None:
        """Refuse `skip_first_phase=true` where the second phase depends on the first.

        Raises:
            ConfigError: with the reason.
        """
        if not self.config.skip_first_phase:
            return
        resets = isinstance(self.method, FullReset) and acts_at_boundaries(self.config.trigger)
        if not resets or self.benchmark.keeps_optimizer or self.benchmark.new_tasks or len(self.phases) < 2:
            raise ConfigError(
                "skip_first_phase=true needs a method that resets the whole network (full_reset, fresh), in a "
                "benchmark with a first phase and a new optimizer at each boundary"
            )

    def check_cuda_graph(self) -> None:
        """Refuse `cuda_graph=true` where a step cannot be recorded.

        Raises:
            ConfigError: with the reason.
        """
        config, name = self.config, self.config.method["name"]
        if not config.cuda_graph:
            return
        if self.device.type != "cuda":
            raise ConfigError(f"cuda_graph=true needs a CUDA GPU, and device is {self.device.type}")
        if config.compile != "off":
            raise ConfigError(f"cuda_graph=true records the plain step: not with compile={config.compile}")
        if self.trigger is not None or self.method.acts_within_phases or self.method.overrides("optimizer"):
            raise ConfigError(f"cuda_graph=true needs a method that acts at boundaries alone: not method={name} here")
        if config.optimizer["name"] not in ("adam", "adamw"):
            raise ConfigError(f"cuda_graph=true needs optimizer=adam or adamw, got {config.optimizer['name']}")

    def new_networks(self, *seed_names: object) -> dict[str, Weights]:
        """Return the weights of a network that is built as at the start of the run, but from a seed of these names."""
        with seeding.seeded(self.config.seed, "init", *seed_names):
            return {"model": tensors_of(build_model(self.config, self.data))}

    def check_schedule(self) -> None:
        """Raise a ConfigError if the authors' schedule would begin a phase at rate 0."""
        if not all(self.rate_factor(index, 0) for index in range(len(self.phases))):
            raise ConfigError(
                f"schedule=reference begins at rate 0 with epochs={self.config.epochs} and these passes: take "
                "schedule=warmup"
            )

    def rate_factor(self, index: int, step: int) -> float:
        """Return the factor of the base learning rate for step `step` of phase `index`."""
        phase, size, fraction = self.phases[index], self.config.batch_size, self.config.warmup
        if self.config.schedule == "warmup":
            return warmup(step, phase.steps(size), fraction)
        earlier_epochs = sum(earlier.epochs for earlier in self.phases[:index])
        number_of_pass = step // phase.steps_per_pass(size)
        return authors_factor(number_of_pass, phase.epochs, phase.passes_per_epoch, earlier_epochs, fraction)

    def check_network(self) -> None:
        """Check, on the CPU, that the network takes the images as they will be laid out in memory, and what it returns.

        Raises:
            ConfigError: it cannot take them, with the network's own error; or its outputs are no (b, classes), and in a
                regression no (b, 1).
        """
        images, name = self.probe(0, 1)[0].cpu(), f"model={self.config.model['name']}"
        try:
            with torch.no_grad(), Net({"model": self.model}, {}).mode(training=False):
                outputs = self.model(images)
                if any(min(self.config.batch_size, len(phase.train)) == 1 for phase in self.phases):
                    with torch.random.fork_rng():  # a batch of one image, of which batch norm cannot take the variance
                        copy.deepcopy(self.model).train()(images)
        except Exception as error:
            hint = " (memory_format=contiguous may help)" if "view size" in str(error) else ""
            raise ConfigError(f"{name} cannot take images {tuple(images.shape)}: {first_line(error)}{hint}") from error
        classes = self.data.num_classes if self.classifies else 1
        meaning = "a logit for each class" if self.classifies else ""
        check_outputs(name, outputs, (len(images), classes), meaning, more=self.classifies)

    def identity(self) -> dict[str, Any]:
        """Return everything that shapes the run's numbers.

        Images that are not known to be a published data set's are represented by a digest instead of their folder.
        """
        run_identity, dataset, default_root = identity(asdict(self.config)), self.config.dataset, self.config.paths.data
        if not self.data.published or dataset.get("root", default_root) != default_root:
            run_identity["dataset"]["path"] = self.contents
        return run_identity

    @functools.cached_property
    def contents(self) -> str:
        """A digest of all images and labels; with a user's own loader also of statistics, dtypes and shapes."""
        digest, data = hashlib.sha256(), self.data
        tensors = [data.train_images, data.train_labels, data.test_images, data.test_labels]
        if str(self.config.dataset["_target_"]).rpartition(".")[0] != "vision.data":
            tensors += [data.mean, data.std, data.test_mean, data.test_std]
            types = [[str(tensor.dtype), list(tensor.shape)] for tensor in tensors]
            digest.update(json.dumps([data.num_classes, types]).encode())
        for tensor in tensors:
            digest.update(tensor.cpu().numpy().tobytes())
        return digest.hexdigest()

    def first_phase_identity(self) -> dict[str, Any] | None:
        """Return the part of the identity that shapes the first phase; None if its result cannot be shared.

        Runs of several methods share a first phase in which no method acts.
        """
        skips = self.config.skip_first_phase
        shared = len(self.phases) > 1 and not self.method_acts_in(0) and not self.asks_in(0) and not skips
        return without(self.identity(), ("method", "metrics", "trigger")) if shared else None

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.phase_end(len(self.phases) - 1)

    def phase_end(self, index: int) -> int:
        """Return the step of the run at which phase `index` ends."""
        return sum(phase.steps(self.config.batch_size) for phase in self.phases[: index + 1])

    @property
    def reads_optimizer(self) -> bool:
        """Whether some phase is trained by `optimizer=` and `lr=`, and not by an optimizer that the method brings."""
        return self.benchmark.methods_from_phase > 0 or not self.method.overrides("optimizer")

    def method_acts_in(self, phase: int) -> bool:
        """Return whether the method's hooks are called within phase number `phase`."""
        return self.method.acts_within_phases and phase >= self.benchmark.methods_from_phase

    def asks_in(self, phase: int) -> bool:
        """Return whether the trigger is asked within phase number `phase`."""
        return self.trigger is not None and phase >= self.benchmark.methods_from_phase

    @property
    def steps_before_trigger(self) -> int:
        """Optimizer steps before the first step that the trigger is asked about."""
        return sum(phase.steps(self.config.batch_size) for phase in self.phases[: self.benchmark.methods_from_phase])

    @functools.cached_property
    def memory_format(self) -> torch.memory_format:
        """The memory layout of images and filters."""
        if self.config.memory_format == "contiguous" or (self.device.type == "cpu" and has_narrow_shortcut(self.model)):
            return torch.contiguous_format
        return torch.channels_last

    @property
    def headline(self) -> str:
        """Name of the number in the summary that is shown and returned."""
        return self.benchmark.headline

    @property
    def scores(self) -> tuple[str, ...]:
        """Numbers of the row that ends a phase by which a search may choose, the usual one first."""
        if not self.classifies:
            return ("train/loss",)
        tested = any(len(phase.test) for phase in self.phases)
        return (*(("test/accuracy", "test/loss") if tested else ()), "train/accuracy", "train/loss")

    @functools.cached_property
    def guessed(self) -> float | None:
        """The accuracy that guessing could reach: the last phase's largest class as a share, plus 2 standard errors.

        None if the headline is no accuracy, or the phase has no labels.
        """
        if not self.headline.endswith("/accuracy"):
            return None
        index = len(self.phases) - 1
        data, phase = self.data_of(index), self.phases[index]
        tested = self.headline == "test/accuracy"
        samples = on_device(phase.test if tested else phase.train, self.device)
        labels = (data.test_labels if tested else data.train_labels)[samples]
        if not len(labels):
            return None
        share = labels.bincount().max().item() / len(labels)
        return share + 2 * math.sqrt(share * (1 - share) / len(labels))

    @property
    def classifies(self) -> bool:
        """Whether labels are classes; if not, they are numbers, and the loss is the squared error."""
        return not self.data.train_labels.is_floating_point()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (b, classes), or the mean squared error of outputs (b, 1)."""
        return F.cross_entropy(outputs, labels) if self.classifies else F.mse_loss(outputs.squeeze(1), labels)

    def data_of(self, index: int) -> ImageData:
        """Return the data set of phase `index`, made from the run's if the phase changes it.

        Raises:
            ConfigError: the phase makes no data set, or one without some of its images.
        """
        phase = self.phases[index]
        if phase.change is None:
            return self.data
        if index not in self.changed:
            changed, where = phase.change(self.data), f"benchmark={self.config.benchmark['name']}: phase {index}"
            if not isinstance(changed, ImageData):
                raise ConfigError(f"{where}: change must return an ImageData, not a {type(changed).__name__}")
            check_indices(where, phase, changed)
            # Of other phases only the neighbours are kept: accuracy on the task before is measured, too.
            self.changed = {i: data for i, data in self.changed.items() if abs(i - index) == 1}
            self.changed[index] = changed
        return self.changed[index]

    def train_batch(self, index: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised training images (b, C, H, W) and labels (b,) of phase `index`, at these indices (b,)."""
        data = self.data_of(index)
        images = data.train_images[samples].contiguous(memory_format=self.memory_format)
        return data.normalise_train(images), data.train_labels[samples]

    def test_batch(self, index: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised test images (b, C, H, W) and labels (b,) of phase `index`, at these indices (b,)."""
        data = self.data_of(index)
        images = data.test_images[samples].contiguous(memory_format=self.memory_format)
        return data.normalise_test(images), data.test_labels[samples]

    def probe(self, index: int, number: int) -> tuple[Tensor, Tensor]:
        """Return the first `number` test images and labels, of any class; training images if there is no test set."""
        if len(self.phases[index].test):
            tested = len(self.data_of(index).test_labels)
            return self.test_batch(index, torch.arange(min(number, tested), device=self.device))
        return self.train_batch(index, on_device(self.phases[index].train[:number], self.device))

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the network computes in the precision of `precision=`."""
        return autocast(self.device, self.config.precision)


def open_data(config: DictConfig) -> ImageData:
    """Return the data set of a configuration.

    Raises:
        ConfigError: it is not there, or is damaged.
    """
    data: ImageData = build("dataset", config.dataset, ImageData)
    return data


def phases_of(config: VisionConfig, benchmark: Benchmark, data: ImageData) -> list[Phase]:
    """Return the phases of the benchmark on a data set.

    Raises:
        ConfigError: the data set is too small or of another kind, there is no phase, or one makes no training step.
    """
    if not len(data.train_labels) and not isinstance(data, BitData):  # of bits a stream makes the examples
        raise ConfigError(f"dataset={config.dataset['name']} has no training images")
    stream = f"benchmark={config.benchmark['name']}"
    try:
        made: Any = benchmark.phases(data, epochs=config.epochs, seed=config.seed)  # of a class of the user's, perhaps
        if not isinstance(made, Iterable):
            raise ConfigError(f"{stream}: phases() must return a list of Phase, not {made!r:.80}")
        phases: list[Any] = list(made)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(refusal_of("benchmark", config.benchmark, error)) from error
    for index, phase in enumerate(phases):
        if not isinstance(phase, Phase):
            kind = type(phase).__name__
            raise ConfigError(f"{stream}: phases() must return a list of Phase, and number {index} is a {kind}")
        if phase.change is None:  # else the phase has a data set of its own, which is checked when it is made
            check_indices(f"{stream}: phase {index}", phase, data)
    check_phases(config.benchmark["name"], [phase.steps(config.batch_size) for phase in phases])
    return phases


def check_indices(where: str, phase: Phase, data: ImageData) -> None:
    """Raise a ConfigError, which begins with `where`, unless the data set has all images of the phase."""
    for kind, indices, labels in (
        ("training", phase.train, data.train_labels),
        ("test", phase.test, data.test_labels),
        ("test", phase.unseen, data.test_labels),
    ):
        if indices is not None and len(wrong := indices[(indices < 0) | (indices >= len(labels))]):
            raise ConfigError(f"{where} asks for {kind} image {wrong[0]}, and the data set has {len(labels)}, from 0")


def on_device(indices: np.ndarray, device: torch.device) -> Tensor:
    """Return indices as a tensor on the device of the data."""
    return torch.from_numpy(indices).to(device)


def build_model(config: VisionConfig, data: ImageData) -> nn.Module:
    """Build the network of `model=` for the data's classes and image shape, as far as its constructor takes these."""
    data_arguments = {"num_classes": data.num_classes, "in_channels": data.in_channels, "image_size": data.image_size}
    accepted = inspect.signature(find_target("model", config.model)).parameters
    arguments = {key: value for key, value in data_arguments.items() if key in accepted}
    options = {key: value for key, value in config.model.items() if key != "layout"}
    model: nn.Module = build("model", options, nn.Module, **arguments)
    return model


def has_narrow_shortcut(model: nn.Module) -> bool:
    """Return whether a strided 1x1 convolution reads fewer than 8 channels.

    On CPUs without AVX-512, oneDNN's gradient of such a filter from channels-last images writes past its buffer, which
    gives wrong numbers or a crash (oneDNN issue 6035, in torch 2.14).
    """
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    return any(c.kernel_size == (1, 1) and c.stride != (1, 1) and c.in_channels < 8 for c in convolutions)


def compiled(model: nn.Module, mode: str) -> nn.Module:
    """Return the network compiled for training passes, anew in each phase, as methods' hooks differ between phases.

    This is not in `vision.train` because launchers pickle what a main program names, and `torch.compiler.config` cannot
    be pickled.
    """
    torch.compiler.reset()
    return torch.compile(model, mode=mode)  # type: ignore[return-value]
