"""Options that name a file or a folder: an empty path is refused, and `~` is the home folder."""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from omegaconf import OmegaConf

from fire_core.ranges import shown
from harness.config.errors import ConfigError


def place(option: str, value: str) -> str | None:
    """Check the path of a file or folder, which may begin with the home folder, `~` or `~user`.

    An empty path is refused. It comes from a shell variable that is not set, and would mean the folder where the
    program was started, or, with a name behind it, the root of the file system. So is `$HOME/runs`: within single
    quotes a shell does not replace a variable, and a folder of that name would be made.

    Returns:
        The message that refuses the value; None if it is accepted.
    """
    if not value.strip():
        return f"{option} must be a path, got {shown(value.strip())}: is a shell variable not set?"
    if value.startswith("~") and os.path.expanduser(value) == value:
        return f"{option}={value}: there is no home folder {value.split('/')[0]}"
    variables = [part for part in value.split("/") if re.fullmatch(r"\$[A-Za-z_]\w*", part)]
    if variables and not expanded(value).exists():
        name = variables[0]
        return (
            f"{option}={value}: the shell has not replaced {name}, as within single quotes: write it without them, or "
            f"as ${{oc.env:{name[1:]}}}"
        )
    return None


Place = Annotated[str, place]
PATH_WORDS = ("path", "file", "folder", "dir", "root", "weights", "checkpoint")  # an option with one names a path
PATH_LISTS = ("more",)  # further options of data sets that name paths


def expanded(path: str) -> Path:
    """Return a path with `~` or `~user` at its start replaced by the home folder, as a shell does outside of quotes.

    Raises:
        RuntimeError: there is no such home folder (`place` refuses such a path with a message).
    """
    return Path(path).expanduser()


def is_path_option(option: str) -> bool:
    """Return whether an option names a file or folder, as `path` and `weights_file` do."""
    return any(word in option for word in PATH_WORDS)


def without_folders(config: Any, group: str = "") -> Any:
    """Return an identity in which a file or folder is named without the folders that it lies in.

    Its content is in the identity too, so where it lies, and how its path was written (`~/x`, `./x`, `/home/me/x/`),
    makes no other run.

    Args:
        config: the identity, or a part of it.
        group: the config group that the part belongs to. Of a data set all options that name paths count, since the
            digests of its files are elsewhere in the identity.
    """
    if isinstance(config, list):
        return [without_folders(value, group) for value in config]
    if not isinstance(config, dict):
        return config
    result: dict[str, Any] = {}
    for key, value in config.items():
        is_named = f"{key} (content)" in config or (group == "dataset" and (is_path_option(key) or key in PATH_LISTS))
        if is_named and isinstance(value, str):
            result[key] = _last_part(value)
        elif is_named and isinstance(value, list) and all(isinstance(path, str) for path in value):
            result[key] = [_last_part(path) for path in value]
        else:
            result[key] = without_folders(value, group or key)
    return result


def _last_part(path: str) -> str:
    return os.path.basename(os.path.normpath(path)) if path else path


def home(path: str) -> str:
    """Return `expanded(path)` as text: the resolver `${home:${paths.runs}}` for values that Hydra itself reads.

    Raises:
        ConfigError: the path is empty, or there is no such home folder.
    """
    if message := place("paths.runs", path):
        raise ConfigError(message)
    return str(expanded(path))


OmegaConf.register_new_resolver("home", home, replace=True)
