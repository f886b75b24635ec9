"""Groups for other packages' Muon, in their own words for fused weights.

    optimizer = muonium.Muon(muonium_groups(model), lr=0.02)
    optimizer = gram_newton_schulz.Muon(gram_newton_schulz_groups(model).muon, lr=0.02)

Which matrices a weight holds is what `muon_groups` reads; a weight whose cut a package has no words for is left to the
other optimizer, with a warning that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.errors import FireWarning
from fire_core.split_muon import Cuts, MuonGroups, entries_of, matrices_of, muon_groups, write_matrices
from fire_core.weights.layout import listed
from fire_core.weights.topology import clean_name, unwrap


def muonium_groups(model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Return groups for `muonium.Muon` (0.2): fused weights with `split_sizes`, convolutions with `flatten`, AdamW's.

    `split_sizes` are runs of rows of a matrix (d_out, d_in). A stack (count, d_out, d_in) is taken matrix by matrix.
    It has no words for weights that are stored (d_in, d_out), interleaved by head, or stacks of fused matrices, nor for
    grouped and transposed convolutions: these are left to AdamW.

    Args:
        model: any module.
        **options: of `resolve`, as for `muon_groups`.

    Returns:
        The groups, each with `algorithm`: "muon" or "adamw".

    Raises:
        ValueError: an option that `resolve` refuses, or no hidden matrix that these groups can say.

    Warns:
        FireWarning: weights that are left to AdamW for want of words, and those of `muon_groups`.
    """
    muon, adam = _sayable_groups(model, "muonium", _in_words_of_muonium, options)
    groups = []
    for group in by_shape(muon):
        words = _in_words_of_muonium(group["params"][0], group["cuts"])
        groups.append({"params": group["params"], "algorithm": "muon"} | words)
    return [*groups, *([{"params": adam, "algorithm": "adamw"}] if adam else [])]


def gram_newton_schulz_groups(model: nn.Module, **options: Any) -> MuonGroups:
    """Return groups for `gram_newton_schulz.Muon` (0.1), with functions that cut a weight and join its parts.

    It takes every cut of `muon_groups` but of stacks whose matrices do not lie one by one in the first of three
    dimensions, as those of one-dimensional convolutions: these are left to the other optimizer.

    Args:
        model: any module.
        **options: of `resolve`, as for `muon_groups`.

    Returns:
        `muon, adam`: the groups, and all other trainable parameters for an optimizer of their own, `scalar_optimizer=`.

    Raises:
        ValueError: an option that `resolve` refuses, or no hidden matrix that these groups can say.

    Warns:
        FireWarning: weights that are left to the other optimizer for want of words, and those of `muon_groups`.
    """
    muon, adam = _sayable_groups(model, "gram_newton_schulz", _in_words_of_gram_newton_schulz, options)
    groups = []
    for group in by_shape(muon):
        words = _in_words_of_gram_newton_schulz(group["params"][0], group["cuts"])
        groups.append({"params": group["params"]} | words)
    return MuonGroups(groups, adam)


def by_shape(groups: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the groups, divided so that all parameters of one have the same shape and cuts.

    A function that joins the parts of a weight has to know its shape.
    """
    divided: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    for group in groups:
        for parameter in group["params"]:
            divided.setdefault((group["cuts"], parameter.shape), []).append(parameter)
    return [{"params": parameters, "cuts": cuts} for (cuts, _), parameters in divided.items()]


class CannotSayError(Exception):
    """A package has no words for a cut; the message says for what of it."""


InWords = Callable[[Tensor, Cuts], dict[str, Any]]


def _sayable_groups(model: nn.Module, package: str, in_words: InWords, options: Mapping[str, Any]) -> MuonGroups:
    """Return the groups of `muon_groups` that a package has words for, and all other parameters.

    Args:
        model: any module.
        package: its name, for messages.
        in_words: gives the package's options for a weight, or raises a CannotSayError.
        options: of `muon_groups`.

    Raises:
        ValueError: the package has words for no hidden matrix.

    Warns:
        FireWarning: weights that are left to the other optimizer for want of words, and those of `muon_groups`.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", FireWarning)
        muon, adam = muon_groups(model, **options)
    for line in said:  # from the caller's line
        warnings.warn(line.message, line.category, stacklevel=3)
    names = {id(p): clean_name(name) for name, p in unwrap(model).named_parameters()}
    groups, left = [], dict[str, list[str]]()
    rest = list(adam)
    for group in muon:
        sayable = []
        for parameter in group["params"]:
            try:
                in_words(parameter, group["cuts"])
            except CannotSayError as error:
                left.setdefault(str(error), []).append(names[id(parameter)])
                rest.append(parameter)
            else:
                sayable.append(parameter)
        if sayable:
            groups.append({"params": sayable, "cuts": group["cuts"]})
    if not groups:
        why = "; ".join(f"{listed(held)}: {reason}" for reason, held in left.items())
        raise ValueError(f"{package} has no words for any hidden matrix of the model ({why}): SplitMuon takes them")
    for reason, held in left.items():
        warnings.warn(
            f"{package} has no words for {reason}: {listed(held)} go to the other optimizer; SplitMuon takes them",
            FireWarning,
            stacklevel=3,
        )
    return MuonGroups(groups, rest)


def _in_words_of_muonium(parameter: Tensor, cuts: Cuts) -> dict[str, Any]:
    """Return the options of a group of `muonium.Muon` that say how a weight is cut.

    Raises:
        CannotSayError: it has no options for these cuts.
    """
    entries = entries_of(parameter, cuts)
    first = entries[0]
    if any(entry.transposed for entry in entries):
        raise CannotSayError("weights that are stored (d_in, d_out)")
    if any(entry.repeats * entry.heads > 1 for entry in entries):
        raise CannotSayError("weights that are interleaved or cut by head")
    if first.kind == "conv_transpose" or any(entry.groups > 1 for entry in entries):
        raise CannotSayError("grouped and transposed convolutions and stacks of matrices in two dimensions")
    if len(entries) > 1 and parameter.ndim != 2:
        raise CannotSayError("fused weights of more than two dimensions")
    if first.kind == "conv":
        return {"flatten": True}
    sizes = tuple(entry.shape[0] for entry in entries)
    return {"flatten": False} | ({"split_sizes": sizes} if len(sizes) > 1 else {})


def _in_words_of_gram_newton_schulz(parameter: Tensor, cuts: Cuts) -> dict[str, Any]:
    """Return the options of a group of `gram_newton_schulz.Muon` that say how a weight is cut: two functions.

    Raises:
        CannotSayError: it cannot hold these cuts.
    """
    if parameter.ndim > 4:
        raise CannotSayError("three-dimensional convolutions")
    stacks = [matrices_of(entry, _on_meta_device(parameter)) for entry in entries_of(parameter, cuts)]
    if parameter.ndim == 3 and any(len(stack) != len(parameter) for stack in stacks):
        raise CannotSayError("three-dimensional weights whose matrices do not lie in the first dimension")
    split = Split(tuple(cuts), tuple(parameter.shape))
    return {"param_split_fn": split, "param_recombine_fn": Recombine(split)}


def _on_meta_device(parameter: Tensor) -> Tensor:
    """Return a tensor of the parameter's shape without numbers, on torch's meta device."""
    return torch.empty(parameter.shape, device="meta")


@dataclass(frozen=True)
class Split:
    """Cuts a tensor of a parameter's shape into its matrices: the `param_split_fn` of gram_newton_schulz.

    Attributes:
        cuts: of `muon_groups`.
        shape: of the parameter.
    """

    cuts: Cuts
    shape: tuple[int, ...]

    def __call__(self, tensor: Tensor) -> list[Tensor]:
        """Return the matrices of a tensor, each with as many dimensions as the tensor.

        They are (d_out, d_in), (count, d_out, d_in), or those of a convolution (1, 1, d_out, d_in).
        """
        stacks = [matrices_of(entry, tensor) for entry in entries_of(tensor, self.cuts)]
        if tensor.ndim == 3:
            return stacks
        matrices = [matrix for stack in stacks for matrix in stack]
        return [matrix.view(*(1,) * (tensor.ndim - 2), *matrix.shape) for matrix in matrices]


@dataclass(frozen=True)
class Recombine:
    """Puts matrices back where `split` took them: the `param_recombine_fn` of gram_newton_schulz."""

    split: Split

    def __call__(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the tensor of the parameter's shape that holds these matrices."""
        tensor = parts[0].new_empty(self.split.shape)
        entries = entries_of(tensor, self.split.cuts)
        matrices = [matrix for part in parts for matrix in part.reshape(-1, *part.shape[-2:])]
        start = 0
        for entry in entries:
            count = len(matrices_of(entry, tensor))
            write_matrices(entry, tensor, torch.stack(matrices[start : start + count]))
            start += count
        return tensor
