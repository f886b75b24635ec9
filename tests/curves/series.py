"""Runs the cases and reads, writes and compares their numbers."""

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from tests.curves.cases import CASES, COMMON, write_texts
from tests.programs import DQN, LANGUAGE, SAC, VISION

PROGRAMS = {program.name: program for program in (VISION, LANGUAGE, DQN, SAC)}
FOLDER = Path(__file__).parent
HISTORY = FOLDER / "history.json"  # {program: {NUMERICS: {environment: digest of the numbers}}}
SETTINGS = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")  # of the libraries, which choose kernels by them

# Columns that were recorded under another name than they have now: {program: {recorded: now}}.
RENAMED: dict[str, dict[str, str]] = {"vision": {}, "language": {"epoch": "iteration"}, "dqn": {}, "sac": {}}
# Differ from run to run, or say where a row stands.
IGNORED = ("seconds", "method/seconds", "step", "kind")
# Elsewhere than where they were recorded (another torch, CPU or setting) numbers may differ: measured by recording with
# ATEN_CPU_CAPABILITY=default and avx2 and comparing with AVX512. Worst: the loss of Muon 2.5e-4, the sharpness (a power
# iteration) 8e-3 of the largest number of their column; a part of a few hundred samples or units 0.12; the DfI after
# an exact projection, which is rounding alone, 1e-11.
TOLERANCE, TOLERANCE_OF_PARTS, ROUNDING = 2e-2, 0.2, 1e-6
PARTS = ("accuracy", "dormant_ratio")
# Of an agent's episodes, whose ends turn on the last bits: seen on an AMD CPU, where one of two episodes of SAC took
# seven steps instead of six after step 200 of 400. From there on an agent trains on other data.
OF_EPISODES = ("return", "length")

Series = dict[str, dict[str, Any]]  # column -> step (or phase, for what belongs to a boundary) -> number
Curves = dict[str, Series]  # case -> its series


def series(rows: list[dict[str, Any]]) -> Series:
    """The numbers of a run's rows by column and step; those of a boundary by the phase that it begins.

    So a number may move to another row of its step, or of its boundary, and is still the same number.
    """
    found: Series = {}
    for row in rows:
        for column, value in row.items():
            of_boundary = column.startswith("boundary/")
            if column in IGNORED or ("kind" in row and not of_boundary):
                continue
            place = f"phase {row['phase']}" if of_boundary else str(row["step"])
            assert place not in found.get(column, {}), f"{column} is logged twice for {place}"
            found.setdefault(column, {})[place] = value
    return found


def run_cases(program: str, names: Iterable[str], folder: Path) -> Curves:
    """Run the named cases of a program in this process; first phases that are the same are trained once."""
    curves: Curves = {}
    for number, case in enumerate(names):
        place = folder / str(number)
        place.mkdir(parents=True)
        if program == "language":
            write_texts(place)
        config = PROGRAMS[program].compose_only([*COMMON, *CASES[program][case], f"paths.cache={folder}/cache"])
        with contextlib.chdir(place):
            PROGRAMS[program].run_to_end(config)
        (metrics,) = (place / "runs" / program).glob("*/metrics.jsonl")
        curves[case] = series([json.loads(line) for line in metrics.read_text().splitlines()])
    return curves


def environment(program: str) -> str:
    """What the last bits of a program's numbers depend on beside its code.

    Two CPUs of one capability take other kernels: libraries choose them by the model.
    """
    needs = {
        "vision": ("scikit-learn",),
        "language": (),
        "dqn": ("gymnasium", "ale-py"),
        "sac": ("gymnasium", "mujoco"),
    }
    parts = [f"torch {torch.__version__}", torch.backends.cpu.get_cpu_capability(), cpu_model(), sys.platform]
    parts += [f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
    return ", ".join(parts + [f"{name} {version(name)}" for name in ("numpy", *needs[program])])


def cpu_model() -> str:
    """Maker, family, model and stepping of the CPU, which a virtual machine's name for it may not tell."""
    fields = ("vendor_id", "cpu family", "model", "stepping")
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:  # not Linux
        return f"{platform.machine()} {platform.processor()}"
    values = dict(re.split(r"\s*:\s*", line, maxsplit=1) for line in first.splitlines() if ":" in line)
    return " ".join(values.get(name, platform.machine()) for name in fields)


def differences(program: str, recorded: Curves, now: Curves, exact: bool) -> list[str]:
    """One line for each recorded number that is lost, or differs: in any bit, or by more than the tolerance.

    Columns that are only in `now` are no difference.
    """
    found = []
    for case, columns in recorded.items():
        different: list[tuple[str, str, str]] = []  # column, place, line
        for old_name, numbers in columns.items():
            column = RENAMED[program].get(old_name, old_name)
            have = now.get(case, {}).get(column, {})
            allowed = 0.0 if exact else tolerance(column, numbers)
            for place, value in numbers.items():
                where = f"{program}, {case}, {column} at {place}"
                if place not in have:
                    found.append(f"{where}: {value!r} is lost")
                elif not alike(value, have[place], allowed):
                    different.append((column, place, f"{where}: {value!r} was recorded, now {have[place]!r}"))
        last = math.inf if exact else last_comparable_step(columns, different)
        found += [line for _, place, line in different if not place.isdigit() or int(place) <= last]
    return found


def last_comparable_step(columns: Series, different: Iterable[tuple[str, str, str]]) -> float:
    """Up to which step a case's numbers can be compared elsewhere: before the first episodes that differ.

    It is infinite where no episodes differ, and where some differ in the first half of the run, which is an error.

    Args:
        columns: the recorded numbers of the case.
        different: column, place and line of each number that differs by more than its tolerance.
    """
    steps = [int(place) for numbers in columns.values() for place in numbers if place.isdigit()]
    of_episodes = [
        int(place) for column, place, _ in different if place.isdigit() and any(part in column for part in OF_EPISODES)
    ]
    if not of_episodes or 2 * min(of_episodes) <= max(steps):
        return math.inf
    return min(of_episodes) - 1


def tolerance(column: str, numbers: dict[str, Any]) -> float:
    """By how much a number of this column may differ elsewhere."""
    if any(part in column for part in PARTS):
        return TOLERANCE_OF_PARTS
    return ROUNDING + TOLERANCE * max((abs(v) for v in numbers.values() if isinstance(v, int | float)), default=0.0)


def alike(one: Any, other: Any, by: float) -> bool:
    """Equal to the last bit for `by` = 0, else at most `by` apart."""
    if repr(one) == repr(other) or not all(isinstance(value, int | float) for value in (one, other)):
        return repr(one) == repr(other)
    return abs(one - other) <= by if all(map(math.isfinite, (one, other))) and by else bool(one == other)


def read(program: str) -> tuple[str, Curves]:
    """The environment in which a program's numbers were recorded, and the numbers."""
    found = json.loads((FOLDER / f"{program}.json").read_text())
    return found["environment"], found["cases"]


def write(program: str, curves: Curves) -> None:
    """Record these numbers: a line a column, floats as Python writes them, which gives every bit back."""
    cases = [
        f"  {json.dumps(case)}: {{\n"
        + ",\n".join(f"   {json.dumps(column)}: {json.dumps(numbers)}" for column, numbers in columns.items())
        + "\n  }"
        for case, columns in curves.items()
    ]
    head = json.dumps(environment(program))
    text = f'{{\n "environment": {head},\n "cases": {{\n' + ",\n".join(cases) + "\n }\n}\n"
    (FOLDER / f"{program}.json").write_text(text)


def digest(program: str) -> str:
    """Of the recorded numbers."""
    return hashlib.sha256((FOLDER / f"{program}.json").read_bytes()).hexdigest()[:16]


def history() -> dict[str, dict[str, dict[str, str]]]:
    """What was recorded under which NUMERICS: {program: {NUMERICS: {environment: digest}}}."""
    recorded: dict[str, dict[str, dict[str, str]]] = json.loads(HISTORY.read_text()) if HISTORY.exists() else {}
    return recorded
