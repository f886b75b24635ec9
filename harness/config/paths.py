"""Options that name a file or a folder: an empty path is refused, and `~` is the home folder."""

import os
from pathlib import Path
from typing import Annotated

from omegaconf import OmegaConf

from fire_core.ranges import shown
from harness.config.errors import ConfigError


def place(option: str, value: str) -> str | None:
    """Check the path of a file or folder, which may begin with the home folder, `~` or `~user`.

    An empty path is refused. It comes from a shell variable that is not set, and would mean the folder where the
    program was started, or, with a name behind it, the root of the file system.

    Returns:
        The message that refuses the value; None if it is accepted.
    """
    if not value.strip():
        return f"{option} must be a path, got {shown(value.strip())}: is a shell variable not set?"
    if value.startswith("~") and os.path.expanduser(value) == value:
        return f"{option}={value}: there is no home folder {value.split('/')[0]}"
    return None


Place = Annotated[str, place]


def expanded(path: str) -> Path:
    """Return a path with `~` or `~user` at its start replaced by the home folder, as a shell does outside of quotes.

    Raises:
        RuntimeError: there is no such home folder (`place` refuses such a path with a message).
    """
    return Path(path).expanduser()


def home(path: str) -> str:
    """Return `expanded(path)` as text: the resolver `${home:${paths.runs}}` for values that Hydra itself reads.

    Raises:
        ConfigError: the path is empty, or there is no such home folder.
    """
    if message := place("paths.runs", path):
        raise ConfigError(message)
    return str(expanded(path))


OmegaConf.register_new_resolver("home", home, replace=True)
