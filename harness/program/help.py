"""The text of `--help`: what a program does, the choices of its groups, and its options with their comments."""

import string
import textwrap
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from harness.config import comments
from harness.config.groups import CONF, choices, compose_with_hydra, groups_of, without_hydra


def help_text(config_name: str, overrides: list[str], config_dir: str | None = None) -> str:
    """Return the text of `--help`.

    Args:
        config_name: name of the program's root file in `conf/`, such as `vision`.
        overrides: the options of the command line.
        config_dir: the user's folder of groups, whose choices are listed beside those of `conf/`.

    Returns:
        What the program does, the choices of its groups, and all its options with the values that they have with these
        `overrides`, each with its comment.
    """
    folder = Path(config_dir) if config_dir else None
    config = compose_with_hydra(config_name, overrides, folder)
    groups = list[str]()
    for group in groups_of(config_name):
        users_choices = {path.stem for path in (folder / group).glob("*.yaml")} if folder else set()
        names = ", ".join(sorted(users_choices.union(choices(group, config_name))))
        groups.append(textwrap.fill(f"{group}: {names}", 120, subsequent_indent="  "))
    template = string.Template(config.hydra.help.template)
    comments_by_source = _comments(config_name, config, folder)
    options = comments.add_comments(OmegaConf.to_yaml(without_hydra(config)), comments_by_source)
    return template.safe_substitute(GROUPS="\n".join(groups), CONFIG=options)


def _comments(config_name: str, config: DictConfig, folder: Path | None) -> list[dict[str, str]]:
    """Return comments of options, from dotted name to comment, in the order in which Hydra composes the sources.

    The sources are the program's dataclass of options, its root file, and the chosen file of each group. Experiments
    are left out, because their comments explain the values of an experiment and not what an option means.
    """
    schema = OmegaConf.get_type(ConfigStore.instance().load(f"{config_name}_schema.yaml").node)
    assert schema is not None, "harness.config.groups.register stored a dataclass"
    sources = [comments.of_fields(schema), comments.of_file(CONF / f"{config_name}.yaml", "")]
    for group, choice in config.hydra.runtime.choices.items():
        for place in (CONF, folder):
            if choice and place and (path := place / group / f"{choice}.yaml").is_file() and group != "experiment":
                sources += [comments.of_file(file, group) for file in _with_defaults(path)]
    return sources


def _with_defaults(path: Path) -> list[Path]:
    """Return the files of the same group that the `defaults` of a choice's file name, and then this file itself."""
    options = OmegaConf.load(path)
    assert isinstance(options, DictConfig), "Hydra has composed it"
    named = [path.parent / f"{entry}.yaml" for entry in options.get("defaults", []) if isinstance(entry, str)]
    return [*(file for other in named if other.is_file() for file in _with_defaults(other)), path]
