"""Groups for other packages' Muon, with their own options for fused weights.

    optimizer = muonium.Muon(muonium_groups(model), lr=0.02)
    optimizer = gram_newton_schulz.Muon(gram_newton_schulz_groups(model).muon, lr=0.02)

Which matrices a weight holds is what `muon_groups` reads; a weight whose cut a package has no option for is left to
the other optimizer, with a warning that names it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fire_core.errors import FireWarning
from fire_core.muon.cuts import Cuts, entries_of, matrices_of, write_matrices
from fire_core.muon.groups import MuonGroups, muon_groups
from fire_core.weights.layout import listed
from fire_core.weights.topology import clean_name, unwrap


def muonium_groups(model: nn.Module, **options: Any) -> list[dict[str, Any]]:
    """Return groups for `muonium.Muon` (0.2): fused weights with `split_sizes`, convolutions with `flatten`, AdamW's.

    `split_sizes` are runs of rows of a matrix (d_out, d_in). A stack (count, d_out, d_in) is taken matrix by matrix.
    It has no option for weights that are stored (d_in, d_out) or interleaved by head, for stacks of fused matrices, or
    for grouped and transposed convolutions: these are left to AdamW.

    Args:
        model: any module.
        **options: of `resolve`, as for `muon_groups`.

    Returns:
        The groups, each with `algorithm`: "muon" or "adamw".

    Raises:
        ValueError: an option that `resolve` refuses, or no hidden matrix whose cut these groups can express.

    Warns:
        FireWarning: weights that are left to AdamW because muonium has no option for their cut, and the warnings of
            `muon_groups`.
    """
    muon, adam = _supported_groups(model, "muonium", _options_for_muonium, options)
    groups = []
    for group in by_shape(muon):
        cut_options = _options_for_muonium(group["params"][0], group["cuts"])
        groups.append({"params": group["params"], "algorithm": "muon"} | cut_options)
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
        ValueError: an option that `resolve` refuses, or no hidden matrix whose cut these groups can express.

    Warns:
        FireWarning: weights that are left to the other optimizer because the package has no option for their cut, and
            the warnings of `muon_groups`.
    """
    muon, adam = _supported_groups(model, "gram_newton_schulz", _options_for_gram_newton_schulz, options)
    groups = []
    for group in by_shape(muon):
        cut_options = _options_for_gram_newton_schulz(group["params"][0], group["cuts"])
        groups.append({"params": group["params"]} | cut_options)
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


class UnsupportedCutError(Exception):
    """A package has no option for a cut; the message names the kind of weights."""


OptionsForCut = Callable[[Tensor, Cuts], dict[str, Any]]


def _supported_groups(
    model: nn.Module, package: str, options_for: OptionsForCut, options: Mapping[str, Any]
) -> MuonGroups:
    """Return the groups of `muon_groups` that a package has options for, and all other parameters.

    Args:
        model: any module.
        package: the package's name, for messages.
        options_for: returns the package's options for a weight, or raises an UnsupportedCutError.
        options: options of `muon_groups`.

    Raises:
        ValueError: the package has no option for any hidden matrix.

    Warns:
        FireWarning: weights that are left to the other optimizer because the package has no option for their cut, and
            the warnings of `muon_groups`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FireWarning)
        muon, adam = muon_groups(model, **options)
    for line in caught:  # from the caller's line
        warnings.warn(line.message, line.category, stacklevel=3)
    names = {id(p): clean_name(name) for name, p in unwrap(model).named_parameters()}
    groups, unsupported = [], dict[str, list[str]]()
    rest = list(adam)
    for group in muon:
        supported = []
        for parameter in group["params"]:
            try:
                options_for(parameter, group["cuts"])
            except UnsupportedCutError as error:
                unsupported.setdefault(str(error), []).append(names[id(parameter)])
                rest.append(parameter)
            else:
                supported.append(parameter)
        if supported:
            groups.append({"params": supported, "cuts": group["cuts"]})
    if not groups:
        why = "; ".join(f"{listed(weight_names)}: {reason}" for reason, weight_names in unsupported.items())
        raise ValueError(f"{package} has no option for any hidden matrix of the model ({why}): SplitMuon takes them")
    for reason, weight_names in unsupported.items():
        warnings.warn(
            f"{package} has no option for {reason}: {listed(weight_names)} go to the other optimizer; SplitMuon takes "
            "them",
            FireWarning,
            stacklevel=3,
        )
    return MuonGroups(groups, rest)


def _options_for_muonium(parameter: Tensor, cuts: Cuts) -> dict[str, Any]:
    """Return the options of a group of `muonium.Muon` that say how a weight is cut.

    Raises:
        UnsupportedCutError: it has no options for these cuts.
    """
    entries = entries_of(parameter, cuts)
    first = entries[0]
    if any(entry.transposed for entry in entries):
        raise UnsupportedCutError("weights that are stored (d_in, d_out)")
    if any(entry.repeats * entry.heads > 1 for entry in entries):
        raise UnsupportedCutError("weights that are interleaved or cut by head")
    if first.kind == "conv_transpose" or any(entry.groups > 1 for entry in entries):
        raise UnsupportedCutError("grouped and transposed convolutions and stacks of matrices in two dimensions")
    if len(entries) > 1 and parameter.ndim != 2:
        raise UnsupportedCutError("fused weights of more than two dimensions")
    if first.kind == "conv":
        return {"flatten": True}
    sizes = tuple(entry.shape[0] for entry in entries)
    return {"flatten": False} | ({"split_sizes": sizes} if len(sizes) > 1 else {})


def _options_for_gram_newton_schulz(parameter: Tensor, cuts: Cuts) -> dict[str, Any]:
    """Return the options of a group of `gram_newton_schulz.Muon` that say how a weight is cut: two functions.

    Raises:
        UnsupportedCutError: it cannot hold these cuts.
    """
    if parameter.ndim > 4:
        raise UnsupportedCutError("three-dimensional convolutions")
    stacks = [matrices_of(entry, _on_meta_device(parameter)) for entry in entries_of(parameter, cuts)]
    if parameter.ndim == 3 and any(len(stack) != len(parameter) for stack in stacks):
        raise UnsupportedCutError("three-dimensional weights whose matrices do not lie in the first dimension")
    split = Split(tuple(cuts), tuple(parameter.shape))
    return {"param_split_fn": split, "param_recombine_fn": Recombine(split)}


def _on_meta_device(parameter: Tensor) -> Tensor:
    """Return a tensor of the parameter's shape without numbers, on torch's meta device."""
    return torch.empty(parameter.shape, device="meta")


@dataclass(frozen=True)
class Split:
    """Cuts a tensor of a parameter's shape into its matrices: the `param_split_fn` of gram_newton_schulz.

    Attributes:
        cuts: the cuts of a group of `muon_groups`.
        shape: shape of the parameter.
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
