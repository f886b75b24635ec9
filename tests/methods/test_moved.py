"""Paths of version 0.2 that the configurations of run folders name in `_target_`."""

import importlib
import pkgutil

import pytest
from hydra.utils import get_object

from fire_core import methods
from fire_core.methods import contrib
from harness.run.reader import own_targets


def test_an_old_target_is_the_new_one_with_a_warning() -> None:
    names = {module.name for module in pkgutil.iter_modules(contrib.__path__)}
    assert names >= methods.MOVED
    for name in methods.MOVED:
        (target,) = (t for t in own_targets()["method"] if t.startswith(f"fire_core.methods.contrib.{name}."))
        old = target.replace("contrib.", "")
        assert old in own_targets()["method"], "a folder of version 0.2 is refused"
        with pytest.warns(
            DeprecationWarning, match=rf"^fire_core.methods.{name} is now fire_core.methods.contrib.{name}"
        ):
            found = get_object(old)
        module, _, kind = target.rpartition(".")
        assert found is getattr(importlib.import_module(module), kind)


def test_no_other_name_is_guessed() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'inputs'"):
        methods.inputs  # noqa: B018
