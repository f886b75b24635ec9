"""`--help` shows the comment of each option beside its value."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.config import comments
from harness.program.help import help_text


@dataclass
class Inner:
    every: int = 1  # steps


@dataclass
class Outer:
    """Args: a word with a colon is no option."""

    inner: Inner = field(default_factory=Inner)
    name: str = "a # b"  # behind
    # Above, on
    # two lines.
    size: int = 3
    plain: int = 4


def test_of_fields() -> None:
    assert comments.of_fields(Outer) == {"inner.every": "steps", "name": "behind", "size": "Above, on two lines."}


def test_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "choice.yaml"
    file.write_text("# The choice.\n_target_: x\nname: 'no # comment'\nnested:\n  deep: 1  # metres\nlast: 2\n")
    assert comments.of_file(file, "model") == {"model._target_": "The choice.", "model.nested.deep": "metres"}
    file.write_text("# @package _global_\n# Of all.\nlr: 1  # a rate\nenv:\n  size: 2  # pixels\n")
    assert comments.of_file(file, "env") == {"lr": "a rate", "env.size": "pixels"}


def test_add_comments_keeps_every_line_and_the_last_comment() -> None:
    shown = "lr: 0.1\nmodel:\n  width: 3\n  names:\n  - a\n"
    text = comments.add_comments(shown, [{"lr": "old", "model.width": "long " * 30}, {"lr": "a rate"}])
    assert [line for line in text.splitlines() if not line.strip().startswith("#")] == [
        f"{'lr: 0.1':<32}  # a rate", "model:", "  width: 3", "  names:", "  - a",
    ]  # fmt: skip
    assert max(map(len, text.splitlines())) <= comments.WIDTH


@pytest.mark.parametrize("program", ["vision", "language", "dqn", "sac"])
def test_the_help_of_a_program(program: str) -> None:
    import tests.programs

    tests.programs.compose(program)  # makes its types known
    text = help_text(program, ["method=redo"])
    (threshold,) = [line for line in text.splitlines() if line.strip().startswith("threshold:")]
    assert threshold.endswith("# of a unit's mean |activation| over that of its layer"), "a group's file"
    assert "shared first phases" in text, "a dataclass within the options that all programs share"
    assert "@package" not in text


def test_the_help_shows_comments_of_the_files_that_a_choice_builds_on() -> None:
    import tests.programs

    tests.programs.compose("sac")  # makes its types known
    lines = help_text("sac", ["env=ant"]).splitlines()
    (twin,) = [line for line in lines if line.strip().startswith("twin:")]
    assert twin.endswith("# clipped double Q, for tasks whose episodes can end early")
    (number,) = [number for number, line in enumerate(lines) if line.strip().startswith("task: Ant-v5")]
    assert "105 observations" in " ".join(lines[number - 1 : number + 1]), "the choice's own comment replaces the other"
