"""How the rows of a fused weight fall apart into matrices: `Cut`, and the two ways to state one."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Declared = Sequence[int] | Mapping[str, int]
_OPERATORS = {"": operator.add, "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


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


def stated(statement: str, module: Any, rows: int) -> Cut:
    """The cut that a statement of a rule gives for a module's weight.

    `q k v` are blocks of equal height; `q,k=key_dim v=val_dim*2` have heights that attributes of the module make;
    `num_heads: q k v` recur, interleaved by head; nothing is one matrix. Of several, between semicolons, the first
    whose condition the module meets: `use_global ? k v ; q k v`.

    Raises:
        Misfit: the blocks are not the rows, or the module lacks an attribute.
    """
    for choice in statement.split(" ; "):
        condition, _, text = choice.rpartition("? ")
        if not condition or getattr(module, condition.strip()):
            break
    recurs, _, text = text.rpartition(": ")
    repeats = number(module, recurs, rows) if recurs else 1
    parts = [(name, h) for names, _, h in (part.partition("=") for part in text.split()) for name in names.split(",")]
    parts = parts or [("", "")]
    even, rest = divmod(rows, max(1, repeats * len(parts)))
    if not parts[0][1] and (rest or not even):
        raise Misfit(f"{rows} rows are not {repeats} x {len(parts)} equal blocks")
    blocks = tuple((name, number(module, height, rows) if height else even) for name, height in parts)
    cut = Cut(blocks, repeats)
    heights = tuple(height for _, height in cut.blocks)
    if cut.rows != rows or min(heights) < 1:
        raise Misfit(f"{f'{repeats} x ' if repeats > 1 else ''}{heights} rows are not its {rows}")
    return cut


def number(module: Any, expression: str, rows: int = 0) -> int:
    """What numbers, attributes of the module or else of its `config`, and its `rows` make, from left to right.

    Raises:
        Misfit: the module has no number of that name.
    """
    result = 0
    for sign, term in re.findall(r"([-+*/]?)([\w.]+)", expression):
        value = int(term) if term.isdigit() else rows if term == "rows" else _attribute(module, term)
        result = _OPERATORS[sign](result, value)
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
    if not isinstance(blocks, Mapping):
        blocks = dict(
            zip("qkv" if attention and len(blocks) == 3 else map(str, range(len(blocks))), blocks, strict=True)
        )
    repeats = blocks.get("repeats", 1)
    pairs = tuple((str(key), height) for key, height in blocks.items() if key != "repeats")
    numbers = [repeats, *(height for _, height in pairs)]
    if not pairs or any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in numbers):
        raise ValueError(f"blocks of {name}: heights and repeats are whole numbers above 0, got {blocks!r}")
    cut = Cut(pairs, repeats)
    if cut.rows != rows:
        times = f", {repeats} times," if repeats > 1 else ""
        raise ValueError(
            f"blocks of {name}: heights {tuple(numbers[1:])}{times} add up to {cut.rows}, not to its {rows} rows"
        )
    return cut
