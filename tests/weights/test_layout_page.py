"""The layouts that docs/scales.md shows."""

import re

import torch
from torch import nn

from fire_core import fire_
from fire_core.weights.layout import GROUPS, PRESETS
from tests.zygote import ROOT

PAGE = (ROOT / "docs/scales.md").read_text()


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv, self.head = nn.Embedding(5, 4), nn.Conv1d(4, 4, 1), nn.Linear(4, 3)
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])
        self.blocks[0].mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embedding(x).mT).mT
        return self.head(self.blocks[0](x) @ self.blocks[0].mix)


def test_include_is_beside_the_default_and_a_mapping_is_the_whole_list() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    dense = {"blocks.0.weight", "conv.weight", "head.weight"}
    wanted = [dense | {"blocks.0.mix"}, dense - {"head.weight"} | {"embedding.weight"}, {"blocks.0.weight"}]
    for line, names in zip(code.splitlines(), wanted, strict=True):
        report = eval(line.partition("#")[0], {"fire_": fire_, "model": Own()})
        assert {row.name for row in report.rows if row.action == "project"} == names, line


def test_its_words_are_all_words() -> None:
    layouts = PAGE[: PAGE.index("## Which `scale=`")]
    assert set(re.findall(r"`(\w+)`", layouts)) >= GROUPS.keys()
    assert set(re.findall(r'`"(\w+)"`', layouts)) == PRESETS.keys()
