"""Every method in every program at its smallest: a run to the end, or the refusal that stands here, with its reason.

A run is made in a child of the zygote by the program's own command line, so that what it prints is what a user sees.
"""

import re
from pathlib import Path

import pytest

from harness.config.groups import CONF, PACKAGES
from tests.programs import DQN, LANGUAGE, SAC, SMALL, Program, only_run, summary
from tests.zygote import Zygote

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
# The options of each program's smallest run, with two phases, a boundary between them and steps after it.
PROGRAMS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "vision": (SMALL, ("epochs=1",)),
    "language": (LANGUAGE, ("benchmark.iterations=[8,8]", "benchmark.checkpoints=[4]", "eval_sequences=2")),
    "dqn": (DQN, ("total_steps=120", "midpoint=80", "eval.every=200", "eval.steps=10")),
    "sac": (SAC, ("env_steps=120", "eval_every=60", "random_steps=40", "eval_episodes=1")),
}
# What a method needs beside itself, so that its run is one. All else that is not refused runs as it stands in conf.
NEEDS = {
    ("vision", "nap"): ("model.norm=layer",),
    ("dqn", "nap"): ("model.norm=true",),
    ("dqn", "optimizer_reset"): ("boundary.optimizer=forget",),
    ("sac", "optimizer_reset"): ("boundary.optimizer=forget",),
}
# (program, method, options) -> what is said instead of a run. Each has a reason of theory: the optimizer is new in each
# phase anyway, the norms that nap projects are not there, or the network names no head that pi could replace.
REFUSED = {
    ("vision", "nap", ()): "needs norms before the nonlinearities",
    ("dqn", "nap", ()): "needs norms before the nonlinearities",
    ("sac", "nap", ("networks=mlp",)): "needs norms before the nonlinearities",
    ("vision", "pi", ()): "does not say which of its submodules is the head",
    ("language", "pi", ()): "does not say which of its submodules is the head",
    ("vision", "optimizer_reset", ()): "would do nothing to an optimizer",
    ("language", "optimizer_reset", ()): "would do nothing to an optimizer",
    ("dqn", "optimizer_reset", ()): "resets the optimizer's state",
    ("sac", "optimizer_reset", ()): "resets the optimizer's state",
}
RUNS = [
    (program, method)
    for program in PROGRAMS
    for method in METHODS
    if (program, method, ()) not in REFUSED or (program, method) in NEEDS
]


def test_the_table_names_programs_and_methods_that_are_there() -> None:
    named = {*NEEDS, *((program, method) for program, method, _ in REFUSED)}
    assert {program for program, _ in named} <= set(PACKAGES)
    assert {method for _, method in named} <= set(METHODS)


@pytest.mark.parametrize(("program", "method"), RUNS)
def test_a_run_to_the_end(program: str, method: str, tmp_path: Path, zygote: Zygote) -> None:
    smallest, options = PROGRAMS[program]
    folder = tmp_path / "started"
    chosen = smallest.tiny(*options, f"method={method}", "cache=off", *NEEDS.get((program, method), ()))
    answer = zygote.run(folder, smallest.module, *chosen)
    assert answer.code == 0, answer.err
    assert summary(only_run(folder / "runs"))["steps"] > 0


@pytest.mark.parametrize(("program", "method", "options"), REFUSED)
def test_a_refusal_in_one_line(
    program: str, method: str, options: tuple[str, ...], tmp_path: Path, zygote: Zygote
) -> None:
    smallest, _ = PROGRAMS[program]
    answer = zygote.run(tmp_path / "started", smallest.module, *smallest.tiny(f"method={method}", *options))
    assert answer.code != 0
    said = REFUSED[program, method, options]
    assert re.search(f"method={method} .*{re.escape(said)}", answer.err), answer.err
    assert "Traceback" not in answer.err
    assert not (tmp_path / "started" / "runs").exists()
