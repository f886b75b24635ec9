"""The classes that the rules name exist upstream, by their source text: nothing is imported."""

import importlib.util
import re
from pathlib import Path

import pytest

from fire_core.weights.known import TIMM, TRANSFORMERS

PLACES = {"timm": ("models", "layers"), "torchvision": ("models",), "x_transformers": ("",)}


def sources(package: str) -> dict[str, str]:
    """The text of each file of a package by the file's name, files of one name together."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"needs {package}")
    texts: dict[str, str] = {}
    for place in PLACES.get(package, ("models",)):
        for file in sorted((Path(found.origin).parent / place).rglob("*.py")):
            texts[file.stem] = texts.get(file.stem, "") + file.read_text(encoding="utf-8")
    return texts


@pytest.mark.parametrize("package", PLACES)
def test_classes_of_other_packages_exist(package):
    texts = sources(package)
    named = [key.split(".")[1:] for key in TIMM if key.startswith(f"{package}.")]
    missing = [(file, n) for file, n in named if not re.search(rf"^class {n}\(", texts.get(file, ""), re.MULTILINE)]
    assert not missing


def test_classes_of_transformers_exist():
    text = "\n".join(t for name, t in sources("transformers").items() if name.startswith("modeling_"))
    known = set(re.findall(r"^class (\w+)\(", text, re.MULTILINE))
    assert {key.rsplit(".", 1)[-1] for key in TRANSFORMERS} - known == set()
