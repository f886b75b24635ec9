"""The map of a model: what it lists of fused, stacked, transposed and unknown weights, printed and as JSON."""

import json

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fire_core import matrices


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


def test_it_prints_a_table_and_gives_json() -> None:
    found = matrices(Block())
    lines = str(found).splitlines()
    assert lines[0].split() == ["weight", "role", "d_out", "x", "d_in", "count", "rows", "stored"]
    assert lines[2].split() == ["known.weight[k]", "k", "4", "x", "8", "1", "12:16"]
    read = json.loads(found.to_json())
    assert read["matrices"][1] | {"note": ""} == {
        "name": "known.weight",
        "block": "k",
        "role": "k",
        "shape": [4, 8],
        "count": 1,
        "rows": [12, 16],
        "repeats": 1,
        "transposed": False,
        "heads": 1,
        "note": "",
    }
    assert read["warnings"] == list(found.warnings)


def test_what_holds_no_matrix_of_its_own_is_named() -> None:
    found = matrices(nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2)))
    assert [m.name for m in found] == ["1.weight"]
    assert len(found.unread) == 2
    assert all("original" in line for line in found.unread)


@pytest.mark.parametrize(("options", "says"), [({"exclude": "2"}, "exclude says"), ({"layout": "qk"}, "layout='qk'")])
def test_options_that_would_change_nothing_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        matrices(nn.Sequential(nn.Linear(4, 4)), **options)
