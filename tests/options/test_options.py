"""The options of each program are those listed beside this file, so that a new one is a decision and not an accident.

python -m tests.options.test_options     writes the lists anew
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import hydra
import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from fire_core.ranges import check_arguments, problem
from harness.config.groups import CONF
from tests.programs import compose

FOLDER = Path(__file__).parent
PROGRAMS = ("vision", "language", "dqn", "sac", "language_prepare")
SETTING = ("experiment", "hydra", "tuned")  # folders whose files set options, and bring none of their own
# No arguments: `layout` of a model is that of methods, `local` and `expected_tokens` are looked at before.
NO_ARGUMENT = ("_target_", "_recursive_", "name", "defaults", "layout", "local", "expected_tokens")
NOT_OURS = ("torch.", "vision.models.timm", "vision.models.torchvision")  # others' code says what it accepts


def options_of(program: str) -> list[str]:
    """The options of a program, with those that each of its groups has by default."""
    return sorted(leaves(OmegaConf.to_container(compose(program), resolve=False)))


def choices_of_groups() -> dict[str, Any]:
    """What the file of each choice of each group holds."""
    files = sorted(path for path in CONF.glob("*/**/*.yaml") if path.relative_to(CONF).parts[0] not in SETTING)
    return {str(path.relative_to(CONF).with_suffix("")): yaml.safe_load(path.read_text()) or {} for path in files}


def options_of_groups() -> list[str]:
    """The options that each choice of each group brings: `method/cbp.rate`."""
    found = []
    for place, own in choices_of_groups().items():
        names = leaves({key: value for key, value in own.items() if key != "defaults"})
        names = [name for name in names if name.split(".")[-1] not in ("_target_", "name")]
        found += [f"{place}.{name}" for name in names] or [place]
    return sorted(found)


def leaves(node: Any, name: str = "") -> list[str]:
    """Dotted names of all values of nested dicts; an empty dict counts as a value."""
    if not isinstance(node, dict | DictConfig) or not node:
        return [name] if name else []
    return [leaf for key, value in node.items() for leaf in leaves(value, f"{name}.{key}" if name else str(key))]


def lists() -> dict[str, list[str]]:
    """Each file's lines."""
    return {**{program: options_of(program) for program in PROGRAMS}, "groups": options_of_groups()}


@pytest.mark.parametrize("name", [*PROGRAMS, "groups"])
def test_options_are_those_listed(name: str) -> None:
    listed = set((FOLDER / f"{name}.txt").read_text().split("\n")) - {""}
    if name == "groups":  # a new file in a group is a decision by itself; a new option in an old file is one to list
        files = {line.partition(".")[0] for line in listed}
        found = {option for option in options_of_groups() if option.partition(".")[0] in files}
    else:
        found = set(options_of(name))
    assert found == listed, f"new: {found - listed}; gone: {listed - found}; python -m tests.options.test_options"


def hints_of(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options of a dataclass with their annotations."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            yield from hints_of(hints[field.name], f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hints[field.name]


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_option_of_a_program_has_its_check(program: str) -> None:
    kind = OmegaConf.get_type(compose(program))
    assert [name for name, hint in hints_of(kind) if problem(name, object(), hint) is None] in ([], ["paths"])


def refuses_nothing(target: str, option: str) -> bool:
    """Whether a class or function takes anything for an argument."""
    try:
        check_arguments(hydra.utils.get_object(target), {option: object()})
    except ValueError:
        return False
    return True


def test_every_option_of_a_group_has_its_check() -> None:
    """Values out of range are in tests/test_ranges.py: an annotation refuses them all alike."""
    unchecked = []
    for place, own in choices_of_groups().items():
        node = own.get(place.split("/")[0], own) if "_target_" not in own else own
        target = node.get("_target_", "torch.")
        if not target.startswith(NOT_OURS):
            unchecked += [f"{place}.{key}" for key in node if key not in NO_ARGUMENT and refuses_nothing(target, key)]
    assert unchecked == []


if __name__ == "__main__":
    for name, lines in lists().items():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
