"""The classes that the rules name exist upstream, by their source text: nothing is imported."""

import importlib.util
import re
from pathlib import Path

import pytest

from fire_core.weights.known import TABLE

PLACES = {
    "timm": ("models", "layers"),
    "torchvision": ("models",),
    "x_transformers": ("",),
    "transformers": ("models",),
}


@pytest.mark.parametrize("package", PLACES)
def test_classes_of_other_packages_exist(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs {package}")
    classes: set[tuple[str, str]] = set()  # (file, class)
    for place in PLACES[package]:
        for file in (Path(spec.origin).parent / place).rglob("*.py"):
            classes |= {
                (file.stem, name) for name in re.findall(r"^class (\w+)\(", file.read_text("utf-8"), re.MULTILINE)
            }
    named = {tuple(key.split(".")[1:]) for key in TABLE if key.startswith(f"{package}.")}
    assert named <= classes
    if package == "transformers":
        assert {key for key in TABLE if "." not in key and "*" not in key} <= {name for _, name in classes}
