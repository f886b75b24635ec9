"""Colours that readers without full colour vision can tell apart."""

import itertools

import numpy as np
import pytest

from analysis.style import COLOURS, MARKS, name
from fire_core.tools import convergence
from harness.config.groups import CONF

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
VISION = {
    "full": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of a hex colour as somebody sees it."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.array(vision) @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(
    "colours", [COLOURS, dict(enumerate((*convergence.COLOURS, "#000000")))], ids=["methods", "starts"]
)
def test_lines_differ_to_every_eye(vision, colours):
    seen = {method: lab(colour, VISION[vision]) for method, colour in colours.items()}
    distance = {(a, b): np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2)}
    closest = min(distance, key=distance.get)
    assert distance[closest] > 10, closest  # 2.3 is just noticeable side by side; thin lines need more


def test_every_method_has_its_own_colour_and_name():
    methods = {path.stem for path in (CONF / "method").glob("*.yaml")} - {"chain"}
    assert methods == COLOURS.keys()
    assert all(name(method) != method for method in methods)
    assert len(set(MARKS.values())) == len(MARKS)
