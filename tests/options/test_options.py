"""The options of each program are those listed beside this file, so that a new one is a decision and not an accident.

python -m tests.options.test_options     writes the lists anew
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from harness.config.cli import CONF
from harness.config.trigger import CHOICES
from tests.programs import compose

FOLDER = Path(__file__).parent
PROGRAMS = ("vision", "language", "dqn", "sac", "watch", "language_prepare", "language_sample")
# Folders of conf whose files set options of a program, and bring none of their own.
SETTING = ("budget", "envs", "experiment", "hydra", "presets", "scale", "start", "tuned")


def options_of(program: str) -> list[str]:
    """The options of a program, with those that each of its groups has by default."""
    return sorted(leaves(OmegaConf.to_container(compose(program), resolve=False)))


def options_of_groups() -> list[str]:
    """The options that each choice of each group brings: `method/cbp.rate`."""
    files = sorted(path for path in CONF.glob("*/**/*.yaml") if path.relative_to(CONF).parts[0] not in SETTING)
    found = []
    for path in files:
        own = yaml.safe_load(path.read_text()) or {}
        place = path.relative_to(CONF).with_suffix("")
        names = leaves({key: value for key, value in own.items() if key != "defaults"})
        names = [name for name in names if name.split(".")[-1] not in ("_target_", "name")]
        found += [f"{place}.{name}" for name in names] or [str(place)]
    for path in sorted((CONF / "envs").glob("*.yaml")):  # choices that are entries of a table
        for choice, node in yaml.safe_load(path.read_text()).items():
            names = leaves({key: value for key, value in node.items() if key != "defaults"})
            names = [name for name in names if name.split(".")[-1] not in ("_target_", "name")]
            found += [f"env/{choice}.{name}" for name in names]
    for choice, node in CHOICES.items():  # of the group that has no files
        found += [f"trigger/{choice}.{name}" for name in node if name not in ("_target_", "name")] or [
            f"trigger/{choice}"
        ]
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
    found = set(options_of_groups() if name == "groups" else options_of(name))
    assert found == listed, f"new: {found - listed}; gone: {listed - found}; python -m tests.options.test_options"


if __name__ == "__main__":
    for name, lines in lists().items():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
