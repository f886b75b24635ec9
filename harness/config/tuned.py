"""`tuned=`: tables in conf/tuned_values of the values that a method takes in a setting.

<program>.yaml holds settings, each with values by method. `auto`, the default, is the setting named after the benchmark
and the data set (warm_start_cifar10), or `auto` itself where the table has it; `none` takes no values; any other word
names a setting. `searched` is that of benchmark and data set in searched.yaml, which `vision.tune` writes, over the
values of `auto`, with which its trials ran. What the command line or the experiment says of the method wins.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from harness.config.errors import ConfigError, near
from harness.config.given import names_of

TABLES = Path(__file__).parents[2] / "conf" / "tuned_values"


def read_table(name: str) -> dict[str, Any]:
    """The settings of conf/tuned_values/<name>.yaml, each with values by method; none if there is no such file."""
    path = TABLES / f"{name}.yaml"
    table: Any = OmegaConf.to_container(OmegaConf.load(path)) if path.exists() else {}
    return dict(table)


def take_tuned(config: DictConfig, hydra: Any) -> str | None:
    """Put a method's tuned values into a composed configuration.

    Args:
        config: of a program; it is changed.
        hydra: Hydra's part of it: the command line's options, and which files were chosen.

    Returns:
        Where the values come from, as a line of the log; None: the program has no table.

    Raises:
        ConfigError: `tuned=` names no setting, or a search that was not made.
    """
    table = read_table(config.program) if "tuned" in config else {}
    if not table:
        return None
    tuned, accepted = config.tuned, dict.fromkeys(("auto", "none", "searched", *table))
    if tuned not in accepted:
        raise ConfigError(f"tuned={tuned} is unknown{near(tuned, accepted)}")
    chosen = hydra.runtime.choices
    method = config.method.of if chosen.method == "chain" else chosen.method
    place = f"{chosen.benchmark}_{chosen.get('dataset')}"
    if tuned == "searched":
        values = read_table("searched").get(place, {}).get(method)
        if values is None:
            raise ConfigError(f"tuned=searched: conf/tuned_values/searched.yaml has no {method} for {place}")
        values = OmegaConf.to_container(OmegaConf.merge({"method": table.get(place, {}).get(method, {})}, values))
    else:
        setting = place if tuned == "auto" and "auto" not in table else tuned
        values = {"method": table.get(setting, {}).get(method, {})}
    given = set(names_of(hydra.overrides.task)) - set(chosen) | set(of_experiment(str(chosen.get("experiment")), hydra))
    for option, value in _leaves(values):
        if not any(f"{option}.".startswith(f"{name}.") for name in given):
            OmegaConf.update(config, option, value, force_add=True)
    if tuned == "none":
        return "tuned values: none, as tuned=none says"
    if tuned == "searched":
        return f"tuned values: conf/tuned_values/searched.yaml, {place}, {method}"
    if values["method"]:
        return f"tuned values: conf/tuned_values/{config.program}.yaml, {setting}, {method}"
    return f"tuned values: none for {method} in {setting}"


def of_experiment(name: str, hydra: Any) -> Iterable[str]:
    """The options of the method that an experiment's file sets, here or in a folder of `--config-dir`."""
    folders = [TABLES.parent, *(Path(one.path) for one in hydra.runtime.config_sources if one.schema == "file")]
    paths = (path for folder in folders if (path := folder / "experiment" / f"{name}.yaml").exists())
    values: Any = next((OmegaConf.to_container(OmegaConf.load(path)) for path in paths), {})
    return [option for option, _ in _leaves({"method": values.get("method", {})})]


def _leaves(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings by their dotted names."""
    if not isinstance(values, dict):
        yield name, values
        return
    for key, value in values.items():
        yield from _leaves(value, f"{name}.{key}" if name else str(key))
