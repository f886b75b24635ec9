"""Read chosen weights of a checkpoint, and their matrices: for `fire matrices`, `fire audit`, `fire convergence`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fire_core.reinit.scales import modular
from fire_core.tools.checkpoint.cuts import CheckpointCuts, TensorCut, cut_checkpoint
from fire_core.tools.checkpoint.source import load
from fire_core.tools.command import add_model
from fire_core.weights.entry import Declared
from fire_core.weights.layout import listed
from fire_core.weights.reader import says_fused

RUN_PREFIX = "state.trainer.modules."  # what a run of this project trains, beside targets, initial weights and counters


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which weights are read, and how they are cut."""
    parser.add_argument("--only", metavar="PATTERN", help="weights whose names match, such as '*.trainer.model.*'")
    add_model(parser)


def read_cuts(
    path: str | Path,
    model: str | None = None,
    only: str | None = None,
    blocks: Mapping[str, Declared] | None = None,
    transposed: Iterable[str] = (),
) -> CheckpointCuts:
    """Return the tensors of a checkpoint whose names match `only`, cut; of a run of this project those it trains.

    Raises:
        CheckpointError: the checkpoint cannot be used, or no name matches.
    """
    checkpoint = load(path)
    trained = [stored for stored in checkpoint.tensors if stored.name.startswith(RUN_PREFIX)]
    if only is None and trained:
        tensors = [replace(stored, name=stored.name.removeprefix(RUN_PREFIX)) for stored in trained]
        checkpoint = replace(checkpoint, tensors=tensors)
    cuts = cut_checkpoint(checkpoint, model, blocks=blocks, transposed=tuple(transposed), only=only)
    left_out: dict[str, list[str]] = {}  # reason -> names
    for one in cuts.cuts:
        if one.reason and "the same numbers" not in one.reason and one.stored.floating and one.stored.tensor.ndim > 1:
            left_out.setdefault(one.reason, []).append(one.stored.name)
    notes = [*cuts.notes, *(f"not read, {reason}: {listed(names, 4)}" for reason, names in left_out.items())]
    if cuts.without_model:
        notes += fused_by_name(cuts.cuts)
    return replace(cuts, notes=notes)


def fused_by_name(cuts: Iterable[TensorCut]) -> list[str]:
    """Return a line if weights are taken as one matrix whose names say that they hold several, as `qkv` does.

    Args:
        cuts: tensors of a checkpoint whose model is not known.
    """
    names = [
        one.stored.name
        for one in cuts
        if one.stored.floating
        and one.stored.tensor.ndim > 1
        and min(one.stored.tensor.shape[:2]) > 1
        and len(one.entries) < 2
        and says_fused(one.stored.name.removesuffix(".weight").rpartition(".")[2])
    ]
    if not names:
        return []
    many = f"taken as one matrix, though the name says that it holds several: {listed(names, 4)}"
    return [f"{many}; --model or --blocks cuts it"]


def matrices_of(weight_cut: TensorCut, without_model: bool = True) -> Iterator[tuple[str, Tensor, float]]:
    """Yield the matrices of a tensor: for it, or for each of its blocks, a label, (count, m, n), and FIRE's scale.

    A tensor that holds no matrix, such as a bias, yields nothing.

    Args:
        weight_cut: the tensor and its entries.
        without_model: whether nothing but its name and shape is known.
    """
    stored, weight = weight_cut.stored, weight_cut.stored.tensor
    if not stored.floating or weight.ndim < 2 or weight.numel() == 0 or "the same numbers" in weight_cut.reason:
        return
    if without_model and len(weight_cut.entries) < 2:  # more: --blocks says how it is cut
        if not stored.name.endswith("bias") and weight.ndim <= 5 and min(weight.shape[:2]) > 1:
            if weight.ndim > 2:  # no vectors, depthwise convolutions, class tokens
                kernel = weight.flatten(2).movedim(-1, 0)
                yield stored.name, kernel, modular(weight.shape[0], weight.shape[1], len(kernel))
            else:
                yield stored.name, weight[None], modular(weight.shape[0], weight.shape[1], 1)
        return
    for entry in weight_cut.entries:
        if entry.kind not in ("vector", "locked") and min(entry.shape) > 1 and entry.role != "depthwise":
            matrices = entry.view(weight).reshape(-1, *entry.shape)
            yield entry.label, matrices, modular(*entry.shape, entry.positions)
