"""Options without an effect are refused where the user gave them; tuned values and presets may hold some."""

import re
from collections.abc import Iterator

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

import language.task  # noqa: F401  both register schemas and tables
import vision.task  # noqa: F401
from fire_core.methods.fire import Fire
from harness.config.build import build
from harness.config.errors import ConfigError
from harness.config.given import given_options, refuse_idle
from harness.config.groups import compose_with_hydra
from harness.config.tuned import take_tuned

MUON = ("method=chain", "method.of=fire+dash+muon")


@pytest.fixture(autouse=True)
def _outside_of_a_program() -> Iterator[None]:
    yield
    HydraConfig.instance().cfg = None


def start(program: str, *overrides: str) -> DictConfig:
    """As the program itself would: composed, and known to Hydra."""
    config = compose_with_hydra(program, overrides)
    HydraConfig.instance().set_config(config)
    take_tuned(config, config.hydra)
    return config


def check(program: str, *overrides: str) -> None:
    refuse_idle(build("method", start(program, *overrides).method))


@pytest.mark.parametrize(
    ("program", "overrides", "message"),
    [
        ("language", ("method=fire", "method.solver=exact", "method.iterations=3"),
         "method.iterations has no effect with method.solver=exact"),
        ("vision", ("method=fire", "method.solver=exact", "method.norm_init=power"),
         "method.norm_init has no effect with method.solver=exact"),
        ("vision", ("method=fire", "method.solver=muon", "method.norm_init=power"),
         "method.norm_init has no effect with method.solver=muon"),
        ("vision", (*MUON, "method.parts.fire.solver=exact", "method.parts.fire.iterations=5"),
         "method.parts.fire.iterations has no effect with method.parts.fire.solver=exact"),
        ("vision", (*MUON, "method.parts.snp.coef=0.5"),
         "method.parts.snp.coef has no effect: method.of=fire+dash+muon does not name snp"),
    ],
)  # fmt: skip
def test_refused(program: str, overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        check(program, *overrides)


def test_accepted() -> None:
    check("language", "method=fire", "method.solver=exact")  # tuned: iterations=5
    check("vision", "method=fire", "method.solver=exact", "method.iterations=10")  # the default, as in a sweep
    check("vision", "method=fire", "method.solver=muon", "method.iterations=3")
    assert Fire(solver="exact", iterations=3).idle_options() == {"iterations": "solver=exact"}


def test_given_are_those_of_the_command_line() -> None:
    assert given_options() == ()
    start("vision", "method=fire", "++method.iterations=3")
    assert given_options() == ("method", "method.iterations")
