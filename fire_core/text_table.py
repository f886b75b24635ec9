"""The tables that the library prints: maps of matrices, audits, reports of `fire_` and of `check_muon`."""

from collections.abc import Iterable, Sequence


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table for a terminal: two spaces between columns, columns of numbers set to the right, text to the left.

    Args:
        head: the names of the columns.
        rows: as many cells each; an empty cell stands for what is not known or does not apply.
    """
    lines = [head, *rows]
    columns = []
    for name, *cells in zip(*lines, strict=True):
        width = max(map(len, (name, *cells)))
        pad = str.rjust if _are_numbers(cells) else str.ljust
        columns.append([pad(cell, width) for cell in (name, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _are_numbers(cells: Sequence[str]) -> bool:
    """Return whether a column holds numbers, and nothing else beside empty cells."""
    filled_cells = [cell for cell in cells if cell]
    try:
        for cell in filled_cells:
            float(cell)
    except ValueError:
        return False
    return bool(filled_cells)
