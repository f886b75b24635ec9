"""Print which matrices a model's weights hold: of a checkpoint, or of a model that a function builds.

    fire matrices path/to/transformers-folder
    fire matrices model.safetensors --json
    fire matrices my_package.models:build

Where the weights are there, with the largest and the smallest singular value of each (of the worst of several of one
shape). A checkpoint is read a tensor at a time, and no code in it is run; `module:callable` is imported and called
without arguments.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fire_core.text_table import text_table
from fire_core.tools.checkpoint.cuts import chosen
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import Parser, progress
from fire_core.tools.reader import add_choice, matrices_of, read_cuts
from fire_core.tools.spectra import singular_values
from fire_core.weights.matrices import COLUMNS, cells, described, matrices

# The fields of `described` for a tensor of a checkpoint whose model is not known: one matrix, or a stack of them.
UNKNOWN = {
    "block": "",
    "role": "",
    "kind": "matrix",
    "rows": None,
    "repeats": 1,
    "groups": 1,
    "transposed": False,
    "heads": 1,
    "columns": False,
    "aliases": (),
    "padding": None,
    "is_tied": False,
    "note": "",
}


def of_model(spec: str, only: str | None = None, **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the matrices of the model that `module:callable` builds, a row each, and lines for the user.

    Raises:
        CheckpointError: there is no such function, or it gives no module.
    """
    name, _, function = spec.partition(":")
    sys.path.insert(0, "")  # as `python -m` does
    try:
        build = getattr(importlib.import_module(name), function)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(f"{spec}: {error}") from None
    except (Exception, SystemExit) as error:  # whatever the module's code raises
        said = str(error).partition("\n")[0]
        raise CheckpointError(f"{spec}: {type(error).__name__}: {said}") from None
    if not callable(build):
        raise CheckpointError(f"{spec}: a {type(build).__name__} is no function that builds a model")
    try:
        model = build()
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        said = str(error).partition("\n")[0]
        raise CheckpointError(f"{spec}: {type(error).__name__}: {said}") from None
    if not isinstance(model, nn.Module):
        raise CheckpointError(f"{spec}: gives a {type(model).__name__}, no torch.nn.Module")
    entries = matrices(model, **options)
    rows = [
        described(entry) | (extremes(entry.read()) if entry.parameter.device.type != "meta" else {})
        for entry in progress(chosen(only, entries), "weights")
    ]
    return rows, [*entries.warnings, *entries.unread]


def of_checkpoint(
    path: str, model: str | None, only: str | None, **options: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the matrices of a checkpoint's weights, a row each, and lines for the user.

    Raises:
        CheckpointError: the checkpoint cannot be used.
    """
    cuts = read_cuts(path, model, only, **options)
    rows = []
    for weight_cut in progress(cuts.cuts, "weights"):
        entries = {entry.label: entry for entry in weight_cut.entries}
        for label, values, _ in matrices_of(weight_cut, cuts.without_model):
            if (entry := entries.get(label)) is not None and not cuts.without_model:
                row = described(entry)
            else:
                row = UNKNOWN | {"name": label, "shape": tuple(values.shape[1:]), "count": len(values), "stored": None}
            rows.append(row | extremes(values))
    return rows, cuts.notes


def extremes(values: Tensor) -> dict[str, float]:
    """Return the `largest` and the `smallest` singular value of matrices (count, d_out, d_in).

    The dict is empty if one of the matrices is not finite.
    """
    if not bool(values.isfinite().all()):
        return {}
    spectra = [singular_values(matrix) for matrix in values]
    return {"largest": max(float(s[0]) for s in spectra), "smallest": min(float(s[-1]) for s in spectra)}


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each row of the table."""
    for row in rows:
        ends = tuple(f"{row[key]:.4g}" if key in row else "" for key in ("largest", "smallest"))
        yield (*cells(row), *ends)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, or 2 with one line on stderr for what cannot be used."""
    parser = Parser(prog="fire matrices", description=__doc__.split("\n")[0])
    parser.add_argument("model_or_path", metavar="PATH", help="a transformers folder, a file, or module:callable")
    add_choice(parser)
    parser.add_argument("--json", action="store_true", help="a JSON object instead of the table")
    given = parser.parse_args(arguments)
    options = {"blocks": dict(given.blocks), "transposed": given.transposed}
    where = given.model_or_path
    try:
        if ":" in where and not Path(where).exists():
            if given.model is not None:
                raise CheckpointError(f"--model: {where} builds its model itself")
            rows, notes = of_model(where, given.only, **options)
        else:
            rows, notes = of_checkpoint(where, given.model, given.only, **options)
    except (CheckpointError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({"matrices": rows, "notes": notes}, indent=1))
    else:
        table = text_table((*COLUMNS, "largest", "smallest"), lines(rows))
        print(table, *(f"note: {note}" for note in notes), sep="\n")
    return 0
