"""The four programs at their smallest, run in this process, and what a run leaves.

`tests.zygote` runs them in processes of their own, which may be killed.
"""

import copy
import functools
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from hydra.core.hydra_config import HydraConfig

from harness.config import groups
from harness.config.arguments import read_arguments
from harness.program import outcome, start, sweep
from harness.program.execute import run_to_end
from harness.program.outcome import Outcome
from harness.training.estimate import SWEEP_JOBS

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
# Differ from run to run.
CLOCKS = ("seconds", "method/seconds")
# The modules that make the types of a program's options known to Hydra.
SCHEMAS = {"vision": "vision.train", "language": "language.train", "dqn": "rl.dqn.train", "sac": "rl.sac.train"}
SCHEMAS |= {"language_prepare": "language.prepare"}


@dataclass(frozen=True)
class Program:
    """One of the four.

    Args:
        name: of its configuration and of its folder below `runs`.
        module: for `python -m`.
        options: of its smallest run.
    """

    name: str
    module: str
    options: tuple[str, ...]

    def tiny(self, *overrides: str) -> list[str]:
        """These options, and those of the smallest run that they do not set."""
        named = {override.split("=")[0] for override in overrides}
        return [option for option in self.options if option.split("=")[0] not in named] + list(overrides)

    def compose(self, *overrides: str) -> Any:
        """The resolved configuration of a smallest run with these overrides."""
        return self.compose_only(self.tiny(*overrides))

    def compose_only(self, overrides: Iterable[str]) -> Any:
        """The configuration with these overrides alone."""
        return compose(self.name, *overrides)

    def run(self, runs: Path, *overrides: str) -> Path:
        """Train in this process to the end; the run's folder."""
        return self.run_composed(runs, self.compose(*overrides))

    def run_composed(self, runs: Path, config: Any) -> Path:
        """The same of a configuration; its runs go to this folder."""
        config.paths.runs = str(runs)
        self.run_to_end(config)
        (folder,) = (runs / self.name).glob(f"*-{config.method.name}-s{config.seed}-*")
        return folder

    def run_to_end(self, config: Any) -> dict[str, Any]:
        """Train one configuration in this process; its summary."""
        program = importlib.import_module(SCHEMAS[self.name]).PROGRAM
        return run_to_end(config, program, program.make_task(config), Outcome(""))


ALIKE = ("scale=smoke", "tracker=none", "progress=false", "threads=1")
VISION = Program(
    "vision", "vision.train", (*ALIKE, "benchmark=warm_start", "model=small_resnet", "model.width=8", "batch_size=128")
)
SMALL = Program(
    "vision",
    "vision.train",
    (*ALIKE, "benchmark=warm_start", "model=mlp", "model.hidden=8", "epochs=2", "batch_size=512"),
)
LONG = ("method=fire", "epochs=5")  # of SMALL: five rows in each phase
LANGUAGE = Program(
    "language",
    "language.train",
    (
        *ALIKE, "benchmark=continual_pretraining",
        "model.n_layer=1", "model.n_head=2", "model.n_embd=32", "model.block_size=32", "batch_size=2",
        "benchmark.iterations=[40,40]", "benchmark.checkpoints=[20]", "lr=1e-3",
    ),
)  # fmt: skip
DQN = Program(
    "dqn",
    "rl.dqn",
    (
        *ALIKE, "env=cartpole", "num_envs=2", "model.hidden=16", "total_steps=400", "midpoint=200",
        "learning_starts=40", "target_every=50", "batch_size=8", "log_every=40", "eval.every=100", "eval.steps=40",
        "eval.num_envs=2", "replay.capacity=200", "replay.segment=16",
    ),
)  # fmt: skip
# Pixels, and a limit that cuts episodes.
ATARI = Program(
    "dqn",
    "rl.dqn",
    (
        *ALIKE, "env=asterix", "env.max_frames=160", "env.threads=1", "num_envs=2", "model.width=0.125",
        "total_steps=240", "midpoint=120", "learning_starts=20", "target_every=50", "batch_size=8", "log_every=40",
        "eval.every=120", "eval.steps=40", "eval.num_envs=2", "replay.capacity=120", "replay.segment=16",
    ),
)  # fmt: skip
SAC = Program(
    "sac",
    "rl.sac",
    (
        *ALIKE, "env=double_pendulum", "env_steps=400", "eval_every=100", "batch_size=16", "metrics=off",
        "networks.actor_width=16", "networks.critic_width=32",
    ),
)  # fmt: skip


def compose(program: str, *overrides: str) -> Any:
    """The configuration of a program for these overrides, a copy of its own; Hydra composes each once in a process."""
    return copy.deepcopy(_composed(program, overrides))


@functools.cache
def _composed(program: str, overrides: tuple[str, ...]) -> Any:
    import_program(program)
    return groups.compose(program, overrides)


def start_here(program: str, words: Iterable[str], monkeypatch: "pytest.MonkeyPatch") -> int:
    """Start a program in this process by the words of a command line; its exit code.

    It is the program from the first check of the words to the message of an error. Of a single run `hydra.main` alone
    is left out, which would compose a second time. The signals and the log of this process stay as they are.
    """
    module = importlib.import_module(SCHEMAS[program])

    def main() -> None:
        arguments = read_arguments(program, sys.argv[1:])
        if arguments.multirun or arguments.cfg:
            return module.main()  # type: ignore[no-any-return]
        folder = Path(arguments.config_dir) if arguments.config_dir else None
        config = groups.compose_with_hydra(program, [*arguments.overrides, "hydra.mode=RUN"], folder)
        HydraConfig.instance().set_config(copy.deepcopy(config))
        module.main(groups.without_hydra(config))

    if "-m" in words:
        words = [*words, "hydra/hydra_logging=none"]
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)  # put back after the test
    for variable in ("HYDRA_FULL_ERROR", "FIRE_TRACEBACK", SWEEP_JOBS):  # these too
        monkeypatch.setenv(variable, "0")
    monkeypatch.setattr(start, "keep_output", lambda: None)
    monkeypatch.setattr(sweep, "exit_on_signals", lambda: None)
    for name in ("show_log", "exit_on_signals", "leave_with_driver"):
        monkeypatch.setattr(outcome, name, lambda: None)
    try:
        start.run_program(main, program, getattr(module, "open_data", None))
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        HydraConfig.instance().cfg = None
    return 0


def import_program(program: str) -> None:
    """Make the types of a program's options known to Hydra."""
    importlib.import_module(SCHEMAS[program])


def only_run(runs: Path) -> Path:
    """The one run folder below `runs`, of whatever program."""
    (folder,) = (entry for program in runs.iterdir() if program.name[0] != "." for entry in program.iterdir())
    return folder


def lines(runs: Path, pattern: str = "*/*") -> int:
    """Rows written so far by the one run that matches."""
    found = list(runs.glob(f"{pattern}/metrics.jsonl"))
    return found[0].read_bytes().count(b"\n") if found else 0


def rows(folder: Path, clocks: bool = False) -> list[dict[str, Any]]:
    """The rows of a run, without the clocks."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return found if clocks else [{k: v for k, v in row.items() if k not in CLOCKS} for row in found]


def boundary(folder: Path, phase: int = 1) -> dict[str, Any]:
    """The numbers of the boundary before a phase."""
    of_phase = [row for row in rows(folder) if row["phase"] == phase]
    return {key: value for row in of_phase for key, value in row.items() if key.startswith("boundary/")}


def summary(folder: Path) -> dict[str, Any]:
    """What a finished run gives in the end."""
    found: dict[str, Any] = json.loads((folder / "DONE").read_text())
    return found


def final_state(folder: Path) -> dict[str, Any]:
    """The trainer's state in the newest checkpoint."""
    newest = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    state: dict[str, Any] = torch.load(newest, weights_only=True)["state"]["trainer"]
    return state


def assert_same(one: Path, other: Path) -> None:
    """Same name, same rows with no hole and no duplicate, same final state and replay bit for bit."""
    assert one.name == other.name
    assert rows(one) == rows(other)
    steps = [(row["step"], "kind" in row) for row in rows(one)]
    assert steps == sorted(set(steps))
    state = final_state(one)
    assert same(state, final_state(other))
    for name in state.get("replay", {}).get("segments", []):  # named by their content
        assert (one / "replay" / name).read_bytes() == (other / "replay" / name).read_bytes()


def same(one: Any, other: Any) -> bool:
    """Bitwise equality of nested states, clocks apart."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict):
        keys = one.keys() - set(CLOCKS)
        return keys == other.keys() - set(CLOCKS) and all(same(one[key], other[key]) for key in keys)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other or (one != one and other != other))  # NaN is the same as NaN


def wait_for(condition: Callable[[], T], seconds: float = 120) -> T:
    """The first value of `condition` that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise TimeoutError(f"still false after {seconds} s")


def wait_until_held(child: int) -> None:
    """Until a child that `holds` (tests.faults) has stopped itself."""
    wait_for(lambda: Path(f"/proc/{child}/stat").read_text().rsplit(") ", 1)[1].startswith("T"))


def holder(lock: Path) -> int:
    """The process that holds a lock file."""
    file = f":{lock.stat().st_ino} "
    (line,) = (line for line in Path("/proc/locks").read_text().splitlines() if file in line and "->" not in line)
    return int(line.split()[4])


def alive(group: int) -> bool:
    """Whether a process of a group is there that is not waiting to be buried."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, member = (folder / "stat").read_text().rsplit(") ", 1)[1].split()[:3]
        except OSError:
            continue
        if int(member) == group and state != "Z":
            return True
    return False
