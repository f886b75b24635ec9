"""`tuned=`: the setting whose tuned values a method takes, whatever the data are called.

A setting is a table of conf/tuned/vision, with an entry for each method: `warm_start_cifar10`. `auto`, the default, is
the one named after the benchmark and the data set, where there is one; `none` takes no values.
"""

import difflib

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from harness.config.cli import CONF
from harness.config.errors import ConfigError
from harness.config.tables import ENTRIES

TABLES = "tuned/vision"
SETTINGS = ("auto", "none", *sorted(path.stem for path in (CONF / TABLES).glob("*.yaml")))
for choice in SETTINGS:
    ConfigStore.instance().store(group="tuned", name=choice, node={"tuned": choice}, package="_global_")


def setting_of(tuned: str, benchmark: str, dataset: str) -> str:
    """The setting that `tuned=` means with a benchmark and a data set, each by its name.

    Raises:
        ConfigError: there is no such setting.
    """
    if tuned not in SETTINGS:
        near = difflib.get_close_matches(tuned, SETTINGS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError(f"tuned={tuned} is unknown{hint}; accepted: {', '.join(SETTINGS)}")
    return f"{benchmark}_{dataset}" if tuned == "auto" else tuned


OmegaConf.register_new_resolver("setting_of", setting_of, replace=True)  # for the defaults list of conf/vision.yaml


def tuned_values(tuned: str, benchmark: str, dataset: str, method: str) -> str:
    """Where a method's tuned values come from, as one line of the log."""
    searched = HydraConfig.get().runtime.choices.get("tuned/searched") if HydraConfig.initialized() else None
    if searched is not None:
        return f"tuned values: tuned/searched, {searched}"
    setting = setting_of(tuned, benchmark, dataset)
    if f"{setting}_{method}" in ENTRIES[TABLES]:
        return f"tuned values: {TABLES}/{setting}, {method}"
    if tuned == "none":
        return "tuned values: none, as tuned=none says"
    if setting in SETTINGS:
        return f"tuned values: none for {method} in {TABLES}/{setting}"
    return f"tuned values: none for {benchmark} on {dataset}"
