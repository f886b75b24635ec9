"""Open the data of several sweeps before the first of them starts, and say once what is missing.

    python -m scripts.data_is_there vision.train "experiment=fig2a_cifar10 seed=1,2" "experiment=fig2b_cifar100"

scripts/panels.sh calls it for the sweeps of a figure.
"""

import importlib
import sys

from harness.config.arguments import configs_of_data_options
from harness.config.errors import ConfigError

# The root in conf/, and what opens the data; Atari's games come with their package.
PROGRAMS = {
    "vision.train": ("vision", "vision.task", "open_data"),
    "rl.sac": ("sac", "rl.sac.task", "open_environment"),
}


def main(program: str, sweeps: list[str]) -> None:
    """Open each data set of several sweeps once.

    Args:
        program: such as `vision.train`.
        sweeps: the options of each sweep, as on the command line.

    Raises:
        ConfigError: data are missing or damaged.
    """
    if program not in PROGRAMS:
        return
    root, module, function = PROGRAMS[program]
    open_data = getattr(importlib.import_module(module), function)
    opened = set[str]()
    for config in configs_of_data_options(root, [["-m", *sweep.split()] for sweep in sweeps]):
        data = str(config.get("dataset", config.get("env")))
        if data not in opened:
            opened.add(data)
            open_data(config)


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
