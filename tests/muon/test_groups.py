"""Which weights muon_groups gives to Muon; tests of check_muon and of SplitMuon use it on many more models."""

import pytest
from torch import nn

from fire_core import matrices, muon_groups
from fire_core.errors import FireWarning
from tests.networks import UnevenFused


def test_a_fused_weight_that_is_not_known_is_left_to_the_other_optimizer() -> None:
    model = UnevenFused()
    assert any("qkv" in line for line in matrices(model).warnings)
    with (
        pytest.warns(FireWarning, match=r"qkv\.weight is kept; it looks fused"),
        pytest.raises(ValueError, match="no hidden matrix"),
    ):
        muon_groups(model)
    (group,) = muon_groups(model, blocks={"qkv.weight": {"q": 16, "k": 12, "v": 12}}).muon
    assert group["params"] == [model.qkv.weight]
    assert len(group["cuts"]) == 3


def test_nothing_is_left_out_where_no_linear_layer_reads_the_input() -> None:
    rnn = nn.ModuleDict({"rnn": nn.LSTM(4, 8), "fc1": nn.Linear(8, 8), "fc2": nn.Linear(8, 2)})
    assert any(rnn["fc1"].weight in set(group["params"]) for group in muon_groups(rnn).muon)
