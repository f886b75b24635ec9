"""Comments of options, read from the source so that `--help` can show them beside the values.

An option is a field of a program's dataclass, or a key in the yaml file of a method, model or data set. Its comment is
at the end of its line, or on the lines directly above it.
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
    """Return the comments of a dataclass's fields, with those of its base classes and of nested dataclasses.

    Args:
        options: the dataclass.

    Returns:
        From the dotted name of an option to its comment.
    """
    comments: dict[str, str] = {}
    for ancestor in reversed(options.__mro__[:-1]):
        comment_of_line: dict[int, str] = {}  # from the number of a line in the class's source
        source = textwrap.dedent(inspect.getsource(ancestor))
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                comment_of_line[token.start[0]] = token.string
        comments |= _comments_of_keys(source.splitlines(), comment_of_line)
        for name, annotation in inspect.get_annotations(ancestor).items():
            if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
                comments |= {f"{name}.{inner}": comment for inner, comment in of_fields(annotation).items()}
    return comments


def of_file(path: Path, group: str) -> dict[str, str]:
    """Return the comments of a yaml file's keys.

    Args:
        path: the file of a choice, or the root file of a program.
        group: the group of the choice, such as `method`, below which its keys are in the configuration; "" for a root
            file. It is ignored for a file with `# @package _global_`, whose keys are at the top.

    Returns:
        From the dotted name of an option to its comment.
    """
    text = path.read_text(encoding="utf-8").splitlines()
    comment_of_line = {}
    for number, line in enumerate(text, start=1):
        if line.startswith("# @package"):  # an instruction to Hydra
            continue
        before, mark, _ = line.partition("#")
        begins_comment = not before.strip() or before.endswith(" ")  # as yaml has it; a#b is a value
        in_quotes = before.count('"') % 2 == 1 or before.count("'") % 2 == 1
        if mark and begins_comment and not in_quotes:
            comment_of_line[number] = line[len(before) :]
    is_global = any(line.replace(" ", "") == "#@package_global_" for line in text[:3])
    prefix = "" if is_global or not group else f"{group.split('@')[0].replace('/', '.')}."
    return {f"{prefix}{key}": comment for key, comment in _comments_of_keys(text, comment_of_line).items()}


def _comments_of_keys(text: list[str], comment_of_line: dict[int, str]) -> dict[str, str]:
    """Return the comment of each key: the one at the end of its line, else those on the lines directly above.

    Args:
        text: lines of yaml or of a dataclass, in which a key is `<name>:` and is nested by its indentation.
        comment_of_line: from the number of a line, counted from 1, to the comment on it.

    Returns:
        From the dotted name of a key to its comment, without `#` and on one line.
    """
    comment_of_key: dict[str, str] = {}
    comments_above: list[str] = []
    parents: list[tuple[int, str]] = []  # indentation and name of the keys around the current line, outermost first
    for number, line in enumerate(text, start=1):
        code = line.strip()
        if code.startswith("#"):
            comments_above.append(comment_of_line.get(number, ""))
            continue
        name, colon, _ = code.partition(":")
        if colon and name.isidentifier():
            indentation = len(line) - len(line.lstrip())
            parents = [parent for parent in parents if parent[0] < indentation]
            parents.append((indentation, name))
            comment_at_end = comment_of_line.get(number)
            parts = [comment_at_end] if comment_at_end else comments_above
            if parts:
                key = ".".join(parent for _, parent in parents)
                comment_of_key[key] = " ".join(part.lstrip("# ").strip() for part in parts if part)
        comments_above = []
    return comment_of_key


def add_comments(options: str, comments_by_source: Iterable[dict[str, str]]) -> str:
    """Return options as yaml, each with its comment at the end of its line, or above it if the line would be too long.

    Args:
        options: the options as yaml, one on each line, nested by indentation.
        comments_by_source: from dotted names of options to comments, once for each source; a later source replaces the
            comments of an earlier one.
    """
    merged = {key: comment for comments in comments_by_source for key, comment in comments.items() if comment}
    lines = []
    parents: list[tuple[int, str]] = []  # indentation and name of the keys around the current line, outermost first
    for line in options.splitlines():
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
