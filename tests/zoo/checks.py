"""What is checked of a model. The rows of each block are written down here by hand, without the layout's code."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fire_core import fire_
from fire_core.weights.forward_pass import read_pass
from fire_core.weights.layout import resolve


@dataclass(frozen=True)
class Fused:
    """Blocks from top to bottom, such as "q 8 k 8 v 8"; repeated, as by heads; and how the weight is stored."""

    blocks: str
    repeats: int = 1
    transposed: bool = False
    seen: bool = True  # whether products of the forward pass tell the blocks apart

    def rows(self) -> dict[str, Tensor]:
        words = self.blocks.split()
        heights = [(name, int(height)) for name, height in zip(words[::2], words[1::2], strict=True)]
        period = sum(height for _, height in heights)
        found: dict[str, list[int]] = {name: [] for name, _ in heights}
        for repeat in range(self.repeats):
            at = repeat * period
            for name, height in heights:
                found[name] += range(at, at + height)
                at += height
        return {name: torch.tensor(rows) for name, rows in found.items()}


Cuts = dict[str, Fused]  # by the weight's name


def matrix_of(parameter: Tensor, transposed: bool) -> Tensor:
    """(..., d_out, d_in), kernel positions first."""
    if parameter.ndim == 4 or parameter.shape[-1] == 1:  # a convolution's
        return parameter.movedim((0, 1), (-2, -1))
    return parameter.mT if transposed else parameter


def check_singular_values(model: nn.Module, cuts: Cuts) -> None:
    """After `fire_` every block that the model uses as one matrix has all its singular values at the target."""
    report = fire_(model, solver="exact", measure=False)
    assert not report.warnings, report.warnings
    parameters = dict(model.named_parameters())
    done = {row.name for row in report}
    for name, fused in cuts.items():
        weight = matrix_of(parameters[name].detach(), fused.transposed)
        assert sum(len(rows) for rows in fused.rows().values()) == weight.shape[-2], name
        for block, rows in fused.rows().items():
            assert f"{name}[{block}]" in done
            part = weight[..., rows, :]
            target = math.sqrt(part.shape[-2] / part.shape[-1]) / math.prod(
                parameters[name].shape[2:] if part.ndim == 4 else ()
            )
            values = torch.linalg.svdvals(part.double())
            torch.testing.assert_close(
                values, torch.full_like(values, target), rtol=2e-3, atol=0, msg=f"{name}[{block}]"
            )
    cut = {label.split("[")[0] for label in done if "[" in label}
    assert cut == set(cuts), "weights that are cut"


def check_forward_pass(model: nn.Module, example: Any, cuts: Cuts) -> None:
    """The forward pass multiplies just these blocks with each other."""
    read = read_pass(model, example).cuts
    parameters = dict(model.named_parameters())
    for name, fused in cuts.items():
        if not fused.seen:
            continue
        cut = read[id(parameters[name])]
        seen = Fused(" ".join(f"{i} {height}" for i, (_, height) in enumerate(cut.blocks)), cut.repeats)
        partition = {frozenset(rows.tolist()) for rows in seen.rows().values()}
        assert partition == {frozenset(rows.tolist()) for rows in fused.rows().values()}, name
        assert cut.transposed == fused.transposed, name
    whole = {key: cut for key, cut in read.items() if len(cut.blocks) > 1}
    others = {e.name for e in resolve(model) if id(e.parameter) in whole and e.action == "project"} - set(cuts)
    assert not others, f"the forward pass also divides {others}"


def share(model: nn.Module) -> float:
    """Share of the model's numbers in matrices that are projected."""
    entries = resolve(model)
    return sum(e.size for e in entries if e.action == "project") / sum(e.size for e in entries)
