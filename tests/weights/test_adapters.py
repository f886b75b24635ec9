"""Weights under an adapter: merged ones and those that the adapter scales are kept, and named."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fire_core import fire_, matrices

peft = pytest.importorskip("peft")


def spread(W: Tensor) -> float:
    values = torch.linalg.svdvals(W.detach().double())
    return float(values.max() / values.min()) - 1


def with_adapter(config: Any) -> Any:
    torch.manual_seed(0)
    model = peft.get_peft_model(nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8)), config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name or "hada" in name or "lokr" in name:
                p.normal_()
    return model


def lora(**options: Any) -> Any:
    return peft.LoraConfig(target_modules=["0"], r=2, **options)


def acted(model: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fire_(model, trainable_only=False, solver="exact", **options)


@pytest.mark.parametrize(
    "config",
    [lora(), peft.LoHaConfig(target_modules=["0"], r=2), peft.LoKrConfig(target_modules=["0"])],
)
def test_a_merged_adapter_can_be_taken_out_again(config: Any) -> None:
    model = with_adapter(config)
    layer = model.base_model.model[0]
    before = layer.base_layer.weight.detach().clone()
    model.merge_adapter()
    report = acted(model)
    model.unmerge_adapter()
    torch.testing.assert_close(layer.base_layer.weight, before)
    assert [row.name for row in report.rows] == ["base_model.model.2.weight"]
    reason = report.kept["base_model.model.0.base_layer.weight"].reason
    assert "an adapter is merged into it" in reason
    assert "unmerge_adapter()" in reason
    model.merge_adapter()
    with pytest.raises(ValueError, match=r"cannot project .*an adapter is merged into it"):
        acted(model, include="*base_layer*")


@pytest.mark.parametrize("config", [lora(use_dora=True), peft.IA3Config(target_modules=["0"], feedforward_modules=[])])
def test_a_weight_that_an_adapter_scales_is_kept(config: Any) -> None:
    model = with_adapter(config)
    before = copy.deepcopy(model.state_dict())
    report = acted(model)
    assert [row.name for row in report.rows] == ["base_model.model.2.weight"]
    assert "scales it" in report.kept["base_model.model.0.base_layer.weight"].reason
    assert torch.equal(model.base_model.model[0].base_layer.weight, before["base_model.model.0.base_layer.weight"])
    assert any("scales it" in line for line in matrices(model).unread)


def test_a_weight_that_an_adapter_is_added_to_is_projected_with_a_warning() -> None:
    model = with_adapter(lora())
    report = acted(model)
    assert spread(model.base_model.model[0].base_layer.weight) < 1e-5
    assert any("carry an adapter" in line for line in report.warnings)
    assert not any("carry an adapter" in line for line in fire_(model, solver="exact", include="*.2.weight").warnings)
    fire_(model, include="*lora_A*", exclude="*.2.*")  # the factors of an adapter that is not merged, as before


@pytest.mark.parametrize("layout", ["all", "attention"])
def test_the_factors_of_an_adapter_on_queries_keys_and_values_in_one_are_kept(layout: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = transformers.GPT2Config(vocab_size=16, n_positions=8, n_embd=12, n_layer=1, n_head=2)
    config = peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a deprecated name in transformers
        model = peft.get_peft_model(transformers.GPT2LMHeadModel(sizes), config)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, 0, 0.1)
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fire_(model, layout=layout)  # the base is frozen, and the factors are what is trained
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    report = acted(model, layout={"adapter": "project"})
    assert {row.name.partition("lora_")[2][0] for row in report.rows} == {"A", "B"}


class Merging(nn.Linear):
    """As loralib: the factors lie beside the weight, into which evaluation mode merges them."""

    def __init__(self) -> None:
        super().__init__(6, 6, bias=False)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.lora_B @ self.lora_A
            self.merged = not mode
        return super().train(mode)


def test_an_adapter_that_evaluation_merges() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Merging(), nn.Linear(6, 6, bias=False))
    before = model[0].weight.detach().clone()
    model.eval()
    report = acted(model)
    model.train()
    assert [row.name for row in report.rows] == ["1.weight"]
    torch.testing.assert_close(model[0].weight, before)
