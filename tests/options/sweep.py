"""Try wrong values for every option of every program, in this process.

Each case ends in one of two ways: the run reaches its first step, or one line with exit code 2, and nothing is written.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from harness.config import cli
from harness.config.cli import Outcome
from harness.config.errors import TrainingError
from harness.run.execute import run_to_end
from harness.run.tracker import Wandb
from tests.programs import ATARI, DQN, LANGUAGE, SAC, SCHEMAS, VISION, Program

FOLDER = Path(__file__).parent
# What stands on the command line: text, truth, a list, nothing, and numbers out of every range.
VALUES = ("abc", "true", "[1]", "null", "-1", "0", "1.5", "nan", "inf", "-inf", "1e300", "99999999999999999999")
LANGUAGE_MODELS = ("gpt_tiny", "gpt_0.1b")
# Tasks as short as the smallest run of DQN.
STREAM = {"env": "cartpole", "benchmark.steps": 80, "benchmark.tasks": 3, "total_steps": 240, "learning_starts": 20}
NOT_OURS = ("timm", "torchvision")  # others' code decides what they accept


class Case(NamedTuple):
    """One option of a program, and the overrides with which it is one."""

    program: Program
    overrides: tuple[str, ...]
    option: str

    def __str__(self) -> str:
        return " ".join((self.program.name, *self.overrides, self.option))


def cases() -> list[Case]:
    """Every option of the frozen lists."""
    found = []
    for program in (VISION, LANGUAGE, DQN, SAC):
        base = ("env=cartpole",) if program is DQN else ()
        names = (FOLDER / f"{program.name}.txt").read_text().split()
        if program is DQN:
            names = [name for name in names if not name.startswith(("env.", "model."))]  # of Atari; see the groups
        found += [Case(program, (*base, "tracker=wandb_offline"), name) for name in names]
    for line in (FOLDER / "groups.txt").read_text().split():
        place, _, name = line.partition(".")
        group, choice = place.split("/", 1)
        if choice == "gpt_0":  # gpt_0.1b: the name has a dot
            choice, name = "gpt_0.1b", name.removeprefix("1b.")
        if name and choice not in NOT_OURS:
            found += case_of_group(group, choice, name)
    return found


def case_of_group(group: str, choice: str, name: str) -> list[Case]:
    """The program, and the overrides, in which a choice of a group has this option."""
    select, option = f"{group}={choice}", f"{group}.{name}"
    if group == "env":
        if choice in ("cartpole", "acrobot", "lunarlander") or choice.startswith("minatar_"):
            return [Case(DQN, (select,), name)] if choice in ("cartpole", "minatar_breakout") else []
        sac = "_repeat" in name or name in ("options", "suite", "task", "twin")
        return [Case(SAC, (select,), option) if sac else Case(ATARI, (select,), name)]
    if choice == "continual_control":
        return [Case(DQN, (*(f"{key}={value}" for key, value in STREAM.items()), select), option)]
    if group == "trigger":
        return [Case(DQN, ("env=cartpole", select, "method=fire"), option)]
    if group == "networks":
        return [Case(SAC, (select,), option)]
    if group == "method":
        return [Case(DQN if choice == "pi" else VISION, (select,), option)]
    if choice in LANGUAGE_MODELS or choice == "continual_pretraining":
        return [Case(LANGUAGE, (select,) if group == "model" else (), option)]
    if choice in ("domains", "permuted_text"):
        if group == "dataset":
            return [Case(LANGUAGE, ("benchmark=domains",), option)]
        return [Case(LANGUAGE, (select,), name)]  # its file says where each of its options is
    if group == "model" and choice == "minatar_cnn":
        return [Case(DQN, ("env=minatar_breakout",), option)]
    if group == "model" and choice in ("nature_cnn", "q_mlp"):
        return [Case(ATARI if choice == "nature_cnn" else DQN, (), option)]
    if group == "dataset" and choice in ("pydoc_stdlib", "texts", "wiki_owt"):
        return [Case(LANGUAGE, (select,), option)]
    if group == "dataset" and choice in ("pydoc", "stdlib", "text", "openwebtext", "wikitext103"):
        first = ("dataset=texts",) if choice == "text" else ("dataset=wiki_owt",)
        part = {"pydoc": "first", "stdlib": "second", "openwebtext": "second"}.get(choice, "first")
        return [Case(LANGUAGE, () if choice in ("pydoc", "stdlib") else first, f"dataset.{part}.{name}")]
    if group == "optimizer":
        return [Case(LANGUAGE if choice == "adamw" else VISION, (select,), option)]
    return [Case(VISION, (select,), option)]


class Reached(Exception):
    """The run has come to its first step."""


def reached(*args: object) -> Any:
    """In the place of a program's training."""
    raise Reached


@functools.cache
def base_of(program: Program, overrides: tuple[str, ...]) -> Any:
    """The configuration before the option is set."""
    options = [option for option in program.tiny(*overrides) if not option.startswith("model.")]
    if program is VISION:
        options = [option for option in options if not option.startswith("model=")] + ["model=mlp"]
        options += [option for option in overrides if option.startswith("model=")]
    if {"benchmark=domains", "benchmark=permuted_text"} & set(overrides):  # the smallest run is one of the pair
        options = [option for option in options if not option.startswith("benchmark.")]
    if program is LANGUAGE and "model=gpt_0.1b" not in overrides:
        options += [option for option in program.options if option.startswith("model.")]
    return program.compose_only(options)


def tried(case: Case, text: str, folder: Path, data: Path) -> str | None:
    """What is wrong with how a program meets a value; None: nothing.

    Args:
        case: the option.
        text: the value as the command line has it.
        folder: an empty folder, the current one.
        data: prepared corpora.
    """
    config = copy.deepcopy(base_of(case.program, case.overrides))
    config.paths.data = str(data)
    program = importlib.import_module(SCHEMAS[case.program.name]).PROGRAM
    program = dataclasses.replace(program, train=reached)
    try:
        (override,) = OverridesParser.create().parse_overrides([f"{case.option}={text}"])
        OmegaConf.update(config, case.option, override.value(), merge=True)
        run_to_end(config, program, program.make_task(config), Outcome(""))
    except Reached:
        for entry in folder.iterdir():
            shutil.rmtree(entry)
        return None
    except Exception as error:
        known = cli.out_of_memory(error) or error
        if not cli.user_facing(known):
            return f"{case}={text}: {type(known).__name__}: {str(known)[:200]}"
        if isinstance(known, TrainingError):
            return f"{case}={text}: exit code 3: {cli.one_line(known)}"
        if left := sorted(str(path.relative_to(folder)) for path in folder.rglob("*")):
            for entry in folder.iterdir():
                shutil.rmtree(entry)
            return f"{case}={text}: wrote {left[:5]}"
        line = cli.one_line(known).replace(str(data), "data")  # a clear line may name a folder with a long name
        last = case.option.split(".")[-1]
        return None if last in line or len(line) < 300 or "pip install" in line else f"{case}={text}: unclear: {line}"
    return f"{case}={text}: ended without its first step"


@contextlib.contextmanager
def ready(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No tracker starts a process; threads and determinism as before."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(Wandb, "start", lambda *args: None)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
