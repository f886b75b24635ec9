"""How one job of a program ends: one clear line for a user-facing error, and a record for the table of its sweep."""

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hydra.conf import RuntimeConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from harness.config.errors import ConfigError
from harness.config.given import given_overrides
from harness.process.console import show_log
from harness.process.signals import exit_on_signals, leave_with
from harness.program.messages import USER_ERRORS, exit_with, one_line, out_of_memory, wants_traceback
from harness.run.files import write_atomically
from harness.run.lock import SWEEP_LOG, Owner, machine

KILLED = "its process was killed (out of memory?): the same command, started again, goes on"
RESUME = "start the same command again to resume"
# By two variables of the environment a sweep's driver reaches its jobs, in any process. SWEEP_LOG names the folder in
# which each job writes how it ended, DRIVER the driver's process, as `harness.run.lock.Owner` writes it.
DRIVER = "FIRE_DRIVER"


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
    except (SystemExit, KeyboardInterrupt):
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
        if is_user_error and is_single_run and not wants_traceback():
            exit_with(clearer_error)
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
    chain = next((option.partition("=")[2] for option in given if option.startswith("method.of=")), "fire+muon")
    files = [re.sub(r"(?<=^tuned/searched/)(\w+)/chain\.yaml$", rf"\1/{chain}.yaml", file) for file in files]
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
