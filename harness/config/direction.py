"""Whether more or less of a program's headline is better: what a search by `hydra/sweeper=optuna` must know."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config.build import find_target
from harness.config.errors import ConfigError

BETTER = {"accuracy": "maximize", "return": "maximize", "loss": "minimize"}  # by the last part of a headline's name
AGENTS = ("dqn", "sac")  # whose headline is a return, in a stream of tasks too


def better(headline: str) -> str:
    """`maximize` or `minimize`, for a number such as `test/accuracy`.

    Raises:
        ConfigError: nothing is known of it.
    """
    name = headline.rpartition("/")[2]
    if name not in BETTER:
        raise ConfigError(
            f"nothing says whether more of {headline} is better: its name must end in {', '.join(BETTER)}"
        )
    return BETTER[name]


def direction_of(config: DictConfig) -> str | None:
    """The direction that Optuna needs for a composed configuration; None: another sweeper is chosen."""
    if not str(config.hydra.sweeper.get("_target_")).endswith(".OptunaSweeper"):
        return None
    if config.program in AGENTS:
        return better("return")
    return better(find_target("benchmark", config.benchmark).headline)  # type: ignore[attr-defined]


def check_direction(headline: str) -> None:
    """Refuse a search that would take the worst runs for the best.

    Raises:
        ConfigError: the sweeper of this job has another direction than the headline.
    """
    sweeper = HydraConfig.get().sweeper if HydraConfig.initialized() else {}
    if "direction" not in sweeper:
        return
    told = str(sweeper["direction"]).rpartition(".")[2]
    if told != (right := better(headline)):
        raise ConfigError(f"hydra.sweeper.direction={told}, but the runs end with {headline}: set it to {right}")
