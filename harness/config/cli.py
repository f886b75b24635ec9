"""Start and end of a program: one clear line for a user-facing error, a traceback only on request.

A program is `if __name__ == "__main__": run_program(main, "vision")` around a `@hydra.main` function, whose body is
within `with job(config) as outcome`. `HYDRA_FULL_ERROR=1` in the environment shows tracebacks.
"""

import contextlib
import difflib
import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import hydra
import torch
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config.chain import chained  # noqa: F401  its resolver names chains
from harness.config.errors import ConfigError, TrainingError
from harness.training.console import Stderr, show_log
from harness.training.signals import exit_on_signals

EXIT_CONFIG, EXIT_TRAINING = 2, 3
USER_ERRORS = (ConfigError, TrainingError, HydraException, OmegaConfBaseException)
OUT_OF_MEMORY = "can't allocate memory|not enough memory|out of memory"
CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
NO_PLUGIN = "Unknown plugin class : 'hydra_plugins."
PLUGINS = 'pip install -e ".[harness,cluster]" brings joblib (cores), submitit_local, submitit_slurm (slurm) and optuna'
NO_NAME = "Config group override must be a string or a list"  # of method=null, method=1
# Options of earlier versions, each with what is said in its place.
REMOVED = {"stack": "seeds are jobs of a sweep now: 'seed=range(20)' hydra/launcher=cores -m (docs/programs.md)"}
CONF = Path(__file__).parents[2] / "conf"
SWEEP_LOG = "FIRE_SWEEP_LOG"  # folder in which the jobs of a sweep, in any process, write how they ended


@dataclass
class Outcome:
    """How one job of a sweep ended: `state` is done, skipped (was done before), failed or stopped."""

    run: str
    state: str = "failed"
    result: str = ""


@contextlib.contextmanager
def job(config: DictConfig) -> Iterator[Outcome]:
    """Context around the body of a job: prints user-facing errors on one line, and records how the job ended."""
    show_log()
    exit_on_signals()
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    outcome = Outcome(" ".join(overrides) or "(no options)")
    try:
        _check_choices()
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
        if HydraConfig.initialized() and (folder := os.environ.get(SWEEP_LOG)):
            number = HydraConfig.get().job.num
            with contextlib.suppress(OSError):
                (Path(folder) / f"{number}.json").write_text(json.dumps(asdict(outcome)))


def out_of_memory(error: Exception) -> TrainingError | None:
    """A message with the options to lower, if `error` means out of memory (torch has a class for GPUs only)."""
    for cause in (error, error.__cause__):
        text = str(cause).split("\n")[0]
        known = isinstance(cause, (MemoryError, torch.OutOfMemoryError))
        if known or (isinstance(cause, RuntimeError) and re.search(OUT_OF_MEMORY, text)):
            return TrainingError(
                f"out of memory ({text or 'the system gives no more'}): lower batch_size=, eval_batch_size= or the "
                "model's size, run fewer jobs at once, or on a GPU set precision=bfloat16"
            )
    return None


class SweepTable(Callback):
    """Gives a sweep a folder where all its jobs, on any machine, write how they ended (conf/hydra/default.yaml)."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Make the folder and pass its name to the jobs in the environment."""
        folder = Path(config.hydra.sweep.dir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[SWEEP_LOG] = tempfile.mkdtemp(dir=folder)


def run_program(main: Callable[[], object], config_name: str) -> None:
    """Call a `@hydra.main` function; after a sweep, show how each of its jobs ended."""
    asked = _wants_traceback()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, rather than print and exit by itself
    os.environ["FIRE_TRACEBACK"] = "1" if asked else "0"
    try:
        _read_command_line()
        main()
        if _show_sweep() == 0:
            several = [argument for argument in sys.argv[1:] if "(" in argument]
            raise ConfigError(f"-m starts nothing: an option has no value ({', '.join(several)})")
    except Exception as error:
        if asked or not user_facing(error):
            raise
        _show_sweep()
        _leave(error, config_name)
    except KeyboardInterrupt:
        print("interrupted", file=Stderr())
        raise SystemExit(130) from None
    finally:
        _show_sweep()


def user_facing(error: Exception) -> bool:
    """Whether it is a user-facing error, whose message is enough."""
    return (
        isinstance(error, USER_ERRORS)
        or (isinstance(error, OSError) and error.errno in CANNOT_WRITE)
        or NO_PLUGIN in str(error)
        or NO_NAME in str(error)
    )


def _read_command_line() -> None:
    """Refuse what Hydra does not know in one line, and put its flags before the options, where it takes them."""
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(f"{message}; options are written option=value, and --help names them")

    parser.error = refuse  # type: ignore[method-assign]
    options = parser.parse_intermixed_args().overrides
    sys.argv[1:] = [argument for argument in sys.argv[1:] if argument not in options] + options


def _check_choices() -> None:
    """Refuse a choice of a group that is a path to elsewhere."""
    choices = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    for option, choice in choices.items():
        if isinstance(choice, str) and ".." in choice.split("/"):
            raise ConfigError(f"{option}={choice} leaves conf/{option}: it must be the name of a file there")


def _wants_traceback() -> bool:
    return os.environ.get("FIRE_TRACEBACK", os.environ.get("HYDRA_FULL_ERROR")) == "1"


def _leave(error: BaseException, config_name: str | None = None) -> None:
    print(f"error: {one_line(error, config_name)}", file=Stderr())
    raise SystemExit(EXIT_TRAINING if isinstance(error, TrainingError) else EXIT_CONFIG) from None


def _show_sweep() -> int | None:
    """A table of all jobs so far, if there were several; once. Returns their number, None if there is no sweep."""
    folder = os.environ.pop(SWEEP_LOG, None)
    if folder is None:
        return None
    files = sorted(Path(folder).glob("*.json"), key=lambda path: int(path.stem))
    outcomes = [Outcome(**json.loads(file.read_text())) for file in files]
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):  # a sweep of which no job began leaves nothing
        if all(outcome.state == "failed" for outcome in outcomes):
            (Path(folder).parent / "multirun.yaml").unlink(missing_ok=True)
        for parent in Path(folder).parents[:2]:
            parent.rmdir()
    if len(outcomes) > 1:
        width = max(len(outcome.run) for outcome in outcomes)
        for outcome in outcomes:
            print(f"{outcome.run:<{width}}  {outcome.state:<8}  {outcome.result}", file=Stderr())
    return len(outcomes)


def one_line(error: BaseException, config_name: str | None = None) -> str:
    """An error's message, and that of the error underneath it, on one line, with the accepted names and a near one."""
    if isinstance(error, HydraException) and (own := _own_error(error)):
        return str(own)
    parts = [str(error)]
    if isinstance(error, HydraException) and error.__cause__ is not None:
        parts.append(str(error.__cause__))
    text = "\n".join(parts)
    choice = re.search(
        r"Could not find '(?:.*/)?([^/']+)'.*?Available options in '([^']+)':\n((?:\t[^\n]*\n?)+)", text, re.S
    )
    if choice:
        more = f"; others: {PLUGINS}" if choice[2].startswith("hydra/") else ""
        return f"{choice[2]}={choice[1]} is unknown{_near(choice[1], choice[3].split())}{more}"
    if NO_PLUGIN in text:
        return f"the launcher or sweeper is not installed: {PLUGINS}"
    if NO_NAME in text:
        return _of_no_name(sys.argv[1:])
    key = re.search(r"Could not override '([^']+)'", text)
    if key and key[1] in REMOVED:
        return f"option {key[1]} is gone; {REMOVED[key[1]]}"
    if key:
        parent, _, name = key[1].rpartition(".")
        return f"option {key[1]} is unknown{_near(name, _keys(parent, config_name))}"
    merging = re.search(r"Error merging override (\S+)\n(.*)", text)
    if merging:
        return f"{merging[1]}: {merging[2]}"
    return " ".join(re.sub(r"\b(full_key|object_type|reference_type)[:=] ?\S+", "", text).split())


def _own_error(error: BaseException) -> ConfigError | None:
    """What a resolver of a defaults list refused with, underneath Hydra's error."""
    under: BaseException | None = error
    while under is not None and not isinstance(under, ConfigError):
        under = under.__cause__ or under.__context__
    return under


def _of_no_name(arguments: list[str]) -> str:
    """What to say when a group is given null or a number."""
    pairs = [argument.split("=", 1) for argument in arguments if "=" in argument]
    for option, value in ((option, value) for option, value in pairs if option):
        names = sorted(path.stem for path in (CONF / option).glob("*.yaml"))
        if option in ("cache", "scale", "start"):  # tables, see harness.config.tables
            names = sorted(map(str, OmegaConf.load(CONF / f"{option}.yaml")))
        stored = {n.removesuffix(".yaml") for n in ConfigStore.instance().repo.get(option, {}) if n.endswith(".yaml")}
        if option in ("trigger", "env", "experiment"):  # harness.config.trigger, conf/envs, conf/presets
            names = sorted(stored | set(names))
        if option == "tuned":  # whose files are tables
            names = sorted(stored)
        if names and not set(value.split(",")) <= set(names):
            return f"{option}={value} is unknown; accepted: {', '.join(names)}"
    return "a group of options takes the name of one of its files in conf/; options are written option=value"


def _near(name: str, accepted: list[str]) -> str:
    near = difflib.get_close_matches(name, accepted, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{hint}; accepted: {', '.join(accepted)}" if accepted else hint


def _keys(parent: str, config_name: str | None) -> list[str]:
    """The keys of a node of the program's default configuration."""
    if config_name is None:
        return []
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose(config_name)
    node = OmegaConf.select(config, parent) if parent else config
    return [str(key) for key in node] if isinstance(node, DictConfig) else []
