"""Errors for the user: which are said on one line without a traceback, in which words, and with which exit code."""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from importlib import metadata
from traceback import walk_tb
from typing import NoReturn, get_type_hints

import torch
import yaml
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fire_core.ranges import problem
from harness.config.errors import EXIT_CONFIG, EXIT_TRAINING, ConfigError, TrainingError, near
from harness.process.console import Stderr

USER_ERRORS = (ConfigError, TrainingError, HydraException, OmegaConfBaseException)
# Torch raises a plain RuntimeError where the CPU's memory ends; its text has one of these.
OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
# Errors of a disk, a network or the process's limits: nothing in this code can be mended, so a message is enough.
SYSTEM_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
    | {errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN}
    | {errno.EAGAIN, errno.ENOMEM, errno.ENXIO, errno.ENODEV, errno.ENOTCONN, errno.EREMOTEIO, errno.ELOOP}
    | {errno.ENAMETOOLONG}
)
INSTALL_PLUGINS = (
    'pip install -e ".[harness,cluster]" brings joblib (cores), submitit_local, submitit_slurm (slurm) and optuna'
)


def wants_traceback() -> bool:
    """Return whether the user asks for tracebacks, by HYDRA_FULL_ERROR=1 in the environment.

    A program sets this variable itself when it starts, and keeps what the user had asked for in FIRE_TRACEBACK.
    """
    return os.environ.get("FIRE_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR")) == "1"


def exit_with(error: Exception) -> NoReturn:
    """Print an error on one line and exit with its code."""
    print(f"error: {one_line(error)}", file=Stderr())
    raise SystemExit(exit_code(error)) from None


def exit_code(error: Exception) -> int:
    """Return the exit code for a user-facing error.

    It is 2 for what the user has to change, such as an option, and 3 for errors of training and of the system, which
    the same command may not meet again.
    """
    return EXIT_TRAINING if isinstance(error, TrainingError) or is_system_error(error) else EXIT_CONFIG


def user_facing(error: Exception) -> bool:
    """Return whether the message of an error is enough for the user, who needs no traceback."""
    return isinstance(error, USER_ERRORS) or is_system_error(error) or _is_unknown_plugin(error)


def is_system_error(error: BaseException) -> bool:
    """Return whether the system raised an error about a disk, a network or a limit of the process, not this code."""
    return isinstance(error, OSError) and error.errno in SYSTEM_ERRNOS


def is_lost_job(error: Exception) -> bool:
    """Return whether submitit raised this error because a job was killed; submitit itself may not be installed."""
    return type(error).__module__.startswith("submitit.") and type(error).__name__ == "UncompletedJobError"


def out_of_memory(error: Exception) -> TrainingError | None:
    """Return an error that names the options to lower, if `error` means that memory has run out; else None."""
    for cause in (error, error.__cause__):
        text = str(cause).split("\n")[0]
        is_typed = isinstance(cause, (MemoryError, torch.OutOfMemoryError))
        if is_typed or (isinstance(cause, RuntimeError) and any(phrase in text for phrase in OUT_OF_MEMORY)):
            return TrainingError(
                f"out of memory ({text or 'the system gives no more'}): lower batch_size=, eval_batch_size=, "
                "replay.capacity= (SAC: replay_size=) or the model's size, run fewer jobs at once, or on a GPU set "
                "precision=bfloat16"
            )
    return None


def one_line(error: BaseException) -> str:
    """Return the message of an error for the user on one line, with the message of its cause.

    Errors of Hydra and OmegaConf are said in the terms of this project's options where that is possible.
    """
    if config_error := _config_error_beneath(error):
        return str(config_error).replace("\n", "\\n").replace("\r", "\\r")  # of a path, say
    if _is_unknown_plugin(error):
        return f"the launcher or sweeper is not installed: {INSTALL_PLUGINS}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _describe_missing_file(error.missing_cfg_file, error.options or ())
    cause = error.__cause__ if isinstance(error, HydraException) else None
    if wrong_value := _describe_wrong_value(error, cause or error.__context__):
        return wrong_value
    messages = [_message(part) for part in (error, cause) if part is not None]
    if isinstance(error, InterpolationResolutionError) and error.full_key:
        messages.insert(0, error.full_key)
    return ": ".join(dict.fromkeys(messages))  # Hydra often repeats its cause


def _message(error: BaseException) -> str:
    """Return the message of one error on one line.

    Of Hydra's and OmegaConf's errors it is the first line: those below it name their own internals.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, HydraException | OmegaConfBaseException):
        return lines[0].strip().rstrip(":")
    return " ".join(line.strip() for line in lines)


def _config_error_beneath(error: BaseException) -> ConfigError | None:
    """Return the error of a resolver or check of ours around which Hydra or OmegaConf put theirs; None if none is."""
    cause: BaseException | None = error
    while isinstance(cause, HydraException | OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause if isinstance(cause, ConfigError) else None


def _is_unknown_plugin(error: BaseException) -> bool:
    """Return whether a launcher or sweeper was chosen whose package is not installed.

    Hydra's loader of plugins then raises a plain RuntimeError, so the module that raised it has to tell.
    """
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, RuntimeError) and modules[-1:] == ["hydra.core.plugins"]


def _describe_missing_file(file: str, accepted: Iterable[str]) -> str:
    """Return the message for a choice whose file is missing.

    Args:
        file: path below conf/ without its ending, such as `method/fyre`.
        accepted: names of the files in the same group.
    """
    group, _, name = file.rpartition("/")
    if group in ("hydra/launcher", "hydra/sweeper"):
        return f"{group}={name} is unknown{near(name, accepted)} ({INSTALL_PLUGINS})"
    if group.startswith("hydra/"):
        return f"{group}={name} is unknown{near(name, accepted)}"
    if "/" in group or not accepted:  # no option of the command line has such a name, so a file of conf/ chose it
        return f"conf/{file}.yaml is chosen and not there"
    return f"{group}={name} is unknown{near(name, accepted)}"


def _describe_wrong_value(error: BaseException, cause: BaseException | None) -> str | None:
    """Return the message for a value that is not of its option's type; None if the error is another one.

    The message is made from the option's annotation, which says what is accepted; OmegaConf's does not.
    """
    if not isinstance(error, ConfigCompositionException) or not isinstance(cause, OmegaConfBaseException):
        return None
    if not is_dataclass(cause.object_type) or cause.full_key is None:
        return None
    option = cause.full_key
    annotation = get_type_hints(cause.object_type, include_extras=True).get(option.rpartition(".")[2])
    if annotation is None:
        return _describe_unknown_key(error, option, [field.name for field in fields(cause.object_type)])
    if is_dataclass(annotation):
        inner_options = ", ".join(f"{option}.{field.name}=" for field in fields(annotation))
        return f"{option} has options of its own: {inner_options}"
    return problem(option, cause.value, annotation)


def _describe_unknown_key(error: ConfigCompositionException, option: str, accepted: Sequence[str]) -> str:
    """Return the message for an option that a file of the user sets and that the program does not have.

    Args:
        error: Hydra's, which begins with the name of the file.
        option: the dotted name.
        accepted: names of the options beside it.
    """
    file = _message(error).partition(":")[0]
    if option in ("experiment", "tuned"):
        return f"{file}: its first line must be '# @package _global_', since it sets options of the whole program"
    return f"{file}: option {option} is unknown{near(option.rpartition('.')[2], accepted)}"


def library_error(error: Exception) -> ConfigError | None:
    """Return a user-facing error if Hydra, its launcher or sweeper, or a library that they use, has raised `error`.

    If Slurm is missing, a number of workers is 0, a folder cannot be made or a file of the user is no YAML, nothing is
    wrong in this project. If a job has raised the error, the project's own code is in its traceback, and the result is
    None. Libraries raise errors of any class, so only the modules of the traceback show where an error comes from.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in modules]
    in_libraries = [package in ("hydra", "hydra_plugins") for package in packages]
    if isinstance(error, USER_ERRORS) or not any(in_libraries) or modules[-1] == "hydra.core.utils":
        return None  # Hydra's utils raise the error of a job again, whichever process the job ran in
    begin = in_libraries.index(True)
    within_hydra = packages[begin:]
    if set(within_hydra) & {"__main__", "harness", "vision", "language", "rl", "fire_core"}:
        return None
    return ConfigError(_describe_library_error(error, modules[begin:]))


def _describe_library_error(error: Exception, modules: Sequence[str]) -> str:
    """Return the message for an error of Hydra or of a library that it uses.

    Args:
        error: the error.
        modules: those that its traceback goes through, from Hydra on.
    """
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem_mark.name}, line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        return f"a file of conf/ or of --config-dir is no YAML in UTF-8: {reason}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"cannot write to {error.filename}: {error.strerror} (see paths.runs=, hydra.sweep.dir=)"
    is_of_storage = any(module.startswith(("optuna.storages._rdb", "sqlalchemy")) for module in modules)
    if is_of_storage and (version := metadata.version("sqlalchemy")) >= "2":
        reason = f"hydra.sweeper.storage= needs SQLAlchemy 1.4, not {version}: {INSTALL_PLUGINS}"
    if any(module.startswith("hydra_plugins") for module in modules):
        return f"the launcher or sweeper failed: {reason}"
    return f"Hydra cannot take these arguments: {reason}"
