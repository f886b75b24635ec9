"""Tables for a terminal and as Markdown."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.estimates import Estimate, Paired


def number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if np.isfinite(value) else "–"


def digits_for(value: float) -> int:
    """A number with decimals that fit its size: 0.8234 (accuracy), 3.021 (loss), 712 (return)."""
    if not np.isfinite(value) or value == 0:
        return 0
    size = abs(value)
    return 4 if size < 2 else 3 if size < 10 else 2 if size < 100 else 0


def digits_of(column: Iterable[object]) -> int | None:
    """Decimals for all estimates of a column, those of its largest; None where these would show a small one as 0."""
    found = [value.difference if isinstance(value, Paired) else value for value in column]
    means = [value.mean for value in found if isinstance(value, Estimate) and np.isfinite(value.mean) and value.mean]
    digits = min(map(digits_for, means), default=0)
    return digits if means and all(round(abs(value), digits) > 0 for value in means) else None


def show(value: object, digits: int | None = None, seeds: object = None) -> str:
    """An entry of a table as text, with so many decimals, or as many as fit it.

    `mean [low, high]`, of two seeds `mean (one, other)`, and for a difference its corrected p; its n
    where these are not the row's `seeds`.
    """
    if isinstance(value, Paired):
        sign = "+" if value.difference.mean > 0 else ""
        about = [f"n={value.difference.n}"] * (value.difference.n != seeds)
        about += [f"p{p_value(value.p_holm)}"] * bool(np.isfinite(value.p_holm))
        return f"{sign}{show(value.difference, digits)}" + f" ({', '.join(about)})" * bool(about)
    if isinstance(value, Estimate):
        digits = digits_for(value.mean) if digits is None else digits
        ends = f"{number(value.low, digits)}, {number(value.high, digits)}"
        interval = f" ({ends})" if value.n == 2 else f" [{ends}]"
        return number(value.mean, digits) + (interval if np.isfinite(value.low) else "")
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def p_value(p: float) -> str:
    return "<0.001" if p < 0.001 else f"={p:.3f}"


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """The header and the rows as text."""
    digits = [digits_of(frame[column]) for column in frame]
    seeds = frame.get("n", pd.Series(None, frame.index))
    rows = zip(frame.itertuples(index=False), seeds, strict=True)
    return [list(frame.columns), *([*map(show, row, digits, [n] * len(digits))] for row, n in rows)]


def as_text(frame: pd.DataFrame) -> str:
    """Aligned columns for a terminal."""
    return "\n".join(line.rstrip() for line in aligned(cells(frame), "  "))


def aligned(rows: list[list[str]], gap: str) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [gap.join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]


def as_markdown(frame: pd.DataFrame) -> str:
    rows = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in cells(frame)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {line} |" for line in aligned(rows, " | ")) + "\n"


def write(frame: pd.DataFrame, path: Path) -> Path:
    """Writes a table as Markdown."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_markdown(frame), encoding="utf-8")
    return path
