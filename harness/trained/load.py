"""A trained run as modules in evaluation mode, with what they need to be used.

from harness import load

trained = load("runs/vision/warm_start-cifar10-fire-s0-1a2b3c4d")
logits = trained.model(trained.preprocess(images))
print(trained.evaluate())                    # the numbers of the run's last row, measured again
torch.save(trained.model.state_dict(), "weights.pt")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harness.config.errors import ConfigError, one_line
from harness.run import checkpoint
from harness.run.programs import program_of
from harness.trained.options import recompose


@dataclass(frozen=True)
class Trained:
    """A trained run.

    Attributes:
        program: which trained it: vision, language, dqn or sac.
        config: the run's options.
        modules: its networks by name, in evaluation mode: `model` (vision, language), `q` (dqn), `actor` and critics
            (sac).
        preprocess: makes a network's input of what the run was given: uint8 images (n, C, H, W), text, observations
            (n, ...).
        evaluate: measures the numbers of the run's last row again: test accuracy, validation loss, greedy return.
        row: the last row that the run has logged.
        step: of the run, at which these weights were.
        task: the program's own task, for what is not here.
        learner: the program's own learner, likewise.
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
        """The network that answers: the classifier, the language model, the values of actions, the policy."""
        return next(iter(self.modules.values()))


def load(folder: str | Path, device: str = "cpu", config_dir: str | Path | None = None) -> Trained:
    """The networks of a run as it stands: at its end, or at its newest checkpoint.

    No code comes from the folder: what is built is what the names of its choices mean in this installation, its values
    are checked as options are, and its weights are read with `weights_only`.

    Args:
        folder: a run folder, `runs/<program>/<name>`.
        device: where the networks go: auto, cpu, cuda, cuda:<n> or mps.
        config_dir: a folder of one's own choices, if the run was made with `--config-dir`.

    Raises:
        ConfigError: it is no run folder, has no checkpoint, is damaged, or does not fit this installation.
    """
    path = Path(folder).expanduser()
    config = recompose(path, None if config_dir is None else Path(config_dir).expanduser())
    config.device, config.progress = device, False
    state = newest_state(path)
    program = program_of(config.program)
    task = program.make_task(config)
    try:
        trained: Trained = program.load(task, state)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(one_line(error).split())
        raise ConfigError(f"{path}: its weights do not fit what its options build here ({reason})") from error
    return trained


def newest_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint that is whole; nothing in the folder changes.

    Raises:
        ConfigError: there is none.
    """
    files = checkpoint.newest_first(folder / "checkpoints")
    reason = "it has no checkpoint"
    for file in files:
        try:
            state: dict[str, Any] = checkpoint.read(file, "cpu")["state"]["trainer"]
            return state
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            reason = f"{file.name}: {' '.join(one_line(error).split())}"
    raise ConfigError(f"{folder} cannot be loaded: {reason}")
