"""Start of a program: one clear line for a user-facing error, a traceback only on request.

A program ends with `if __name__ == "__main__": run_program(main, "vision")`, where `main` is a `@hydra.main` function
with its body within `with job(config) as outcome`. `HYDRA_FULL_ERROR=1` in the environment shows tracebacks.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig

from fire_core.tools.output import keep_output
from harness.config.arguments import (
    CommandLine,
    configs_of_data_options,
    number_of_jobs,
    read_arguments,
    refuse_unknown,
)
from harness.config.errors import ConfigError, TrainingError
from harness.process.console import Stderr
from harness.program.help import help_text
from harness.program.messages import exit_with, is_lost_job, library_error, user_facing, wants_traceback
from harness.program.outcome import KILLED, RESUME, Outcome
from harness.program.sweep import show_table, take_outcomes
from harness.training.estimate import SWEEP_JOBS


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
    shows_traceback = wants_traceback()
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
        show_table(outcomes)
        exit_with(clearer_error)
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
        show_table(outcomes)


@contextlib.contextmanager
def _refusals_explained(config_name: str, arguments: CommandLine) -> Iterator[None]:
    """Raise the project's own message where Hydra refuses to compose an option that names nothing."""
    try:
        yield
    except ConfigCompositionException:
        refuse_unknown(config_name, arguments)
        raise


def _command_lines(config_name: str, arguments: CommandLine) -> list[list[str]]:
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


def _wait_for_children() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


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
