"""Whether a larger or a smaller headline is better, which a search by `hydra/sweeper=optuna` must know."""

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from harness.config.build import find_target
from harness.config.errors import ConfigError

DIRECTIONS = {"accuracy": "maximize", "return": "maximize", "loss": "minimize"}  # by the last part of the name
AGENTS = ("dqn", "sac")  # programs whose headline is always a return


def better_direction(headline: str) -> str:
    """Return `maximize` or `minimize` for the name of a number such as `test/accuracy`.

    Raises:
        ConfigError: the last part of the name is none of `DIRECTIONS`.
    """
    name = headline.rpartition("/")[2]
    if name not in DIRECTIONS:
        raise ConfigError(
            f"nothing says whether more of {headline} is better: its name must end in {', '.join(DIRECTIONS)}"
        )
    return DIRECTIONS[name]


def direction_of(config: DictConfig) -> str | None:
    """Return `maximize` or `minimize` for a configuration with Hydra's part; None if its sweeper is not Optuna."""
    if not str(config.hydra.sweeper.get("_target_")).endswith(".OptunaSweeper"):
        return None
    if config.program in AGENTS:
        return better_direction("return")
    return better_direction(find_target("benchmark", config.benchmark).headline)  # type: ignore[attr-defined]


def check_direction(headline: str) -> None:
    """Refuse a search whose sweeper would take the worst runs for the best.

    Args:
        headline: name of the number that this job returns to the sweeper.

    Raises:
        ConfigError: the sweeper of this job has another direction than the headline.
    """
    sweeper = HydraConfig.get().sweeper if HydraConfig.initialized() else {}
    if "direction" not in sweeper:
        return
    direction = str(sweeper["direction"]).rpartition(".")[2]
    right_direction = better_direction(headline)
    if direction != right_direction:
        raise ConfigError(
            f"hydra.sweeper.direction={direction}, but the runs end with {headline}: set it to {right_direction}"
        )
