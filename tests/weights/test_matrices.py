"""The map of a model: what it lists of fused, stacked, transposed and unknown weights, printed and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fire_core import Matrices, matrices
from tests.weights.test_blocks import MODULES


class Block(nn.Module):
    """A fused projection that it declares, one that looks fused and is not known, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.known, self.qkv, self.norm = nn.Linear(8, 20), nn.Linear(20, 33), nn.LayerNorm(33)

    def matrix_blocks(self) -> dict[str, dict[str, int]]:
        return {"known.weight": {"q": 12, "k": 4, "v": 4}}


def test_each_block_is_a_row_and_vectors_are_none() -> None:
    found = matrices(Block())
    assert [(m.label, m.role, m.shape, m.rows) for m in found] == [
        ("known.weight[q]", "q", (12, 8), (0, 12)),
        ("known.weight[k]", "k", (4, 8), (12, 16)),
        ("known.weight[v]", "v", (4, 8), (16, 20)),
        ("qkv.weight", "fused", (33, 20), None),
    ]
    assert len(found) == 4
    assert found[0].block == "q"
    assert "qkv.weight" in found.warnings[0]


def test_what_is_read_can_be_written() -> None:
    lstm = nn.LSTM(6, 5)
    gate = matrices(lstm)[2]
    before = lstm.weight_ih_l0.detach().clone()
    gate.write_(lstm.weight_ih_l0.data, torch.zeros(1, 5, 6))
    assert not lstm.weight_ih_l0[10:15].any()
    assert torch.equal(lstm.weight_ih_l0[:10], before[:10])
    assert torch.equal(gate.read(before), before[None, 10:15])


def test_it_prints_a_table() -> None:
    lines = str(matrices(Block())).splitlines()
    assert lines[0].split() == ["weight", "role", "d_out", "x", "d_in", "count", "rows", "stored"]
    assert lines[2].split() == ["known.weight[k]", "k", "4", "x", "8", "1", "12:16"]


def test_the_schema_of_json_stays() -> None:
    """As docs/reference/matrices.md has it: who changes a name or a meaning raises `version`."""
    found = matrices(Block())
    read = json.loads(found.to_json())
    assert list(read) == ["schema", "version", "matrices", "warnings", "unread"]
    assert (read["schema"], read["version"]) == ("fire.matrices", 1)
    assert read["matrices"][1] | {"note": ""} == {
        "name": "known.weight",
        "block": "k",
        "role": "k",
        "shape": [4, 8],
        "count": 1,
        "stored": [20, 8],
        "kind": "matrix",
        "rows": [12, 16],
        "repeats": 1,
        "groups": 1,
        "transposed": False,
        "heads": 1,
        "columns": False,
        "aliases": ["known.weight"],
        "padding": None,
        "is_tied": True,
        "note": "",
    }
    assert read["warnings"] == list(found.warnings)
    page = (Path(__file__).parents[2] / "docs/reference/matrices.md").read_text()
    assert all(f"`{field}`" in page for field in read["matrices"][0])


def taken_by_the_page(row: dict[str, Any], weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The matrices of a row, as docs/reference/matrices.md says that they are taken out of the stored tensor."""
    if row["kind"] != "matrix" or row["groups"] > 1:
        weight = weight.reshape(row["groups"], -1, *weight.shape[1:])
    if row["kind"] == "conv":
        weight = np.moveaxis(weight, (1, 2), (-2, -1))
    elif row["kind"] == "conv_transpose":
        weight = np.moveaxis(weight, (2, 1), (-2, -1))
    elif row["transposed"]:
        weight = np.swapaxes(weight, -1, -2)
    if row["rows"] is not None:
        start, stop = row["rows"]
        periods = weight.reshape(*weight.shape[:-2], row["repeats"], -1, weight.shape[-1])[..., start:stop, :]
        weight = periods.reshape(*weight.shape[:-2], -1, weight.shape[-1])
    if row["heads"] > 1 and row["columns"]:
        weight = np.moveaxis(weight.reshape(*weight.shape[:-1], row["heads"], -1), -2, -3)
    return weight.reshape(row["count"], *row["shape"])


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.ConvTranspose2d(8, 4, 2, groups=2))


FAMILIES = ["gpt2", "phi3", "gpt_neox", "qwen3_moe", "gpt_oss"]


def family(name: str) -> nn.Module:
    from tests.zoo import test_transformers as zoo

    kind, settings, _ = zoo.FAMILIES[name]
    return zoo.build(kind, settings | {"attn_implementation": "eager"})


@pytest.mark.parametrize("name", [*FAMILIES, "convolutions", "torch's attention", "LSTM"])
def test_a_weight_is_cut_by_its_rows_of_json_alone(name: str) -> None:
    built = {"convolutions": convolutions} | {key: MODULES[key][0] for key in ("torch's attention", "LSTM")}
    model = built[name]() if name in built else family(name)
    found = matrices(model)
    for entry, row in zip(found, json.loads(found.to_json())["matrices"], strict=True):
        assert np.array_equal(taken_by_the_page(row, entry.parameter.detach().numpy()), entry.read().numpy()), row


@pytest.mark.parametrize("name", FAMILIES)
def test_json_is_read_back_for_a_model_that_is_built_alike(name: str) -> None:
    found, other = matrices(family(name)), family(name)
    again = Matrices.from_json(found.to_json(indent=1), other)
    assert again.to_json() == found.to_json()
    named = dict(other.named_parameters())
    for entry, first in zip(again, found, strict=True):
        assert entry.parameter is named[entry.name]
        assert [type(module) for module in entry.modules] == [type(module) for module in first.modules]
        told = [(key, value) for key, value in vars(first).items() if key not in ("parameter", "modules", "action")]
        assert all(getattr(entry, key) == value for key, value in told if not isinstance(value, torch.Tensor))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda read: read | {"version": 2}, "version 1; got fire.matrices, version 2"),
        (lambda read: [], "got no object"),
        (lambda read: {"matrices": []}, "got None, version None"),
        (
            lambda read: read | {"matrices": [read["matrices"][0] | {"name": "other"}]},
            r"other \(20, 8\): the model",
        ),
        (
            lambda read: read | {"matrices": [read["matrices"][0] | {"stored": [8, 20]}]},
            r"the model has it as \(20, 8\)",
        ),
    ],
)
def test_json_of_something_else_is_refused(change: Callable[[Any], Any], says: str) -> None:
    text = json.dumps(change(json.loads(matrices(Block()).to_json())))
    with pytest.raises(ValueError, match=says):
        Matrices.from_json(text, Block())


def test_what_holds_no_matrix_of_its_own_is_named() -> None:
    found = matrices(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)))
    assert [m.name for m in found] == ["1.weight"]
    assert len(found.unread) == 2
    assert all("original" in line for line in found.unread)


def test_options_that_would_change_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="layout='qk'"):
        matrices(nn.Sequential(nn.Linear(4, 4)), layout="qk")
    with pytest.raises(TypeError, match="exclude"):
        matrices(nn.Sequential(nn.Linear(4, 4)), exclude="2")  # type: ignore[call-arg]
