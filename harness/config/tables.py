"""Tables of values in conf/, such as conf/tuned/dqn.yaml: each entry of a table becomes an option of a Hydra group.

A table holds the values of many choices side by side. Its first line is Hydra's `# @package <where>`: where in the
configuration its values go. The entry `fire` of conf/tuned/dqn.yaml is the option `tuned/dqn=fire`, to be named in a
defaults list; the entry `fire` of conf/tuned/vision/continual_cifar10.yaml is `tuned/vision=continual_cifar10_fire`.
Tables in conf/presets hold options of `experiment` that are alike: `fig2a_cifar10` of conf/presets/fig2.yaml stands
beside the files of conf/experiment. Likewise conf/envs/dqn.yaml holds options of `env`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from harness.config.cli import CONF

PACKAGE = "# @package "
ENTRIES: dict[str, dict[str, str]] = {}  # group -> its options that are entries of tables, each with its text


def choose(word: str, values: Mapping[str, Any], otherwise: Any) -> Any:
    """`${choose:${.variant},{fire_paper:train},eval}`: a table's value that another option decides."""
    return values.get(word, otherwise)


OmegaConf.register_new_resolver("choose", choose, replace=True)


def itself(store: ConfigStore, memo: object) -> ConfigStore:
    """Hydra copies the store with all tables at each look, 175 times for `--help`, and what it loads once more."""
    return store


ConfigStore.__deepcopy__ = itself  # type: ignore[attr-defined]


def list_groups(*groups: str) -> str:
    """A line for each group with its options, for `--help`; Hydra's own list has all programs' groups and tables."""
    loader = GlobalHydra.instance().config_loader()
    return "\n".join(f"{group}: {', '.join(loader.get_group_options(group))}" for group in groups)


def register(name: str, schema: type, *groups: str, presets: tuple[str, ...] = (), envs: tuple[str, ...] = ()) -> None:
    """Store a program's typed options as `<name>_schema`, the tables of its groups ("tuned/dqn"), presets and envs."""
    OmegaConf.register_new_resolver("groups", list_groups, replace=True)
    ConfigStore.instance().store(name=f"{name}_schema", node=schema)
    for group in groups:
        if (folder := CONF / group).is_dir():
            for path in sorted(folder.glob("*.yaml")):
                _store(group, path, f"{path.stem}_")
        else:
            _store(group, folder.with_suffix(".yaml"), "")
    for preset in presets:
        _store("experiment", CONF / "presets" / f"{preset}.yaml", "")
    for env in envs:
        _store("env", CONF / "envs" / f"{env}.yaml", "")


def _store(group: str, path: Path, prefix: str) -> None:
    header = path.read_text().split("\n", 1)[0]
    if not header.startswith(PACKAGE):
        raise ValueError(f"{path}: a table's first line must be '{PACKAGE}<where its values go>'")
    table: Any = OmegaConf.load(path)
    for entry, values in table.items():
        package = header.removeprefix(PACKAGE).strip()
        ConfigStore.instance().store(group=group, name=f"{prefix}{entry}", node=values, package=package)
        ENTRIES.setdefault(group, {})[f"{prefix}{entry}"] = OmegaConf.to_yaml(values)
