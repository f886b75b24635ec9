"""Which matrices the weights of a model hold, including those in fused weights and in stacks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from fire_core.text_table import text_table
from fire_core.weights.entry import Declared, Entries, Entry
from fire_core.weights.layout import resolve
from fire_core.weights.topology import unwrap, uses_of


class Matrices(Entries):
    """The matrices of a model in the order of its parameters, each as an `Entry`. `print` shows them as a table.

    Attributes:
        warnings: a line for each weight that looks fused but is not known; it says how to declare the blocks.
        unread: a line for each weight whose numbers are no matrix: quantised, parametrised, a flat shard, a raw
            parameter of more than three dimensions.
    """

    def __init__(self, matrices: Iterable[Entry], warnings: Iterable[str], unread: Iterable[str]) -> None:
        super().__init__(matrices, warnings)
        self.unread = list(unread)

    def to_json(self, indent: int | None = None) -> str:
        """Return everything except the tensors as JSON text; docs/reference/matrices.md describes its fields.

        Args:
            indent: number of spaces for each level; None: all on one line.
        """
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "matrices": self.rows(),
            "warnings": self.warnings,
            "unread": self.unread,
        }
        return json.dumps(content, indent=indent)

    @classmethod
    def from_json(cls, text: str, model: nn.Module) -> Matrices:
        """Return the matrices that `to_json` wrote, bound to the parameters of a model, which is not read anew.

        Args:
            text: what `to_json` of this version returned.
            model: a model with parameters of the names and shapes in the text, as the one that it was written for.

        Returns:
            The same matrices as `matrices` returns them; their action is "keep".

        Raises:
            ValueError: the text is not from `to_json` or is of another version, or the model has no parameter of a
                name and shape in it.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or (content.get("schema"), content.get("version")) != (SCHEMA, VERSION):
            is_object = isinstance(content, dict)
            got = f"{content.get('schema')}, version {content.get('version')}" if is_object else "no object"
            raise ValueError(f"expected the JSON of matrices(model).to_json(), version {VERSION}; got {got}")
        uses = {use.name: (parameter, use) for parameter, its_uses in uses_of(unwrap(model)) for use in its_uses}
        entries = []
        for row in content["matrices"]:
            parameter, _ = uses.get(row["name"], (None, None))
            if parameter is None or list(parameter.shape) != row["stored"]:
                has = "no such parameter" if parameter is None else f"it as {tuple(parameter.shape)}"
                raise ValueError(f"{row['name']} {tuple(row['stored'])}: the model has {has}")
            modules = [module for name in row["aliases"] if name in uses for module in uses[name][1].path[1:]]
            fields: dict[str, Any] = {name: row[name] for name in ("name", "role", "block", *CUT)}
            fields |= {"padding": row["padding"], "is_tied": row["is_tied"], "reason": row["note"]}
            fields["rows"] = None if row["rows"] is None else tuple(row["rows"])
            fields |= {"aliases": tuple(row["aliases"]), "modules": tuple(dict.fromkeys(modules))}
            entries.append(Entry(parameter=parameter, **fields))
        return cls(entries, content["warnings"], content["unread"])

    def rows(self) -> list[dict[str, Any]]:
        """Return a mapping for each matrix with the fields of `to_json`, some of which the printed table shows."""
        return [described(entry) for entry in self]

    def __str__(self) -> str:
        return "\n".join([text_table(COLUMNS, map(cells, self.rows())), *self.warnings, *self.unread])


SCHEMA, VERSION = "fire.matrices", 1  # of `to_json`; raise the version when a field is removed or changes its meaning
COLUMNS = ("weight", "role", "d_out x d_in", "count", "rows", "stored")
# The fields of `Entry` that say how a matrix is stored.
CUT = ("kind", "rows", "repeats", "groups", "transposed", "heads", "columns")


def described(entry: Entry) -> dict[str, Any]:
    """Return the row of an entry that holds matrices, with the fields of `to_json`."""
    return {
        "name": entry.name,
        "block": entry.block,
        "role": entry.role,
        "shape": entry.shape,
        "count": entry.count,
        "stored": tuple(entry.parameter.shape),
        **{name: getattr(entry, name) for name in CUT},
        "aliases": entry.aliases,
        "padding": entry.padding,
        "is_tied": entry.is_tied,
        "note": entry.reason,
    }


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a row, one for each of `COLUMNS`."""
    rows = "" if row["rows"] is None else f"{row['rows'][0]}:{row['rows'][1]}"
    rows += f" of each of {row['repeats']}" if row["repeats"] > 1 else ""
    label = f"{row['name']}[{row['block']}]" if row["block"] else row["name"]
    stored = "(d_in, d_out)" if row["transposed"] else ""
    return label, row["role"], f"{row['shape'][0]} x {row['shape'][1]}", str(row["count"]), rows, stored


def matrices(
    model: nn.Module,
    *,
    blocks: Mapping[str, Declared] | None = None,
    transposed: str | Iterable[str] = (),
    example: Any = None,
    layout: str = "all",
    strict: bool = False,
) -> Matrices:
    """Return the matrices that the weights of a model hold, as `fire_` reads them.

    A fused weight has one entry for each block (q, k, v; gate, up; the gates of an LSTM), also if it is stored
    transposed or its rows are interleaved. A tied weight is listed once, under its first name. How a weight divides is
    declared by the caller or the model, else known, else read off a forward pass; if it is none of these, a warning
    says so.

    Args:
        model: any module, also on the meta device; DDP and `torch.compile` wrappers are looked through.
        blocks: the blocks of fused weights; see `layout.resolve`.
        transposed: pattern(s) of weights that are stored (d_in, d_out).
        example: input for one forward pass, which shows cuts that are neither declared nor known.
        layout: "heads" cuts projections of attention by head, too. What else a layout says is of no matter here.
        strict: refuse a model with a weight that looks fused and is not known, instead of a warning.

    Returns:
        The matrices, without biases, scales and other vectors.

    Raises:
        TypeError: `model` is no module.
        ValueError: an option that `resolve` refuses, or a layout that would change nothing here.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a module (torch.nn.Module), got {type(model).__name__}")
    if layout not in ("all", "heads"):
        raise ValueError(f'layout={layout!r}: here "heads" alone changes something, the cut by head')
    entries = resolve(model, layout, blocks=blocks, transposed=transposed, example=example, strict=strict)
    no_matrix = [entry for entry in entries if entry.kind == "locked" or _is_of_many_dimensions(entry)]
    unread = [f"{entry.label}: {entry.reason}" for entry in no_matrix]
    with_matrices = [entry for entry in entries if entry.kind not in ("locked", "vector") and entry.parameter.numel()]
    return Matrices(with_matrices, entries.warnings, unread)


def _is_of_many_dimensions(entry: Entry) -> bool:
    """Return whether an entry is of a raw parameter of more dimensions than a stack of matrices has."""
    return entry.kind == "vector" and entry.parameter.ndim > 3 and entry.parameter.numel() > 0
