"""How the rows of a fused weight fall apart into matrices: `Cut`, and the rules that say so for a module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Number = int | str  # a number, or the name of an attribute of the module (or of its config) that holds it
Declared = Sequence[int] | Mapping[str, int]


@dataclass(frozen=True)
class Cut:
    """Blocks of rows, in their order, and how often this pattern recurs.

    Attributes:
        blocks: (name, rows) of each block within one period. A single one for a weight that is one matrix.
        repeats: periods: 1 for [q][k][v], the heads for a projection that is interleaved by head.
        transposed: a raw parameter that is stored (..., d_in, d_out).
        groups: matrices that lie one after the other in the first dimension of a 2-D parameter (experts).
        role: what a raw parameter does; empty where the module says so.
    """

    blocks: tuple[tuple[str, int], ...]
    repeats: int = 1
    transposed: bool = False
    groups: int = 1
    role: str = ""

    @property
    def rows(self) -> int:
        return self.repeats * sum(height for _, height in self.blocks)


class Misfit(Exception):
    """A known module whose weight has another shape than its rule says; the message is one clause."""


# (module, rows of the matrix) -> its cut
Rule = Callable[[Any, int], Cut]


def equal(names: str, repeats: Number = 1) -> Rule:
    """Blocks of equal height: `equal("q k v")`; interleaved by head: `equal("q k v", "num_heads")`."""

    def rule(module: Any, rows: int) -> Cut:
        parts, times = names.split(), number(module, repeats)
        height, rest = divmod(rows, len(parts) * times)
        if rest or not height:
            raise Misfit(f"{rows} rows are not {times} x {len(parts)} equal blocks")
        return Cut(tuple((part, height) for part in parts), times)

    return rule


def sized(names: str, *heights: Number, repeats: Number = 1) -> Rule:
    """Blocks of given heights: `sized("q k v", "q_dim", "kv_dim", "kv_dim")`."""

    def rule(module: Any, rows: int) -> Cut:
        sizes = [number(module, height) for height in heights]
        return fitting(tuple(zip(names.split(), sizes, strict=True)), rows, number(module, repeats))

    return rule


def fitting(blocks: tuple[tuple[str, int], ...], rows: int, repeats: int = 1) -> Cut:
    """The cut, checked against the number of rows.

    Raises:
        Misfit: they do not fit.
    """
    cut = Cut(blocks, repeats)
    if cut.rows != rows or min(height for _, height in blocks) < 1:
        times = f"{repeats} x " if repeats > 1 else ""
        raise Misfit(f"{times}{tuple(h for _, h in blocks)} rows are not its {rows}")
    return cut


def whole(transposed: bool = False, groups: Number = 1, role: str = "") -> Rule:
    """One matrix, or a raw parameter that is a stack of whole matrices."""
    return lambda module, rows: Cut((("", rows),), 1, transposed, number(module, groups), role)


def number(module: Any, name: Number) -> int:
    """A number, or what attributes of the module, or else of its `config`, make: "num_heads / groups * head_dim".

    Raises:
        Misfit: the module has none of that name.
    """
    if isinstance(name, int):
        return name
    result = 1
    for operator, attribute in re.findall(r"([*/]?) ?([\w.]+)", name):
        value = _attribute(module, attribute)
        result = result // value if operator == "/" else result * value
    return result


def _attribute(module: Any, name: str) -> int:
    for place in (module, getattr(module, "config", None)):
        value: Any = place
        for part in name.split("."):
            value = getattr(value, part, None)
        if isinstance(value, int) and value > 0:
            return int(value)
    raise Misfit(f"{type(module).__name__} has no number {name}")


def declared(name: str, rows: int, blocks: Declared, attention: bool) -> Cut:
    """The cut that a user gives for a weight.

    Args:
        name: of the weight, for messages.
        rows: of its matrix.
        blocks: heights from top to bottom, (64, 16, 16); or by name, {"q": 64, "k": 16, "v": 16}, with "repeats"
            where the pattern recurs: {"q": 16, "k": 16, "v": 16, "repeats": 4} is interleaved by four heads.
        attention: whether three unnamed blocks are q, k and v.

    Raises:
        ValueError: they are no heights, or do not add up to the rows.
    """
    if not isinstance(blocks, (Mapping, Sequence)):
        raise ValueError(f"blocks of {name}: give heights, (64, 16, 16), or heights by name, got {blocks!r}")
    if isinstance(blocks, Mapping):
        pairs = tuple((str(key), height) for key, height in blocks.items() if key != "repeats")
        repeats = blocks.get("repeats", 1)
    else:
        words = "qkv" if attention and len(blocks) == 3 else [str(i) for i in range(len(blocks))]
        pairs, repeats = tuple(zip(words, blocks, strict=True)), 1
    numbers = [repeats, *(height for _, height in pairs)]
    if not pairs or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in numbers):
        raise ValueError(f"blocks of {name}: heights and repeats are whole numbers above 0, got {blocks!r}")
    cut = Cut(pairs, repeats)
    if cut.rows != rows:
        heights = tuple(height for _, height in pairs)
        times = f", {repeats} times," if repeats > 1 else ""
        raise ValueError(f"blocks of {name}: heights {heights}{times} add up to {cut.rows}, not to its {rows} rows")
    return cut
