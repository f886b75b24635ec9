"""Read chosen weights of a checkpoint, and their matrices: for `fire matrices`, `fire audit`, `fire convergence`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, TypeVar

from torch import Tensor

from fire_core.reinit.scales import modular
from fire_core.tools.checkpoint.cuts import CheckpointCuts, TensorCut, cut_checkpoint
from fire_core.tools.checkpoint.source import load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.tools.command import add_model
from fire_core.weights.entry import Declared

RUN_PREFIX = "state.trainer.modules."  # what a run of this project trains, beside targets, initial weights and counters


class Named(Protocol):
    """A weight that is chosen by its name."""

    @property
    def name(self) -> str: ...


Weight = TypeVar("Weight", bound=Named)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which weights are read, and how they are cut."""
    parser.add_argument("--only", metavar="PATTERN", help="weights whose names match, such as '*.trainer.model.*'")
    add_model(parser)


def chosen(only: str | None, weights: Iterable[Weight]) -> list[Weight]:
    """Return the weights whose names match a pattern; all if it is None.

    Raises:
        CheckpointError: no name matches.
    """
    all_weights = list(weights)
    matching = [weight for weight in all_weights if only is None or fnmatchcase(weight.name, only)]
    if only is not None and not matching:
        names = ", ".join(weight.name for weight in all_weights[:6])
        raise CheckpointError(f"--only={only}: no name matches; there are {names}, ...")
    return matching


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
    else:
        tensors = chosen(only, checkpoint.tensors)
    return cut_checkpoint(replace(checkpoint, tensors=tensors), model, blocks=blocks, transposed=tuple(transposed))


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
