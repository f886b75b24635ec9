"""Hydra composes the same options for a thousand tests, in many processes: what is composed is kept for the others.

A configuration of `conf/` depends on the options alone. Folders, which are each test's own, are not in what is kept:
they are put in as it is read.
"""

import functools
import io
import os
import pickle
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.hydra import Hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, base

from harness.config.groups import CONF

OWN = re.compile(r"=(/[\w./-]+)$")  # an option whose value is a path from the root


class Writer(pickle.Pickler):
    """Marks strings that hold a folder."""

    def persistent_id(self, node: object) -> str | None:
        return node if isinstance(node, str) and "/FOLDER-" in node else None


class Reader(pickle.Unpickler):
    """Puts the folders in.

    Args:
        data: what a `Writer` wrote.
        folders: the folders, in the order of the options.
    """

    def __init__(self, data: bytes, folders: list[str]) -> None:
        super().__init__(io.BytesIO(data))
        self.folders = folders

    def persistent_load(self, text: str) -> str:
        return re.sub(r"/FOLDER-(\d+)", lambda found: self.folders[int(found[1])], text)


def compose_once() -> None:
    """From here on this process composes only what no other one of the session has (folder `COMPOSED`)."""
    kept = Path(os.environ["COMPOSED"])
    load, compose, parse = OmegaConf.load, ConfigLoaderImpl.load_configuration, OverridesParser.parse_rule
    known = dict[Any, bytes]()

    def load_once(file: Any) -> Any:
        about = os.stat(file.name if hasattr(file, "read") else file)
        key = (about.st_ino, about.st_mtime_ns, about.st_size)
        if key not in known:
            known[key] = pickle.dumps(load(file))
        return pickle.loads(known[key])

    def parse_once(parser: OverridesParser, text: str, rule: str) -> Any:
        if (text, rule) not in known:
            known[text, rule] = pickle.dumps(parse(parser, text, rule))
        return pickle.loads(known[text, rule])

    def composed(loader: Any, config_name: str | None, overrides: list[str], *how: Any, **named: Any) -> DictConfig:
        (place,) = (part.path for part in loader.config_search_path.get_path() if part.provider == "main")
        if place.removeprefix("file://") != str(CONF) or any("searchpath" in option for option in overrides):
            return compose(loader, config_name, overrides, *how, **named)
        folders: list[str] = []

        def stand_in(found: re.Match[str]) -> str:
            folders.append(found[1])
            return f"=/FOLDER-{len(folders) - 1}"

        general = [OWN.sub(stand_in, option) for option in overrides]
        asked = repr((version.getbase(), config_name, general, how, sorted(named.items())))
        file = kept / sha256(asked.encode()).hexdigest()
        if not file.exists():
            content = io.BytesIO()
            fresh = compose(loader, config_name, general, *how, **named)
            Writer(content).dump(fresh)
            if b"__main__" in content.getvalue():  # a type of the program that runs here, which no other one knows
                return compose(loader, config_name, overrides, *how, **named)
            temporary = file.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(content.getvalue())
            temporary.rename(file)
        config: DictConfig = Reader(file.read_bytes(), folders).load()
        config.hydra.runtime.cwd = os.getcwd()
        return config

    OmegaConf.load, OverridesParser.parse_rule = staticmethod(load_once), parse_once
    base.parse = functools.cache(base.parse)  # trees of interpolations, which are only read
    ConfigLoaderImpl.load_configuration = composed
    # Without -m Hydra composes all options once more, to see whether they ask for a sweep: here none does.
    Hydra.get_mode = lambda *_, **__: None
    # Hydra copies all types of options for each, lest further search paths change them: nobody has such paths here.
    CachingConfigRepository.__init__ = lambda self, delegate: vars(self).update(delegate=delegate, cache={})
