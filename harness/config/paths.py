"""Options that name a file or a folder: an empty one is refused, and `~` is the home folder."""

import os
from pathlib import Path
from typing import Annotated

from omegaconf import OmegaConf

from fire_core.ranges import shown
from harness.config.errors import ConfigError


def place(option: str, value: str) -> str | None:
    """A check: the path of a file or folder, which may begin with the home folder, `~`.

    An empty path would be the folder where the program was started, or with something behind it the root of the file
    system; it comes from a shell variable that is not set.
    """
    if not value.strip():
        return f"{option} must be a path, got {shown(value.strip())}: is a shell variable not set?"
    if value.startswith("~") and os.path.expanduser(value) == value:
        return f"{option}={value}: there is no home folder {value.split('/')[0]}"
    return None


Place = Annotated[str, place]


def expanded(path: str) -> Path:
    """A path whose first part may be `~` or `~user`, which a shell leaves as it is within quotes."""
    return Path(path).expanduser()


def home(path: str) -> str:
    """The resolver `${home:${paths.runs}}`: the same, for values that Hydra itself reads.

    Raises:
        ConfigError: the path is empty, or its home folder is not known.
    """
    if wrong := place("paths.runs", path):
        raise ConfigError(wrong)
    return str(expanded(path))


OmegaConf.register_new_resolver("home", home, replace=True)
