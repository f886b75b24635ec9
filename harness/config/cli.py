"""Start and end of a program: one clear line for a user-facing error, a traceback only on request.

A program is `if __name__ == "__main__": run_program(main, "vision")` around a `@hydra.main` function, whose body is
within `with job(config) as outcome`. `HYDRA_FULL_ERROR=1` in the environment shows tracebacks.
"""

import contextlib
import errno
import json
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
from hydra.conf import RuntimeConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fire_core.ranges import problem
from fire_core.tools.output import keep_output
from harness.config import comments
from harness.config.arguments import configs_by_data, number_of_jobs, read_arguments, refuse_unknown
from harness.config.errors import ConfigError, TrainingError, near
from harness.config.groups import CONF, choices, compose_with_hydra, groups_of, without_hydra
from harness.run.lock import Owner, machine
from harness.training.console import Stderr, show_log
from harness.training.estimate import SWEEP_JOBS
from harness.training.signals import exit_on_signals, leave_with

EXIT_CONFIG, EXIT_TRAINING = 2, 3
USER_ERRORS = (ConfigError, TrainingError, HydraException, OmegaConfBaseException)
OUT_OF_MEMORY = "can't allocate memory|not enough memory|out of memory"
# What the system says of a disk or a process, and not of this code.
OF_THE_SYSTEM = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE}
    | {errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN}
)
PLUGINS = 'pip install -e ".[harness,cluster]" brings joblib (cores), submitit_local, submitit_slurm (slurm) and optuna'
KILLED = "its process was killed (out of memory?): the same command, started again, goes on"
DRIVER = "FIRE_DRIVER"  # the process of a sweep's driver, as `harness.run.lock.Owner` writes it
OWNER = "owner"  # file in that folder
LONG_AGO = 24 * 3600  # seconds
SWEEP_LOG = "FIRE_SWEEP_LOG"  # folder in which the jobs of a sweep, in any process, write how they ended


@dataclass
class Outcome:
    """How one job of a sweep ended: `state` is done, skipped (was done before), failed or stopped.

    `tuned` says where the method's values come from, see `conf/tuned`.
    """

    run: str
    state: str = "failed"
    result: str = ""
    tuned: str | None = None


_follows_driver = False  # whether this process leaves with its driver


@contextlib.contextmanager
def job(config: DictConfig) -> Iterator[Outcome]:
    """Context around the body of a job: prints user-facing errors on one line, and records how the job ended."""
    show_log()
    exit_on_signals()
    leave_with_driver()
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    outcome = Outcome(" ".join(overrides) or "(no options)")
    _record(Outcome(outcome.run, "failed", KILLED))  # what stays if this process is killed
    try:
        if HydraConfig.initialized():
            outcome.tuned = tuned_values_taken(HydraConfig.get().runtime)
        yield outcome
    except SystemExit:
        outcome.state = "stopped"
        outcome.result = "start the same command again to resume"
        raise
    except Exception as error:
        known = out_of_memory(error) or error
        outcome.result = one_line(known) if isinstance(known, USER_ERRORS) else f"{type(known).__name__}: {known}"
        alone = not HydraConfig.initialized() or HydraConfig.get().mode == RunMode.RUN
        if isinstance(known, USER_ERRORS) and alone and not _wants_traceback():
            _leave(known)
        if known is error:
            raise
        raise known from error
    finally:
        _record(outcome)


def tuned_values_taken(runtime: RuntimeConf) -> str | None:
    """Where Hydra took the method's tuned values from, as a line of the log; None: the program has none.

    Args:
        runtime: of Hydra: which file of each group it chose, and the folders that it looked into.
    """
    choices = runtime.choices
    if "tuned" not in choices:
        return None
    groups = ("tuned/values", "tuned/searched")
    files = [f"{group}/{choices[group]}.yaml" for group in groups if choices.get(group, "none") != "none"]
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    taken = [f"conf/{file}" for file in files if any((folder / file).exists() for folder in folders)]
    return f"tuned values: {', '.join(taken) or f'none, there is no conf/{files[0]}'}"


def _record(outcome: Outcome) -> None:
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        record_outcome(HydraConfig.get().job.num, outcome)


def record_outcome(number: int, outcome: Outcome) -> None:
    """Write how a job of a sweep ended, for the sweep's table."""
    if folder := os.environ.get(SWEEP_LOG):
        with contextlib.suppress(OSError):
            (Path(folder) / f"{number}.json").write_text(json.dumps(asdict(outcome)))


def leave_with_driver() -> None:
    """In a job of a sweep, in a process of its own on the driver's machine: leave when the driver has ended.

    Not on Slurm, whose jobs outlive the command that has queued them. Under torchrun the driver is torchrun's agent.
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
    """A message with the options to lower, if `error` means out of memory (torch has a class for GPUs only)."""
    for cause in (error, error.__cause__):
        text = str(cause).split("\n")[0]
        known = isinstance(cause, (MemoryError, torch.OutOfMemoryError))
        if known or (isinstance(cause, RuntimeError) and re.search(OUT_OF_MEMORY, text)):
            return TrainingError(
                f"out of memory ({text or 'the system gives no more'}): lower batch_size=, eval_batch_size=, "
                "replay.capacity= (SAC: replay_size=) or the model's size, run fewer jobs at once, or on a GPU set "
                "precision=bfloat16"
            )
    return None


class SweepTable(Callback):
    """Gives a sweep a folder where all its jobs, on any machine, write how they ended (conf/hydra/default.yaml)."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the folder and pass its name to the jobs in the environment."""
        with contextlib.suppress(OSError, OmegaConfBaseException):  # Hydra meets the same error, and says it once
            folder = Path(config.hydra.sweep.dir).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            _remove_left_by_killed(folder)
            os.environ[SWEEP_LOG] = tempfile.mkdtemp(dir=folder)
            os.environ[DRIVER] = Owner.of(os.getpid()).text()
            (Path(os.environ[SWEEP_LOG]) / OWNER).write_text(os.environ[DRIVER])
        exit_on_signals()


def _remove_left_by_killed(folder: Path) -> None:
    """Remove the folders of sweeps that were killed; one without its owner's name is of an older version."""
    for left in folder.glob("tmp*"):
        owner = Owner.read(left / OWNER)
        with contextlib.suppress(OSError):
            old = owner is None and time.time() - left.stat().st_mtime > LONG_AGO
            if old or (owner is not None and owner.is_gone):
                shutil.rmtree(left)


def run_program(
    main: Callable[[], object], config_name: str, open_data: Callable[[DictConfig], object] | None = None
) -> None:
    """Call a `@hydra.main` function; after a sweep, show how each of its jobs ended.

    Args:
        main: runs a job.
        config_name: of the program's root in conf/.
        open_data: opens the data of a configuration. A sweep does so once with each of its data, before the first job:
            what is missing is said once and not by every job.
    """
    keep_output()
    asked = _wants_traceback()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, rather than print and exit by itself
    os.environ["FIRE_TRACEBACK"] = "1" if asked else "0"
    outcomes: list[Outcome] = []
    try:
        _take_joblib_as_cores()
        arguments = read_arguments(config_name)
        with _refusals_explained(config_name, arguments):
            command_lines = _command_lines(config_name, arguments)
            if open_data is not None:
                for config in configs_by_data(config_name, command_lines):
                    open_data(config)
            _run_sweeps(main, command_lines, outcomes)
    except Exception as error:
        if is_lost_job(error):
            _wait_for_children()  # the other jobs, which would leave with this process
            error = TrainingError(f"a job of the sweep ended without a word: {KILLED}")
        known = of_launcher(error) or error
        if asked or not user_facing(known):
            raise
        _show_table(outcomes)
        _leave(known)
    except KeyboardInterrupt:
        print("interrupted", file=Stderr())
        raise SystemExit(130) from None
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


def _run_sweeps(main: Callable[[], object], command_lines: Sequence[list[str]], outcomes: list[Outcome]) -> None:
    """Run a command line, or several that are one sweep; add how each of its jobs ended to `outcomes`.

    Raises:
        ConfigError: a sweep has no job.
        Exception: the first error of a job, when the jobs of all command lines have ended.
    """
    failed: Exception | None = None
    os.environ[SWEEP_JOBS] = str(sum(number_of_jobs(words) for words in command_lines))
    for words in command_lines:
        sys.argv[1:] = words
        try:
            main()
        except Exception as error:
            if words is command_lines[-1] or not user_facing(error):
                raise
            failed = failed or error
        finally:
            ended = _take_outcomes()
            outcomes += ended or []
        if ended == [] and failed is None:
            several = [argument for argument in words if "(" in argument]
            raise ConfigError(f"-m starts nothing: an option has no value ({', '.join(several)})")
    if failed is not None:
        raise failed


def of_launcher(error: Exception) -> ConfigError | None:
    """One line for an error that Hydra's launcher or sweeper, or a library of theirs, has raised itself.

    Where Slurm is missing, a number of workers is 0 or a data base cannot be opened, nothing of this project is wrong;
    an error of a job was raised by the project's own code, and keeps its traceback.
    """
    modules = [str(frame.f_globals.get("__name__", "")) for frame, _ in walk_tb(error.__traceback__)]
    packages = [module.partition(".")[0] for module in modules]
    if isinstance(error, USER_ERRORS) or "hydra_plugins" not in packages or modules[-1] == "hydra.core.utils":
        return None  # Hydra's utils raise again what a job, in this process or another, has raised
    if set(packages[packages.index("hydra_plugins") :]) & {"harness", "vision", "language", "rl", "fire_core"}:
        return None
    reason = " ".join(str(error).split()) or type(error).__name__
    if packages[-1] == "optuna" and (version := metadata.version("sqlalchemy")) >= "2":
        reason = f"hydra.sweeper.storage= needs SQLAlchemy 1.4, not {version}: {PLUGINS}"
    return ConfigError(f"the launcher or sweeper failed: {reason}")


@dataclass
class CoresLauncher:
    """`hydra/launcher=joblib`: the same as conf/hydra/launcher/cores.yaml, under the name that users of Hydra know."""

    _target_: str = "hydra_plugins.cores.CoresLauncher"
    n_jobs: int = -1


def _take_joblib_as_cores() -> None:
    """Let `hydra/launcher=joblib` be `cores`: joblib ends all jobs where one is killed, and kills them when stopped."""
    Plugins.instance()  # hydra-joblib-launcher, if it is there, is registered by now
    ConfigStore.instance().store(group="hydra/launcher", name="joblib", node=CoresLauncher, provider="fire")


def is_lost_job(error: Exception) -> bool:
    """Whether it says that a job of submitit's was killed."""
    return type(error).__module__.startswith("submitit.") and type(error).__name__ == "UncompletedJobError"


def _wait_for_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def user_facing(error: Exception) -> bool:
    """Whether it is a user-facing error, whose message is enough."""
    return (
        isinstance(error, USER_ERRORS)
        or (isinstance(error, OSError) and error.errno in OF_THE_SYSTEM)
        or _is_unknown_plugin(error)
    )


def _command_lines(config_name: str, arguments: Namespace) -> list[list[str]]:
    """Show the help, or put flags before options, where Hydra takes them.

    Returns:
        What Hydra is to run: one list of words, or several of a sweep in which a choice lacks an option.
    """
    if arguments.help:
        print(help_text(config_name, arguments.overrides, arguments.config_dir))
        raise SystemExit(0)
    flags = [argument for argument in sys.argv[1:] if argument not in arguments.overrides]
    for note in arguments.notes:
        print(note, file=Stderr())
    return [flags + part for part in arguments.parts]


def help_text(config_name: str, overrides: list[str], config_dir: str | None = None) -> str:
    """What a program does, the choices of its groups, and its options with the values that they have now.

    The choices of one's own folder, `--config-dir`, stand beside those of conf/.
    """
    folder = Path(config_dir) if config_dir else None
    config = compose_with_hydra(config_name, overrides, folder)
    groups = list[str]()
    for group in groups_of(config_name):
        own = {path.stem for path in (folder / group).glob("*.yaml")} if folder else set()
        names = ", ".join(sorted(own.union(choices(group, config_name))))
        groups.append(textwrap.fill(f"{group}: {names}", 120, subsequent_indent="  "))
    template = string.Template(config.hydra.help.template)
    said = _comments(config_name, config, folder)
    shown = comments.beside(OmegaConf.to_yaml(without_hydra(config)), said)
    return template.safe_substitute(GROUPS="\n".join(groups), CONFIG=shown)


def _comments(config_name: str, config: DictConfig, folder: Path | None) -> list[dict[str, str]]:
    """The comments of a program's dataclass of options, of its own file, and of the choices of its groups."""
    schema = OmegaConf.get_type(ConfigStore.instance().load(f"{config_name}_schema.yaml").node)
    assert schema is not None, "harness.config.groups.register stored a dataclass"
    sources = [comments.of_fields(schema), comments.of_file(CONF / f"{config_name}.yaml", "")]
    for group, choice in config.hydra.runtime.choices.items():
        for place in (CONF, folder):
            if choice and place and (path := place / group / f"{choice}.yaml").is_file() and group != "experiment":
                sources.append(comments.of_file(path, group))
    return sources


def _wants_traceback() -> bool:
    return os.environ.get("FIRE_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR")) == "1"


def _leave(error: BaseException) -> None:
    print(f"error: {one_line(error)}", file=Stderr())
    raise SystemExit(EXIT_TRAINING if isinstance(error, TrainingError) else EXIT_CONFIG) from None


def _take_outcomes() -> list[Outcome] | None:
    """How the jobs of a sweep ended, once; None if there is no sweep."""
    folder = os.environ.pop(SWEEP_LOG, None)
    if folder is None:
        return None
    os.environ.pop(DRIVER, None)
    files = sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem))
    outcomes = [Outcome(**json.loads(file.read_text())) for file in files]
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # a sweep of which no job began leaves nothing
        if all(outcome.state == "failed" for outcome in outcomes):
            (Path(folder).parent / "multirun.yaml").unlink(missing_ok=True)
        for parent in Path(folder).parents[:2]:
            parent.rmdir()
    return outcomes


def _show_table(outcomes: list[Outcome]) -> None:
    """A line for each job of a sweep, if there were several; once."""
    outcomes += _take_outcomes() or []
    if len(outcomes) > 1:
        width = max(len(outcome.run) for outcome in outcomes)
        for outcome in outcomes:
            print(f"{outcome.run:<{width}}  {outcome.state:<8}  {outcome.result}", file=Stderr())
    outcomes.clear()


def one_line(error: BaseException) -> str:
    """An error's message, and that of the error underneath it, on one line."""
    if own := _own_error(error):
        return str(own)
    if _is_unknown_plugin(error):
        return f"the launcher or sweeper is not installed: {PLUGINS}"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error.missing_cfg_file, error.options or ())
    under = error.__cause__ if isinstance(error, HydraException) else None
    if wrong := _wrong_value(error, under):
        return wrong
    return ": ".join(dict.fromkeys(_message(part) for part in (error, under) if part is not None))


def _message(error: BaseException) -> str:
    """What an error says; of Hydra's and OmegaConf's the first line, below which they tell where they stand inside."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, HydraException | OmegaConfBaseException):
        return lines[0].strip().rstrip(":")
    return " ".join(line.strip() for line in lines)


def _is_unknown_plugin(error: BaseException) -> bool:
    """Whether Hydra's loader of plugins itself raised it: a launcher or sweeper is named whose package is not there."""
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return isinstance(error, RuntimeError) and modules[-1:] == ["hydra.core.plugins"]


def _missing_file(file: str, accepted: Iterable[str]) -> str:
    """What to say of a file of conf/ that is chosen and not there."""
    group, _, name = file.rpartition("/")
    if group in ("hydra/launcher", "hydra/sweeper"):
        return f"{group}={name} is unknown{near(name, accepted)} ({PLUGINS})"
    if "/" in group or not accepted:  # no option of the command line has such a name: a file of conf/ has chosen it
        return f"conf/{file}.yaml is chosen and not there"
    return f"{group}={name} is unknown{near(name, accepted)}"


def _wrong_value(error: BaseException, under: BaseException | None) -> str | None:
    """What is wrong with a value that is not of its option's type; None: it is something else."""
    if not isinstance(error, ConfigCompositionException) or not isinstance(under, OmegaConfBaseException):
        return None
    if not is_dataclass(under.object_type) or under.full_key is None:
        return None
    option = under.full_key
    hint = get_type_hints(under.object_type, include_extras=True).get(option.rpartition(".")[2])
    if hint is None:
        return None
    if is_dataclass(hint):
        return f"{option} has options of its own: {', '.join(f'{option}.{field.name}=' for field in fields(hint))}"
    return problem(option, under.value, hint)


def _own_error(error: BaseException) -> ConfigError | None:
    """What a resolver or a check refused with, underneath an error of Hydra or OmegaConf."""
    under: BaseException | None = error
    while isinstance(under, HydraException | OmegaConfBaseException):
        under = under.__cause__ or under.__context__
    return under if isinstance(under, ConfigError) else None
