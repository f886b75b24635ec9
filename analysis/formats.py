"""Write tables for a terminal and as Markdown."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.estimates import Estimate, Paired


def number(value: float, digits: int) -> str:
    """Return a number with so many decimals; a dash for NaN and inf."""
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def digits_for(value: float) -> int:
    """Return how many decimals fit a number's size, as in 0.8234 (accuracy), 3.021 (loss), 712 (return)."""
    if not np.isfinite(value) or value == 0:
        return 0
    size = abs(value)
    return 4 if size < 2 else 3 if size < 10 else 2 if size < 100 else 0


def digits_of(column: Iterable[object]) -> int | None:
    """Return the decimals for a column's estimates: those of the largest; None if a small one would be shown as 0."""
    estimates = [value.difference if isinstance(value, Paired) else value for value in column]
    means = []
    for estimate in estimates:
        if isinstance(estimate, Estimate) and np.isfinite(estimate.mean) and estimate.mean != 0:
            means.append(estimate.mean)
    digits = min(map(digits_for, means), default=0)
    return digits if means and all(round(abs(value), digits) > 0 for value in means) else None


def show(value: object, digits: int | None = None, seeds: object = None) -> str:
    """Return an entry of a table as text.

    An estimate is written `mean [low, high]`, or for two seeds `mean (first, second)`. A difference is followed by its
    corrected p, and by its n if that is not the row's number of seeds.

    Args:
        value: the entry.
        digits: decimals; None: as many as fit each number.
        seeds: the row's number of seeds.
    """
    if isinstance(value, Paired):
        sign = "+" if value.difference.mean > 0 else ""
        notes = []
        if value.difference.n != seeds:
            notes.append(f"n={value.difference.n}")
        if np.isfinite(value.p_holm):
            notes.append(f"p{p_value(value.p_holm)}")
        text = f"{sign}{show(value.difference, digits)}"
        return f"{text} ({', '.join(notes)})" if notes else text
    if isinstance(value, Estimate):
        digits = digits_for(value.mean) if digits is None else digits
        ends = f"{number(value.low, digits)}, {number(value.high, digits)}"
        interval = f" ({ends})" if value.n == 2 else f" [{ends}]"
        return number(value.mean, digits) + (interval if np.isfinite(value.low) else "")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def p_value(p: float) -> str:
    """Return a p value with its relation, such as `=0.012` or `<0.001`."""
    return "<0.001" if p < 0.001 else f"={p:.3f}"


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """Return the header and the rows of a table as text."""
    digits = [digits_of(frame[column]) for column in frame]
    seeds = frame.get("n", pd.Series(None, frame.index))
    rows = zip(frame.itertuples(index=False), seeds, strict=True)
    table = [list(frame.columns), *([*map(show, row, digits, [n] * len(digits))] for row, n in rows)]
    return [[printable(cell) for cell in row] for row in table]


SPACES = "\n\u00a0\u202f"  # which `isprintable` does not count


def printable(text: str) -> str:
    """Return a text with a question mark for each character that would steer a terminal; names come from runs."""
    return "".join(character if character.isprintable() or character in SPACES else "?" for character in text)


def as_text(frame: pd.DataFrame) -> str:
    """Return a table with aligned columns for a terminal."""
    return "\n".join(line.rstrip() for line in aligned(cells(frame), "  "))


def aligned(rows: list[list[str]], gap: str) -> list[str]:
    """Return a line for each row, with all columns padded to the same width and `gap` between them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def as_markdown(frame: pd.DataFrame) -> str:
    """Return a table as Markdown. What would be HTML or a link in a name is shown as it is written."""
    rows = [[as_cell(cell) for cell in row] for row in cells(frame)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {line} |" for line in aligned(rows, " | ")) + "\n"


def as_cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("](", "]\\(").replace("$", "\\$")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def write(frame: pd.DataFrame, path: Path, note: str = "") -> Path:
    """Write a table as Markdown, with a note below it if there is one, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(frame) + (f"\n{note}\n" if note else ""), encoding="utf-8")
    return path
