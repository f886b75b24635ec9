"""Start and end of a program: one clear line for a user-facing error, a traceback only on request.

A program ends with `if __name__ == "__main__": run_program(main, "vision")`, where `main` is a `@hydra.main` function
with its body within `with job(config) as outcome`. `HYDRA_FULL_ERROR=1` in the environment shows tracebacks.
"""

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import string
import sys
import tempfile
import textwrap
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from traceback import walk_tb
from typing import Any, get_type_hints

import torch
import yaml
from hydra.conf import RuntimeConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fire_core.ranges import problem
from fire_core.tools.output import keep_output
from harness.config import comments
from harness.config.arguments import configs_of_data_options, number_of_jobs, read_arguments, refuse_unknown
from harness.config.errors import EXIT_CONFIG, EXIT_TRAINING, ConfigError, TrainingError, near
from harness.config.given import given_overrides
from harness.config.groups import CONF, choices, compose_with_hydra, groups_of, without_hydra
from harness.run.files import write_atomically
from harness.run.lock import SWEEP_LOG, Owner, machine
from harness.training.console import Stderr, show_log
from harness.training.estimate import SWEEP_JOBS
from harness.training.signals import exit_on_signals, leave_with

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
KILLED = "its process was killed (out of memory?): the same command, started again, goes on"
RESUME = "start the same command again to resume"
# By two variables of the environment a sweep's driver reaches its jobs, in any process. SWEEP_LOG names the folder in
# which each job writes how it ended, DRIVER the driver's process, as `harness.run.lock.Owner` writes it.
DRIVER = "FIRE_DRIVER"
OWNER = "owner"  # name of the file in the sweep's folder that names the driver
ABANDONED_AFTER = 24 * 3600  # seconds after which the folder of a sweep without such a file is removed


@dataclass
class Outcome:
    """How one job of a sweep ended.

    Attributes:
        run: the job's options on the command line.
        state: done, skipped (the run was done before), failed, stopped, or unknown (its record is damaged).
        result: the run's headline, or the error.
        tuned: a line of the log that says which files in `conf/tuned` gave the method's values; None: the program has
            no tuned values.
    """

    run: str
    state: str = "failed"
    result: str = ""
    tuned: str | None = None


_follows_driver = False  # whether this process ends with its driver; a process that runs many jobs asks once


@contextlib.contextmanager
def job(config: DictConfig) -> Iterator[Outcome]:
    """Context around the body of a job: it prints a user-facing error on one line and records how the job ended.

    Yields:
        The outcome, whose `state` and `result` the body sets.

    Raises:
        SystemExit: in a single run, after a user-facing error, with its exit code (see `exit_code`).
    """
    show_log()
    exit_on_signals()
    leave_with_driver()
    outcome = Outcome(" ".join(given_overrides()) or "(no options)")
    _record(Outcome(outcome.run, "failed", KILLED))  # it stays if this process is killed
    try:
        if HydraConfig.initialized():
            refuse_another_folder()
            outcome.tuned = tuned_values_taken(HydraConfig.get().runtime, given_overrides())
        yield outcome
    except SystemExit:
        outcome.state = "stopped"
        outcome.result = RESUME
        raise
    except Exception as error:
        clearer_error = out_of_memory(error) or error
        is_user_error = isinstance(clearer_error, USER_ERRORS)
        outcome.result = (
            one_line(clearer_error) if is_user_error else f"{type(clearer_error).__name__}: {clearer_error}"
        )
        is_single_run = not HydraConfig.initialized() or HydraConfig.get().mode == RunMode.RUN
        if is_user_error and is_single_run and not _wants_traceback():
            _exit_with(clearer_error)
        if clearer_error is error:
            raise
        raise clearer_error from error
    finally:
        _record(outcome)


def refuse_another_folder() -> None:
    """Refuse `hydra.job.chdir=true` where Hydra has changed into another folder.

    Paths are relative to the folder in which the program is started. In the folder of a sweep, `runs` would be another
    one, in which no finished run is found again.

    Raises:
        ConfigError: the folder is not the one in which the program was started.
    """
    if HydraConfig.get().job.chdir and Path.cwd() != Path(HydraConfig.get().runtime.cwd):
        raise ConfigError("hydra.job.chdir=true: runs would be written below another folder; set paths.runs= instead")


def tuned_values_taken(runtime: RuntimeConf, given: Sequence[str] = ()) -> str | None:
    """Return a line of the log that names the files which gave the method's tuned values.

    Args:
        runtime: Hydra's record of the composition: the chosen file of each group, and the folders it searched.
        given: what the command line sets, as it was given.

    Returns:
        Such as `tuned values: conf/tuned/values/warm_start_digits/redo.yaml`; None if the program has no tuned values.
    """
    choices = runtime.choices
    if "tuned" not in choices:
        return None
    groups = ("tuned/values", "tuned/searched")
    files = [f"{group}/{choices[group]}.yaml" for group in groups if choices.get(group, "none") != "none"]
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    if existing := [f"conf/{file}" for file in files if any((folder / file).exists() for folder in folders)]:
        return f"tuned values: {', '.join(existing)}"
    if choices["tuned"] == "none":
        return "tuned values: none, as tuned=none says"
    values = [option for option in given if re.match(r"[+]*(lr|optimizer[.]\w+|method[.].+)=", option)]
    and_given = f"; given: {' '.join(values)}" if values else ""
    return f"tuned values: none, there is no conf/{files[0]}{and_given}"


def _record(outcome: Outcome) -> None:
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        record_outcome(HydraConfig.get().job.num, outcome)


def record_outcome(number: int, outcome: Outcome) -> None:
    """Write how a job of a sweep ended into the sweep's folder, for its table; outside of a sweep do nothing."""
    if folder := os.environ.get(SWEEP_LOG):
        with contextlib.suppress(OSError):  # on a full disk the line that was written before stays
            write_atomically(Path(folder) / f"{number}.json", json.dumps(asdict(outcome)).encode())


def leave_with_driver() -> None:
    """Let this process, if it runs jobs of a sweep for a driver on the same machine, end when the driver has ended.

    Jobs on Slurm do not, because they outlive the command that has queued them. Under torchrun the driver is torchrun's
    agent.
    """
    global _follows_driver
    if _follows_driver or os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        return
    in_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    driver = Owner.of(os.getppid()) if in_torchrun else Owner.parse(os.environ.get(DRIVER, ""))
    if driver is not None and driver.process != os.getpid() and driver.machine == machine():
        _follows_driver = True
        leave_with(driver.process, driver.started)


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


class SweepTable(Callback):
    """Hydra's callback that gives a sweep a folder where its jobs, on any machine, write how they ended.

    It is named in conf/hydra/default.yaml.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the folder and pass its name to the jobs in the environment."""
        with contextlib.suppress(OSError, OmegaConfBaseException):  # Hydra meets the same error and reports it
            folder = Path(config.hydra.sweep.dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            _remove_folders_of_killed_sweeps(folder)
            os.environ[SWEEP_LOG] = tempfile.mkdtemp(dir=folder)
            os.environ[DRIVER] = Owner.of(os.getpid()).text()
            (Path(os.environ[SWEEP_LOG]) / OWNER).write_text(os.environ[DRIVER])
        exit_on_signals()


def _remove_folders_of_killed_sweeps(parent: Path) -> None:
    """Remove the folders of sweeps whose drivers have ended without removing them.

    An older version wrote no owner into a folder; such a folder is removed a day after its last change. Folders of
    other users, which cannot be read, stay.
    """
    for folder in parent.glob("tmp*"):
        with contextlib.suppress(OSError):
            owner = Owner.read(folder / OWNER)
            is_old = owner is None and time.time() - folder.stat().st_mtime > ABANDONED_AFTER
            if is_old or (owner is not None and owner.is_gone):
                shutil.rmtree(folder)


def run_program(
    main: Callable[[], object], config_name: str, open_data: Callable[[DictConfig], object] | None = None
) -> None:
    """Check the command line, call a `@hydra.main` function, and after a sweep print how each of its jobs ended.

    Args:
        main: the function of `@hydra.main`, which runs one job or the jobs of a sweep.
        config_name: name of the program's root file in `conf/`, such as `vision`.
        open_data: opens the data of a configuration. A sweep calls it for each combination of options that choose data,
            before the first job, so that data which is missing is reported once and not by every job.

    Raises:
        SystemExit: after a user-facing error, with its exit code (see `exit_code`); after Ctrl-C with 130.
        Exception: any other error, and also a user-facing one where a traceback is asked for.
    """
    keep_output()
    logging.raiseExceptions = False  # a log on a full disk, Hydra's too, is not printed as an error at each line
    shows_traceback = _wants_traceback()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, rather than print and exit by itself
    os.environ["FIRE_TRACEBACK"] = "1" if shows_traceback else "0"
    outcomes: list[Outcome] = []
    try:
        _take_joblib_as_cores()
        arguments = read_arguments(config_name)
        with _refusals_explained(config_name, arguments):
            command_lines = _command_lines(config_name, arguments)
            if open_data is not None:
                for config in configs_of_data_options(config_name, command_lines):
                    open_data(config)
            run_sweeps(main, command_lines, outcomes)
    except Exception as error:
        if is_lost_job(error):
            _wait_for_children()  # the other jobs would end with this process
            error = TrainingError(f"a job of the sweep ended without a word: {KILLED}")
        clearer_error = library_error(error) or error
        if shows_traceback or not user_facing(clearer_error):
            raise
        _show_table(outcomes)
        _exit_with(clearer_error)
    except KeyboardInterrupt:
        print("interrupted", file=Stderr())
        raise SystemExit(130) from None
    except SystemExit:  # a signal: jobs of a queue on this machine may still be writing their checkpoints
        outcomes += take_outcomes() or []
        for outcome in outcomes:
            if outcome.result == KILLED:
                outcome.state, outcome.result = "stopped", RESUME
        raise
    finally:
        _show_table(outcomes)


@contextlib.contextmanager
def _refusals_explained(config_name: str, arguments: Namespace) -> Iterator[None]:
    """Raise the project's own message where Hydra refuses to compose an option that names nothing."""
    try:
        yield
    except ConfigCompositionException:
        refuse_unknown(config_name, arguments)
        raise


def run_sweeps(main: Callable[[], object], command_lines: Sequence[list[str]], outcomes: list[Outcome]) -> None:
    """Run a single run or a sweep, which may have been split into several command lines.

    Args:
        main: the function of `@hydra.main`.
        command_lines: the words of each.
        outcomes: a list to which the outcome of each job of a sweep is appended, also when an error is raised.

    Raises:
        ConfigError: a sweep has no job.
        Exception: the first error of a job. A user-facing one is raised when the jobs of all command lines have ended.
    """
    first_error: Exception | None = None
    os.environ[SWEEP_JOBS] = str(sum(number_of_jobs(words) for words in command_lines))
    for words in command_lines:
        sys.argv[1:] = words
        try:
            main()
        except Exception as error:
            if not user_facing(error):
                raise
            first_error = first_error or error
        finally:
            new_outcomes = take_outcomes()
            outcomes += new_outcomes or []
        if new_outcomes == [] and first_error is None:
            functions = [word for word in words if "(" in word]  # such as method=glob(fyre*), which matches no file
            raise ConfigError(f"-m starts nothing: an option has no value ({', '.join(functions)})")
    if first_error is not None:
        raise first_error


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


@dataclass
class CoresLauncher:
    """Options of `hydra/launcher=joblib`, the same as in conf/hydra/launcher/cores.yaml.

    Users of Hydra know the launcher of many processes by the name joblib.
    """

    _target_: str = "hydra_plugins.cores.CoresLauncher"
    n_jobs: int = -1


def _take_joblib_as_cores() -> None:
    """Let `hydra/launcher=joblib` choose our launcher `cores`.

    Hydra's joblib launcher ends all jobs when one is killed, and kills them when it is stopped.
    """
    Plugins.instance()  # registers hydra-joblib-launcher, if it is installed, so that the next line replaces it
    ConfigStore.instance().store(group="hydra/launcher", name="joblib", node=CoresLauncher, provider="fire")


def is_lost_job(error: Exception) -> bool:
    """Return whether submitit raised this error because a job was killed; submitit itself may not be installed."""
    return type(error).__module__.startswith("submitit.") and type(error).__name__ == "UncompletedJobError"


def _wait_for_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def user_facing(error: Exception) -> bool:
    """Return whether the message of an error is enough for the user, who needs no traceback."""
    return isinstance(error, USER_ERRORS) or is_system_error(error) or _is_unknown_plugin(error)


def _command_lines(config_name: str, arguments: Namespace) -> list[list[str]]:
    """Return the command lines that Hydra is to run, each with its flags before its options, and print notes on them.

    Returns:
        One list of words, or several of a sweep in which a choice lacks an option.

    Raises:
        SystemExit: `--help` was given; the help has been printed.
    """
    if arguments.help:
        print(help_text(config_name, arguments.overrides, arguments.config_dir))
        raise SystemExit(0)
    flags = [argument for argument in sys.argv[1:] if argument not in arguments.overrides]
    for note in arguments.notes:
        print(note, file=Stderr())
    return [flags + options for options in arguments.sweeps]


def help_text(config_name: str, overrides: list[str], config_dir: str | None = None) -> str:
    """Return the text of `--help`.

    Args:
        config_name: name of the program's root file in `conf/`, such as `vision`.
        overrides: the options of the command line.
        config_dir: the user's folder of groups, whose choices are listed beside those of `conf/`.

    Returns:
        What the program does, the choices of its groups, and all its options with the values that they have with these
        `overrides`, each with its comment.
    """
    folder = Path(config_dir) if config_dir else None
    config = compose_with_hydra(config_name, overrides, folder)
    groups = list[str]()
    for group in groups_of(config_name):
        users_choices = {path.stem for path in (folder / group).glob("*.yaml")} if folder else set()
        names = ", ".join(sorted(users_choices.union(choices(group, config_name))))
        groups.append(textwrap.fill(f"{group}: {names}", 120, subsequent_indent="  "))
    template = string.Template(config.hydra.help.template)
    comments_by_source = _comments(config_name, config, folder)
    options = comments.add_comments(OmegaConf.to_yaml(without_hydra(config)), comments_by_source)
    return template.safe_substitute(GROUPS="\n".join(groups), CONFIG=options)


def _comments(config_name: str, config: DictConfig, folder: Path | None) -> list[dict[str, str]]:
    """Return comments of options, from dotted name to comment, in the order in which Hydra composes the sources.

    The sources are the program's dataclass of options, its root file, and the chosen file of each group. Experiments
    are left out, because their comments explain the values of an experiment and not what an option means.
    """
    schema = OmegaConf.get_type(ConfigStore.instance().load(f"{config_name}_schema.yaml").node)
    assert schema is not None, "harness.config.groups.register stored a dataclass"
    sources = [comments.of_fields(schema), comments.of_file(CONF / f"{config_name}.yaml", "")]
    for group, choice in config.hydra.runtime.choices.items():
        for place in (CONF, folder):
            if choice and place and (path := place / group / f"{choice}.yaml").is_file() and group != "experiment":
                sources += [comments.of_file(file, group) for file in _with_defaults(path)]
    return sources


def _with_defaults(path: Path) -> list[Path]:
    """Return the files of the same group that the `defaults` of a choice's file name, and then this file itself."""
    options = OmegaConf.load(path)
    assert isinstance(options, DictConfig), "Hydra has composed it"
    named = [path.parent / f"{entry}.yaml" for entry in options.get("defaults", []) if isinstance(entry, str)]
    return [*(file for other in named if other.is_file() for file in _with_defaults(other)), path]


def _wants_traceback() -> bool:
    return os.environ.get("FIRE_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR")) == "1"


def _exit_with(error: Exception) -> None:
    """Print an error on one line and exit with its code."""
    print(f"error: {one_line(error)}", file=Stderr())
    raise SystemExit(exit_code(error)) from None


def exit_code(error: Exception) -> int:
    """Return the exit code for a user-facing error.

    It is 2 for what the user has to change, such as an option, and 3 for errors of training and of the system, which
    the same command may not meet again.
    """
    return EXIT_TRAINING if isinstance(error, TrainingError) or is_system_error(error) else EXIT_CONFIG


def is_system_error(error: BaseException) -> bool:
    """Return whether the system raised an error about a disk, a network or a limit of the process, not this code."""
    return isinstance(error, OSError) and error.errno in SYSTEM_ERRNOS


def take_outcomes() -> list[Outcome] | None:
    """Return how the jobs of a sweep ended, and remove its folder, so a second call returns None as without a sweep."""
    folder = os.environ.pop(SWEEP_LOG, None)
    if folder is None:
        return None
    os.environ.pop(DRIVER, None)
    files = [file for file in Path(folder).glob("*.json") if file.stem.isdecimal()]
    outcomes = list[Outcome]()
    for file in sorted(files, key=lambda path: int(path.stem)):
        try:
            outcomes.append(Outcome(**json.loads(file.read_bytes())))
        except (OSError, ValueError, TypeError) as error:
            outcomes.append(Outcome(f"job {file.stem}", "unknown", f"{file.name} cannot be read ({one_line(error)})"))
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # a sweep in which no job began leaves no files
        if all(outcome.state == "failed" for outcome in outcomes):
            (Path(folder).parent / "multirun.yaml").unlink(missing_ok=True)
        for parent in Path(folder).parents[:2]:
            parent.rmdir()
    return outcomes


def _show_table(outcomes: list[Outcome]) -> None:
    """Print a line for each job of a sweep if there were several, and empty the list, so that none is printed twice."""
    outcomes += take_outcomes() or []
    if len(outcomes) > 1:
        width = max(len(outcome.run) for outcome in outcomes)
        for outcome in outcomes:
            print(f"{outcome.run:<{width}}  {outcome.state:<8}  {outcome.result}", file=Stderr())
    outcomes.clear()


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


def _config_error_beneath(error: BaseException) -> ConfigError | None:
    """Return the error of a resolver or check of ours around which Hydra or OmegaConf put theirs; None if none is."""
    cause: BaseException | None = error
    while isinstance(cause, HydraException | OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    return cause if isinstance(cause, ConfigError) else None
