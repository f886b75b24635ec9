"""The map of a model: which matrices its weights hold, fused ones and stacks too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from fire_core.text_table import text_table
from fire_core.weights.entry import Entries, Entry
from fire_core.weights.layout import resolve
from fire_core.weights.topology import unwrap, uses_of


class Matrices(Entries):
    """The matrices of a model in the order of its parameters, each as an `Entry`. Printed it is a table.

    Attributes:
        warnings: one line for each weight that looks fused and is not known, with how to declare it.
        unread: a line for each weight whose numbers are no matrix: quantised, parametrised, a flat shard.
    """

    def __init__(self, matrices: Iterable[Entry], warnings: Iterable[str], unread: Iterable[str]) -> None:
        super().__init__(matrices, warnings)
        self.unread = list(unread)

    def to_json(self, indent: int | None = None) -> str:
        """All but the tensors themselves, as JSON text; its fields are described in docs/reference/matrices.md."""
        found = {"schema": SCHEMA, "version": VERSION, "matrices": self.rows()}
        return json.dumps(found | {"warnings": self.warnings, "unread": self.unread}, indent=indent)

    @classmethod
    def from_json(cls, text: str, model: nn.Module) -> Matrices:
        """The matrices that `to_json` wrote, bound to the parameters of a model; nothing of the model is read anew.

        Args:
            text: of `to_json`, of this version.
            model: has parameters of the names and shapes that the text names, as the model that it was written for.

        Returns:
            The same matrices, as `matrices` gives them; their action is "keep".

        Raises:
            ValueError: the text is of something else or of another version, or a name or a shape is not the model's.
        """
        read = json.loads(text)
        if not isinstance(read, dict) or (read.get("schema"), read.get("version")) != (SCHEMA, VERSION):
            said = f"{read.get('schema')}, version {read.get('version')}" if isinstance(read, dict) else "no object"
            raise ValueError(f"expected the JSON of matrices(model).to_json(), version {VERSION}; got {said}")
        uses = {use.name: (parameter, use) for parameter, several in uses_of(unwrap(model)) for use in several}
        entries = []
        for row in read["matrices"]:
            parameter, _ = uses.get(row["name"], (None, None))
            if parameter is None or list(parameter.shape) != row["stored"]:
                has = "no such parameter" if parameter is None else f"it as {tuple(parameter.shape)}"
                raise ValueError(f"{row['name']} {tuple(row['stored'])}: the model has {has}")
            around = [module for name in row["aliases"] if name in uses for module in uses[name][1].path[1:]]
            fields: dict[str, Any] = {name: row[name] for name in ("name", "role", "block", *CUT)}
            fields |= {"padding": row["padding"], "is_tied": row["is_tied"], "reason": row["note"]}
            fields["rows"] = None if row["rows"] is None else tuple(row["rows"])
            fields |= {"aliases": tuple(row["aliases"]), "modules": tuple(dict.fromkeys(around))}
            entries.append(Entry(parameter=parameter, **fields))
        return cls(entries, read["warnings"], read["unread"])

    def rows(self) -> list[dict[str, Any]]:
        """What the table shows and more, a mapping for each matrix: a row of `to_json`."""
        return [described(entry) for entry in self]

    def __str__(self) -> str:
        return "\n".join([text_table(COLUMNS, map(cells, self.rows())), *self.warnings, *self.unread])


SCHEMA, VERSION = "fire.matrices", 1  # of `to_json`; the version rises when a field goes or means something else
COLUMNS = ("weight", "role", "d_out x d_in", "count", "rows", "stored")
CUT = ("kind", "rows", "repeats", "groups", "transposed", "heads", "columns")  # how a matrix lies in its tensor


def described(entry: Entry) -> dict[str, Any]:
    """What a table and JSON show of an entry that holds matrices."""
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
    """One line of the table."""
    rows = "" if row["rows"] is None else f"{row['rows'][0]}:{row['rows'][1]}"
    rows += f" of each of {row['repeats']}" if row["repeats"] > 1 else ""
    label = f"{row['name']}[{row['block']}]" if row["block"] else row["name"]
    stored = "(d_in, d_out)" if row["transposed"] else ""
    return label, row["role"], f"{row['shape'][0]} x {row['shape'][1]}", str(row["count"]), rows, stored


def matrices(model: nn.Module, **options: Any) -> Matrices:
    """Which matrices the weights of a model hold.

    A fused weight is given block by block (q, k, v; gate, up; the gates of an LSTM), stored transposed or interleaved
    as it may be; a tied weight comes once, under its first name. What is known is that of `fire_`: declared by the
    caller or the model, else known, else read off a forward pass, else named as not known.

    Args:
        model: any module; DDP and `torch.compile` wrappers are looked through. On the meta device too.
        **options: of `resolve`: `blocks=`, `transposed=`, `example=`, `layout="heads"`, `strict=True`.

    Returns:
        The matrices; biases, scales and other vectors are not in it.

    Raises:
        TypeError: `model` is no module.
        ValueError: an option that `resolve` refuses, or that would change nothing here.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a module (torch.nn.Module), got {type(model).__name__}")
    if idle := [name for name in ("include", "exclude") if options.get(name)]:
        raise ValueError(f"{idle[0]} says what an act takes, not which matrices there are")
    if options.get("layout", "all") not in ("all", "heads"):
        raise ValueError(f'layout={options["layout"]!r}: here "heads" alone changes something, the cut by head')
    entries = resolve(model, **options)
    unread = [f"{entry.label}: {entry.reason}" for entry in entries if entry.kind == "locked"]
    found = [entry for entry in entries if entry.kind not in ("locked", "vector") and entry.parameter.numel()]
    return Matrices(found, entries.warnings, unread)
