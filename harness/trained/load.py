"""Load a trained run: its networks in evaluation mode, their preprocessing and their evaluation.

from harness import load

trained = load("runs/vision/warm_start-cifar10-fire-s0-1a2b3c4d")
logits = trained.model(trained.preprocess(images))
print(trained.evaluate())                    # the numbers of the run's last row, measured again
torch.save(trained.model.state_dict(), "weights.pt")
"""

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from harness.config.config import set_up_torch
from harness.config.errors import ConfigError, TrainingError, first_line
from harness.program.by_name import program_of
from harness.run import checkpoint
from harness.run.contents import digest_of
from harness.run.files import content_of, reading
from harness.run.own_code import own_sources
from harness.run.own_environments import recorded_sources
from harness.trained.options import environments, recompose, targets_below
from harness.training import seeding
from harness.training.learner import LearnerBase

log = logging.getLogger(__name__)
# What options or a state that no run has written may raise while networks are built and filled.
FAULTS_OF_A_FOLDER = (
    AttributeError, LookupError, OmegaConfBaseException, OverflowError, RuntimeError, TypeError, ValueError
)  # fmt: skip


@dataclass(frozen=True)
class Trained:
    """A trained run.

    Attributes:
        program: the program that trained it: vision, language, dqn or sac.
        config: the run's options.
        modules: the networks by name, in evaluation mode: `model` (vision, language), `q` (dqn), `actor` and critics
            (sac).
        preprocess: converts raw data to a network's input: uint8 images (n, C, H, W), text, or observations (n, ...).
        evaluate: measures the numbers of the run's last row again: test accuracy, validation loss, greedy return.
        row: the last row that the run has logged.
        step: the run's step at which the weights were saved.
        task: the program's task, for everything that has no attribute here.
        learner: the program's learner, likewise.
    """

    program: str
    config: Any
    modules: Mapping[str, nn.Module]
    preprocess: Callable[..., Any]
    evaluate: Callable[[], dict[str, float]]
    row: dict[str, Any]
    step: int
    task: Any
    learner: Any

    @property
    def model(self) -> nn.Module:
        """The main network: the classifier, the language model, the Q-network or the actor."""
        return next(iter(self.modules.values()))

    @classmethod
    def of(
        cls,
        program: str,
        task: Any,
        learner: LearnerBase,
        state: dict[str, Any],
        preprocess: Callable[..., Any],
        evaluate: Callable[[], dict[str, float]],
    ) -> "Trained":
        """Return the run of a new learner, into which the networks of a checkpoint's state are put here."""
        learner.load_networks(state)
        learner.phase, learner.step = state["phase"], state["step"]
        for module in learner.net.modules.values():
            module.eval()
        return cls(
            program=program,
            config=task.config,
            modules=learner.net.modules,
            preprocess=preprocess,
            evaluate=functools.partial(evaluate_as_trained, task, evaluate),
            row=state["row"],
            step=state["step"],
            task=task,
            learner=learner,
        )


def load(
    folder: str | Path,
    device: str = "cpu",
    config_dir: str | Path | None = None,
    modules: Collection[str] = (),
) -> Trained:
    """Load a run in its newest state: at its end, or at its newest checkpoint.

    The run's data must be where they were. The run may still be training. A damaged checkpoint is named in a warning,
    and the one before it is loaded: `Trained.step` says which. Torch's threads, its determinism and its random
    generators are afterwards as they were, also after `Trained.evaluate`, which uses the run's own.

    No code comes from the folder. Only classes that files of this installation's `conf/` (or `config_dir`) name are
    built, the run's values are checked as options of the command line are, and weights are read with `weights_only`.

    Args:
        folder: a run folder, `runs/<program>/<name>`.
        device: the networks' device: auto, cpu, cuda, cuda:<n> or mps.
        config_dir: the folder of `--config-dir`, if the run was trained with that option.
        modules: names of your own modules that hold the run's environments (`mine` of `env.task=mine:Name-v0`); no
            other module that the folder names is imported.

    Returns:
        The networks in evaluation mode, with what prepares their inputs and measures them again.

    Raises:
        ConfigError: the folder is no run folder, has no checkpoint, is damaged, or does not fit this installation.
        TrainingError: the folder or a checkpoint cannot be read at the moment.
    """
    path = Path(folder).expanduser()
    config = recompose(path, None if config_dir is None else Path(config_dir).expanduser(), modules)
    config.device, config.progress = device, False
    for option in ("download", "cache"):  # what is loaded uses no network and writes no decoded images
        if OmegaConf.select(config, f"dataset.{option}", throw_on_missing=False):
            config.dataset[option] = False
    if config.threads is not None:  # a run of a larger machine
        config.threads = min(config.threads, os.cpu_count() or 1)
    if OmegaConf.select(config, "env.options.render_mode", throw_on_missing=False) not in (None, "rgb_array"):
        config.env.options.render_mode = None  # a window would need a display
    state = newest_state(path)
    warn_of_changed_code(path, targets_below(config), {name.rpartition(":")[0] for _, name in environments(config)})
    program = program_of(config.program)
    try:
        with torch_as_before():
            trained: Trained = program.load(config, state)
    except FAULTS_OF_A_FOLDER as error:
        if isinstance(error, ConfigError | TrainingError):
            raise
        # torch names the first weight that does not fit in the second line
        reason = " ".join(" ".join(str(error).split("\n")[:2]).split()) or first_line(error)
        raise ConfigError(f"{path}: its weights do not fit what its options build here ({reason})") from error
    return trained


def warn_of_changed_code(folder: Path, targets: Set[str], modules: Set[str] = frozenset()) -> None:
    """Name the files of the user's own that a run was trained with and that are others now.

    Args:
        folder: the run's folder.
        targets: the `_target_`s of the run's recomposed options.
        modules: those of its environments. Nothing else is imported, whatever the folder says.

    Raises:
        TrainingError: identity.json cannot be read at the moment.
    """
    file = folder / "identity.json"
    with reading(file):
        content = content_of(file)
    try:
        described = json.loads(content) if content else None
        sources = [*own_sources(described, targets), *recorded_sources(described, modules)]
    except (ValueError, RecursionError):
        log.warning("%s is damaged: whether code of your own has changed since is not known", file)
        return
    for source, digest in sources:
        if digest_of(source) != digest:
            log.warning("%s has changed since %s was trained", source, folder)


@contextlib.contextmanager
def torch_as_before() -> Iterator[None]:
    """After this block torch has the threads, the determinism and the states of random generators that it had before.

    For code that is called within a user's own process, such as a notebook that also trains.
    """
    threads, random_states = torch.get_num_threads(), seeding.rng_state()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        seeding.set_rng_state(random_states)


def evaluate_as_trained(task: Any, evaluate: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return what `evaluate` measures with the threads and the determinism that the run had."""
    with torch_as_before():
        set_up_torch(task.device, task.config.threads, task.config.deterministic)
        return evaluate()


def newest_state(folder: Path) -> dict[str, Any]:
    """Return the trainer's state in the newest undamaged checkpoint; nothing in the folder is changed.

    Raises:
        ConfigError: there is no undamaged checkpoint.
        TrainingError: the folder or a checkpoint cannot be read at the moment.
    """
    files = checkpoint.newest_first(folder / "checkpoints")
    reason = "it has no checkpoint"
    for file in files:
        try:
            state: dict[str, Any] = checkpoint.read(file, "cpu")["state"]["trainer"]
            return state
        except torch.OutOfMemoryError:
            raise
        except TrainingError:
            if file.exists():
                raise
            continue  # the run is still training, and has deleted its oldest checkpoint
        except Exception as error:  # a damaged file can fail in any way
            reason = f"{file.name}: {' '.join(first_line(error).split())}"
            if file != files[-1]:
                log.warning("checkpoint %s is damaged: loading the one before it", file)
    raise ConfigError(f"{folder} cannot be loaded: {reason}")
