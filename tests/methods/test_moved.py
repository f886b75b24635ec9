"""Paths of version 0.2 that the configurations of run folders name in `_target_`."""

import importlib
from pathlib import Path

import pytest
import yaml
from hydra.utils import get_object

from fire_core import methods
from harness.config.cli import CONF
from harness.run.reader import read_config


@pytest.mark.parametrize("name", sorted(methods.MOVED))
def test_an_old_target_is_the_new_one_with_a_warning(name: str, tmp_path: Path) -> None:
    target = yaml.safe_load((CONF / "method" / f"{name}.yaml").read_text())["_target_"]
    old = target.replace("contrib.", "")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"program": "vision", "method": {"_target_": old}}))
    expected = rf"^fire_core.methods.{name} is now fire_core.methods.contrib.{name}"
    with pytest.warns(DeprecationWarning, match=expected):  # a folder of version 0.2 is read
        found = get_object(read_config(tmp_path, ("vision",)).method["_target_"])
    module, _, kind = target.rpartition(".")
    assert found is getattr(importlib.import_module(module), kind)
