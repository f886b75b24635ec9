"""The choices of the command line that belong to another program, each of them; messages are in tests/options."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from harness.config import groups
from harness.config.arguments import parse_option, read_arguments, values_of
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from tests.programs import import_program

FOREIGN = [
    (program, group, name)
    for program in ("vision", "language", "dqn", "sac")
    for group in groups.groups_of(program)
    for name in groups.choices(group)
    if name not in groups.choices(group, program)
]


@pytest.mark.parametrize(("program", "group", "name"), FOREIGN, ids=[" ".join(case) for case in FOREIGN])
def test_a_choice_of_another_program_is_refused(
    program: str, group: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_program(program)
    monkeypatch.setattr(sys, "argv", ["program", f"{group}={name}"])
    with pytest.raises(ConfigError, match=f"^{group}={name} is not for {program}; accepted: "):
        read_arguments(program)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed=3", ["3"]),
        ("seed=range(1,4)", ["1", "2", "3"]),
        ("method=base,fire", ["base", "fire"]),
        ("method=choice(base,fire)", ["base", "fire"]),
        ("method=glob(fire_e*)", ["fire_exact"]),
        ("lr=interval(0,1)", []),
        ("paths.runs='a b'", ["a b"]),
    ],
)
def test_the_values_of_an_option(text: str, expected: list[str]) -> None:
    assert values_of(parse_option(text)) == expected


@pytest.mark.parametrize(
    "value",
    ["läufe", "~/runs", "a(1)", "O'Brien", "x;y", "[1", "a#b", "$(pwd)", '"', "'\\\"#", "#\\", "b=\\\\"],
)
def test_what_is_said_of_a_value_that_cannot_be_read_can_be_read(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_option(f"paths.runs={value}")
    (advice,) = shlex.split(str(caught.value).rpartition("quotes, ")[2])
    assert values_of(parse_option(advice)) == [value]


def test_a_sweep_of_chains_does_not_take_searched_values(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["tuned=searched", "benchmark=warm_start", "method=base,chain", "method.of=fire+weight_decay", "-m"]
    monkeypatch.setattr("sys.argv", ["vision", *words])
    with pytest.raises(ConfigError, match="tuned=searched with method=chain is for single runs"):
        read_arguments("vision")


def test_a_file_of_ones_own_with_a_name_of_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra would take ours without a word; a copy of ours is what it is."""
    own = tmp_path / "conf" / "method" / "fire.yaml"
    own.parent.mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["vision"])
    words = [f"--config-dir={tmp_path / 'conf'}", "method=fire"]
    shutil.copy(CONF / "method" / "fire.yaml", own)
    read_arguments("vision", words)
    own.write_text("_target_: last.LastShrink\nname: fire\n")
    with pytest.raises(ConfigError, match=r"method/fire\.yaml has the name of a file of this program"):
        read_arguments("vision", words)


def test_an_error_of_a_loader_of_ones_own_keeps_its_class_and_place() -> None:
    with pytest.raises(KeyError, match="no such key"):
        build("dataset", {"_target_": f"{__name__}.raises_key_error", "name": "mine"})


def raises_key_error() -> None:
    """Raises it."""
    raise KeyError("no such key")
