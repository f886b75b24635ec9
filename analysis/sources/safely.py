"""Reading files of a run folder that may hold anything: pipes, devices, endless lines, bytes that are no text."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import yaml

from analysis.runs import BadRun

SMALL, LARGE = 4 * 2**20, 2**30  # bytes of a configuration, and of rows
LONGEST = 2000  # characters of one text in a configuration
YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is 8 times faster


def read_bytes(path: Path, limit: int = SMALL) -> bytes:
    """A regular file's content.

    Raises:
        BadRun: it is a pipe, a device or a folder, larger than `limit` bytes, or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a pipe does not wait
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise BadRun(f"corrupt: {path.name} is no regular file")
            if found.st_size > limit:
                raise BadRun(f"corrupt: {path.name} has {found.st_size} bytes, more than {limit}")
            return file.read(limit)
    except OSError as error:
        raise BadRun(f"unreadable: {path.name}: {error.strerror or error}") from None


def parse_yaml(raw: bytes, name: str) -> dict[str, Any]:
    """A mapping of plain values.

    Raises:
        BadRun: it is no YAML, no mapping, or has aliases, which let a few lines stand for millions of values.
    """
    try:
        text = raw.decode()
        if "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, YamlLoader)):
            raise BadRun(f"corrupt: {name} has YAML aliases")
        content = clean(yaml.load(text, YamlLoader))  # a safe loader in both cases
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, BadRun):
            raise
        raise BadRun(f"corrupt: {name} is not YAML") from None
    if not isinstance(content, dict) or not content:
        raise BadRun(f"corrupt: {name} is empty")
    return content


def parse_json(raw: bytes, name: str) -> dict[str, Any]:
    """An object of plain values.

    Raises:
        BadRun: it is no JSON, or no object.
    """
    try:
        content = clean(json.loads(raw))
    except (ValueError, RecursionError):
        raise BadRun(f"corrupt: {name} is not JSON") from None
    if not isinstance(content, dict):
        raise BadRun(f"corrupt: {name} is not a JSON object")
    return content


def clean(value: Any) -> Any:
    """Nested values with texts that can be printed and drawn: control characters and halves of pairs are replaced."""
    if isinstance(value, str):
        return printable(value[:LONGEST])
    if isinstance(value, dict):
        return {printable(str(key)[:LONGEST]): clean(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set):
        return [clean(part) for part in value]
    return value


def printable(text: str) -> str:
    """The text with a replacement for each character that no terminal, font or file can take."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
