"""An option without effect is a defect: every number of every method's yaml is moved, and something must change.

So is a state that a checkpoint does not hold: every setting is trained a second time, cut and resumed.
"""

import contextlib
from typing import Any

import pytest
from omegaconf import OmegaConf
from torch import nn

from fire_core.methods import Net
from fire_core.units.graph import Units, between
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.groups import CONF
from tests.methods.small import PHASE, Training, differ, trained

FOLDER = CONF / "method"
METHODS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "chain")
# What makes a method act within the few steps below. Each option must matter under one of the settings at least.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adamo": [{"eps": 1e-3}],
    "cbp": [{"rate": 0.1, "maturity": 3}, {"rate": 0.1, "maturity": 3, "variant": "fire_paper"}],
    "c_chain": [{"warmup": 10, "window": 6}],
    "cpr": [{"rate": 0.5, "every": 4}],
    "fire": [{"min_norm": 2.5}, {"scale": "variance_factor"}, {"tol": 1.0}],
    "fire_exact": [{"min_norm": 2.5}, {"scale": "variance_factor"}],
    "fire_half": [{"min_norm": 2.5}, {"scale": "variance_factor"}],
    "hare_tortoise": [{"momentum": 0.9, "every": 2}],
    "l2_er": [{"every": 4, "lr": 0.1}],
    "muon": [{"eps": 1e-3}],
    "parseval": [{"scale": 0.5}],
    "random_isometry": [{"scale": "variance_factor"}],
    "redo": [{"threshold": 0.7, "samples": 4, "every": 2}, {"threshold": 0.7, "every": 2, "variant": "fire_paper"}],
    "regrama": [{"threshold": 0.7, "every": 4}],
    "snp": [{"perturb": 0.1}],
    "swr": [{"every": 4, "factor": 0.3, "decay": 0.5}, {"every": 4, "factor": 0.1, "pruning": "proportional"}],
    "trac": [{"scale": 0.2}],
    "snr": [
        {"percentile": 0.8, "every": 1, "max_age": 64},
        {"percentile": 0.5, "every": 2, "max_age": 64, "variant": "fire_paper"},
    ],
}
# What more than an annotation refuses; that refuses all options alike, see tests/test_ranges.py.
REFUSED = {
    "fire": ["norm_init=x", "layout=x", "scale=x", "blend=2", "solver=x", "variance_factor=2.0"],
    "random_isometry": ["layout=x", "scale=x", "variance_factor=2.0"],
    "snp": ["perturb=0.1 coef=0", "layout=x"],
    "swr": ["factor=1.5 pruning=proportional"],
}


def options(name: str) -> dict[str, Any]:
    root = OmegaConf.create({"lr": 1e-3, "variant": "original", "method": OmegaConf.load(FOLDER / f"{name}.yaml")})
    return OmegaConf.to_container(root, resolve=True)["method"]


def moves(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """Every number at half its value (a 1 at 2), in lists one after the other."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool):
            found.append((key, value // 2 if value > 1 else value + 1))
        elif isinstance(value, float):
            found.append((key, value / 2))
        elif isinstance(value, list):
            for i, each in enumerate(value):
                found.append((key, [*value[:i], each / 2, *value[i + 1 :]]))
    return found


def accepted(setting: dict[str, Any]) -> bool:
    """Whether the method takes the options; it refuses a number that only another option gives an effect."""
    with contextlib.suppress(ConfigError):
        build("method", setting)
        return True
    return False


@pytest.mark.filterwarnings("ignore:nothing was projected")  # with the largest min_norm
@pytest.mark.parametrize("name", METHODS)
def test_every_number_has_an_effect_and_a_resume_has_none(name: str) -> None:
    settings = [options(name) | setting for setting in SETTINGS.get(name, [{}])]
    usual = [trained(setting) for setting in settings]
    for setting, expected in zip(settings, usual, strict=True):
        again = trained(setting, cut=PHASE + 6)
        assert not differ(expected, again), f"{setting}: a run that is cut and resumed ends otherwise"
    without = set()
    for number in sorted({key for setting in settings for key, _ in moves(setting)}):
        changed = (
            differ(expected, trained(setting | {key: moved}))
            for setting, expected in zip(settings, usual, strict=True)
            for key, moved in moves(setting)
            if key == number and accepted(setting | {key: moved})
        )
        if not any(changed):
            without.add(number)
    assert not without, f"{name}: moved without an effect: {', '.join(sorted(without))}"


class Watched(Net):
    """Networks that count how often their layout is read."""

    reads = 0

    @property
    def layout(self) -> str:  # type: ignore[override]
        self.reads += 1
        return "all"


@pytest.mark.filterwarnings("ignore::fire_core.FireWarning")  # with a large `min_norm` nothing may be projected
@pytest.mark.parametrize("layout", [None, "all"])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_says_whether_it_reads_the_layout_of_the_network(name: str, layout: str | None) -> None:
    chosen = options(name) | SETTINGS.get(name, [{}])[0]
    if layout is not None and "layout" not in chosen:
        pytest.skip("it has no layout of its own")
    training = Training(chosen | ({} if layout is None else {"layout": layout}))
    training.net.__class__ = Watched
    training.run()
    assert isinstance(training.net, Watched)
    assert training.method.reads_layout == (training.net.reads > 0)


def test_a_missing_effect_is_seen() -> None:
    """At rate=0 nothing is replaced, and how old units must be for that does not matter."""
    for rate, matters in ((0.0, False), (0.1, True)):
        one, other = (trained(options("cbp") | {"rate": rate, "maturity": m}) for m in (3, 6))
        assert differ(one, other) == matters


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, values in REFUSED.items() for wrong in values])
def test_refused(name: str, wrong: str) -> None:
    given = OmegaConf.to_container(OmegaConf.from_dotlist(wrong.split()))
    with pytest.raises(ConfigError, match=rf"^method\.{next(iter(given))}\b"):
        build("method", options(name) | given)


class Maps(nn.Sequential):
    """Hidden units that only a convolution reads."""

    def unit_graph(self) -> list[Units]:
        return [between("a", self[0], self[1])]


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("adamo", nn.LayerNorm(4), "no linear layer"),
        ("nap", nn.Linear(2, 2), r"needs norms .* model\.norm="),
        ("l2_er", Maps(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)), "no linear layer reads hidden units"),
        ("redo", nn.Linear(2, 2), "no hidden units of Linear"),
        ("random_isometry", nn.Embedding(4, 3), "takes no matrix"),
    ],
)
def test_a_network_that_it_cannot_act_on_is_refused_before_a_run(name: str, model: nn.Module, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build("method", options(name)).check(Net({"model": model}, {}))
