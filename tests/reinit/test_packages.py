"""fire_ on weights of other packages: quantised bases, adapters, noisy layers."""

import copy

import pytest
import torch
from torch import nn

from fire_core import FireWarning, fire_


def packed(name: str) -> nn.Sequential:
    """Two packed layers and a plain one."""
    torch.manual_seed(0)
    if name == "torchao":
        quantization = pytest.importorskip("torchao.quantization")
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8))
        for layer in model[:2]:
            quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
        return model
    layers = pytest.importorskip("bitsandbytes").nn
    model = nn.Sequential(
        layers.Linear8bitLt(64, 64, has_fp16_weights=False), layers.Linear4bit(64, 64), nn.Linear(64, 8)
    )
    return model.to("cpu")  # packs the weights


@pytest.mark.filterwarnings("ignore")  # what the packages themselves warn of
@pytest.mark.parametrize("name", ["bitsandbytes", "torchao"])
@pytest.mark.parametrize("trainable_only", [True, False])
def test_packed_weights_are_kept_and_named_and_compute_as_before(name, trainable_only):
    model = packed(name)
    x = torch.randn(16, 64)
    before = model[1](model[0](x))
    report = fire_(model, "exact", trainable_only=trainable_only)
    assert torch.equal(model[1](model[0](x)), before)
    assert [row.name for row in report] == ["2.weight"]
    for kept in ("0.weight", "1.weight"):
        assert "packed" in report.kept[kept].reason
        with pytest.raises(ValueError, match=f"cannot project {kept}: quantised or packed"):
            fire_(model, include=kept)


BASE = "base_model.model.0.base_layer.weight"
FACTOR_A, FACTOR_B = "base_model.model.0.lora_A.default.weight", "base_model.model.0.lora_B.default.weight"


def test_lora_computes_as_before_and_of_included_factors_a_zero_one_stays_zero():
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["0"], modules_to_save=["2"], r=2))
    with torch.no_grad():
        model.get_parameter(FACTOR_B).normal_(std=0.01)
    before = copy.deepcopy(model.state_dict())
    report = fire_(model, "exact")
    for name in (BASE, FACTOR_A, FACTOR_B):
        assert torch.equal(model.state_dict()[name], before[name])
        assert report.kept[name].reason
    assert any("modules_to_save" in row.name for row in report)  # a copy of the layer, which trains: projected
    nn.init.zeros_(model.get_parameter(FACTOR_B))
    with pytest.warns(FireWarning, match=r"zero matrices.*lora_B"):
        report = fire_(model, "exact", include=["*lora_A*", "*lora_B*"])
    assert not model.get_parameter(FACTOR_B).any()
    assert torch.equal(model.get_parameter(BASE), before[BASE])
    assert "frozen" in report.kept[BASE].reason
    assert next(row for row in report if row.name == FACTOR_A).dfi_after < 1e-9
