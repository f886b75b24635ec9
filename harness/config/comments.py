"""What the comments beside options say: `--help` shows them beside the values.

An option of every program is a field of a dataclass, and one of a method, model or data set a key of a yaml file. Its
comment stands behind it, or on the lines right above it.
"""

import dataclasses
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterable
from pathlib import Path

WIDTH = 120


def of_fields(options: type) -> dict[str, str]:
    """The comments of a dataclass's fields, with those that it inherits and those of its fields' own dataclasses.

    Returns:
        From the dotted name of an option to its comment.
    """
    comments: dict[str, str] = {}
    for ancestor in reversed(options.__mro__[:-1]):
        lines: dict[int, str] = {}  # of the class's source, by the number of the line
        source = textwrap.dedent(inspect.getsource(ancestor))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                lines[token.start[0]] = token.string
        comments |= _beside_keys(source.splitlines(), lines)
        for name, kind in inspect.get_annotations(ancestor).items():
            if dataclasses.is_dataclass(kind) and isinstance(kind, type):
                comments |= {f"{name}.{inner}": comment for inner, comment in of_fields(kind).items()}
    return comments


def of_file(path: Path, group: str) -> dict[str, str]:
    """The comments of a yaml file's keys.

    Args:
        path: of the file, a choice of a group or a program's own.
        group: below which its keys stand, as `method`; a file of the package `_global_` has its keys at the top.

    Returns:
        From the dotted name of an option to its comment.
    """
    text = path.read_text(encoding="utf-8").splitlines()
    lines = {}
    for number, line in enumerate(text, start=1):
        if line.startswith("# @package"):  # Hydra's, and nothing for the reader
            continue
        before, mark, _ = line.partition("#")
        if (
            mark
            and (not before.strip() or before.endswith(" "))
            and before.count('"') % 2 == before.count("'") % 2 == 0
        ):
            lines[number] = line[len(before) :]
    is_global = any(line.replace(" ", "") == "#@package_global_" for line in text[:3])
    prefix = "" if is_global or not group else f"{group.split('@')[0].replace('/', '.')}."
    return {f"{prefix}{key}": comment for key, comment in _beside_keys(text, lines).items()}


def _beside_keys(text: list[str], comments: dict[int, str]) -> dict[str, str]:
    """From each `key:` of some lines to its comment: behind it, else on the lines right above it."""
    by_key: dict[str, str] = {}
    above: list[str] = []
    parents: list[tuple[int, str]] = []  # of the lines so far: indentation and key
    for number, line in enumerate(text, start=1):
        code = line.strip()
        if code.startswith("#"):
            above.append(comments.get(number, ""))
            continue
        name, colon, _ = code.partition(":")
        if colon and name.isidentifier():
            indentation = len(line) - len(line.lstrip())
            parents = [parent for parent in parents if parent[0] < indentation]
            parents.append((indentation, name))
            behind = comments.get(number)
            if parts := [behind] if behind else above:
                key = ".".join(parent for _, parent in parents)
                by_key[key] = " ".join(part.lstrip("# ").strip() for part in parts if part)
        above = []
    return by_key


def beside(shown: str, comments: Iterable[dict[str, str]]) -> str:
    """Options as yaml, each with its comment: behind it, or above it where the line would be too long.

    Args:
        shown: the options, one a line.
        comments: from dotted names to comments; of one name the last holds.
    """
    merged = {key: comment for part in comments for key, comment in part.items() if comment}
    lines = []
    parents: list[tuple[int, str]] = []
    for line in shown.splitlines():
        name, colon, _ = line.strip().partition(":")
        indentation = len(line) - len(line.lstrip())
        comment = None
        if colon and name.isidentifier():
            parents = [parent for parent in parents if parent[0] < indentation]
            parents.append((indentation, name))
            comment = merged.get(".".join(parent for _, parent in parents))
        if comment is None:
            lines.append(line)
            continue
        commented = f"{line:<32}  # {comment}"
        if len(commented) <= WIDTH:
            lines.append(commented)
        else:
            mark = " " * indentation + "# "
            lines += [textwrap.fill(comment, WIDTH, initial_indent=mark, subsequent_indent=mark), line]
    return "\n".join(lines) + "\n"
