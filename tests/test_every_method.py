"""Every method in every program at its smallest: a run to the end, or the refusal that stands here, with its reason.

The runs are made in this process. `tests/curves` and others start the programs by their command lines.
"""

from pathlib import Path

import pytest

from harness.config.errors import ConfigError
from harness.config.groups import CONF, PACKAGES
from tests.programs import DQN, LANGUAGE, SAC, SMALL, Program, only_run, summary
from tests.zygote import Zygote

METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
# The options of each program's smallest run, with two phases, a boundary between them and steps after it.
PROGRAMS: dict[str, tuple[Program, tuple[str, ...]]] = {
    "vision": (SMALL, ("epochs=1",)),
    "language": (LANGUAGE, ("benchmark.iterations=[4,4]", "benchmark.checkpoints=[2]", "eval_sequences=2")),
    "dqn": (DQN, ("total_steps=80", "midpoint=60", "learning_starts=20", "eval.every=200", "eval.steps=10")),
    # A method looks at 8,192 transitions at a boundary, in batches of this size.
    "sac": (SAC, ("env_steps=40", "eval_every=20", "random_steps=10", "eval_episodes=1", "batch_size=256")),
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


def options_of(program: str, method: str) -> list[str]:
    """The options of a smallest run of a method."""
    smallest, options = PROGRAMS[program]
    return smallest.tiny(*options, f"method={method}", "cache=off", *NEEDS.get((program, method), ()))


@pytest.mark.parametrize(("program", "method"), RUNS)
def test_a_run_to_the_end(program: str, method: str, tmp_path: Path) -> None:
    smallest, _ = PROGRAMS[program]
    folder = smallest.run_composed(tmp_path, smallest.compose_only(options_of(program, method)))
    assert summary(folder)["steps"] > 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_to_the_end_by_the_command_line(program: str, tmp_path: Path, zygote: Zygote) -> None:
    """Of a chain, whose parts only the command line names before Hydra composes."""
    options = (*options_of(program, "chain"), "method.of=fire+redo")
    answer = zygote.run(tmp_path, PROGRAMS[program][0].module, *options)
    assert answer.code == 0, answer.err
    assert summary(only_run(tmp_path / "runs"))["steps"] > 0


@pytest.mark.parametrize(("program", "method", "options"), REFUSED)
def test_a_refusal(program: str, method: str, options: tuple[str, ...], tmp_path: Path) -> None:
    smallest, _ = PROGRAMS[program]
    with pytest.raises(ConfigError) as refused:
        smallest.run(tmp_path / "runs", f"method={method}", *options)
    said = str(refused.value)
    assert said.startswith(f"method={method} ")
    assert "\n" not in said
    assert REFUSED[program, method, options] in said
    assert not (tmp_path / "runs").exists()


def test_a_refusal_by_the_command_line_is_one_line(tmp_path: Path, zygote: Zygote) -> None:
    program, method, options = next(iter(REFUSED))
    smallest, _ = PROGRAMS[program]
    answer = zygote.run(tmp_path, smallest.module, *smallest.tiny(f"method={method}", *options))
    assert answer.code == 2
    assert answer.err.startswith(f"error: method={method} ")
    assert answer.err.count("\n") == 1
    assert REFUSED[program, method, options] in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("method", ["swr", "regrama", "cpr", "hare_tortoise", "cbp"])
def test_a_method_that_never_acted_is_named_at_the_end(
    method: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its interval is longer than the run, so the numbers are those of base."""
    SMALL.run(tmp_path, f"method={method}", "epochs=1")
    assert f"a method has never acted in {only_run(tmp_path)}" in caplog.text


def test_a_method_that_acted_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SMALL.run(tmp_path, "method=swr", "method.every=1", "epochs=1")
    assert "never acted" not in caplog.text
