"""The checks that `fire_` makes before it changes anything; each failure is one line that says what to do."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fire_core.reinit.initial import find_initial_value
from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.overlap import overlapping, overlaps_itself
from fire_core.weights.topology import clean_name


def check_module(model: object) -> nn.Module:
    """Return `model` if it is a module whose weights can be written in place.

    Raises:
        TypeError: it is a state_dict, a tensor, an exported program or a TorchScript module.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("the model is a TorchScript module: call it on the module that the script was made from")
    if isinstance(model, torch.fx.GraphModule) and all(
        type(m).__module__.startswith(("torch.nn.modules.module", "torch.fx", "torch.export")) for m in model.modules()
    ):
        raise TypeError("the model is an exported program, without its layers: call it on the module before the export")
    if isinstance(model, nn.Module):
        return model
    hint = ": load it into its model first" if isinstance(model, (dict, Tensor)) else ""
    raise TypeError(f"expected a module (torch.nn.Module), got {type(model).__name__}{hint}")


def check_weights(model: nn.Module, entries: Sequence[Entry]) -> None:
    """Check that these weights can be changed, and that no other tensor of the model changes with them.

    Args:
        model: the model, all of whose parameters and buffers are compared by memory.
        entries: the weights that are to change.

    Raises:
        ValueError: a weight is on the meta device, complex, sparse, expanded or from inference mode, or shares memory
            with another parameter or a buffer.
    """
    for entry in entries:
        if entry.parameter.device.type == "meta":
            raise ValueError(f"{entry.name} is on the meta device and holds no numbers: load the weights first")
        if entry.parameter.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{entry.name} was made in inference mode: build or load the model outside of that mode")
        if entry.parameter.is_complex():
            raise ValueError(f"{entry.name} is complex, and only real weights can be changed: exclude={entry.name!r}")
        if entry.parameter.layout != torch.strided:
            raise ValueError(f"{entry.name} is sparse, and only dense weights can be projected: exclude={entry.name!r}")
        if overlaps_itself(distributed.local(entry.parameter)):
            is_expanded = 0 in entry.parameter.stride()
            how = "is expanded" if is_expanded else "is a view of overlapping windows"
            raise ValueError(f"{entry.name} {how}, many numbers in one place of memory: clone() it")
    changing = {entry.name: entry.parameter for entry in entries}
    changing_ids = {id(parameter) for parameter in changing.values()}
    others = [
        (clean_name(name), tensor)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if id(tensor) not in changing_ids
    ]
    for first, second in overlapping([*changing.items(), *others]):
        if first in changing or second in changing:
            changed, other = (first, second) if first in changing else (second, first)
            raise ValueError(
                f"{changed} and {other} are two tensors in the same memory, in whole or in part: a change of {changed} "
                "would change both. Make them one, as in head.weight = embedding.weight, give each its own memory, "
                "clone(), or keep both (exclude=)"
            )


def check_finite(named_tensors: Iterable[tuple[str, Tensor]], group: Any = None) -> None:
    """Check that no tensor holds NaN or Inf, on any rank; the host waits for the device once.

    Args:
        named_tensors: pairs of a name for the message and a tensor; some on each process of the group, or on none.
        group: process group of replicas (`distributed.ddp_group`), all of which must call this; None: there are none.

    Raises:
        ValueError: with the names of all tensors that do. All replicas raise if one has such a tensor.
    """
    pairs = list(named_tensors)
    if not pairs:
        return
    tensors = [tensor for _, tensor in pairs]
    device = tensors[0].device
    flags = torch.stack([_is_finite(distributed.local(tensor)).to(device, torch.int32) for tensor in tensors])
    finite_on_all_ranks = distributed.all_true_over_ranks(flags, tensors).tolist()
    bad = [name for (name, _), is_finite in zip(pairs, finite_on_all_ranks, strict=True) if not is_finite]
    finite_in_all_replicas = distributed.true_on_all_ranks(not bad, group, device)
    if bad:
        raise ValueError(f"NaN or Inf in {', '.join(dict.fromkeys(bad))}: the model is unchanged")
    if not finite_in_all_replicas:  # else this process would wait for one that has raised
        raise ValueError("NaN or Inf in the weights of another process: the model is unchanged")


def check_same_init(model: nn.Module, entries: Iterable[Entry], initial: Mapping[str, Tensor]) -> None:
    """Check that all replicas of DistributedDataParallel have the same initial weights, or they would drift apart.

    They have not if `init` was copied before the model was wrapped: then each process had drawn weights of its own.

    Raises:
        ValueError: initial weights differ between processes; on all of them.
    """
    group, ignored = distributed.ddp_group(model), distributed.ignored_by_ddp(model)
    if group is None or dist.get_world_size(group) == 1:
        return
    values = {e.name: find_initial_value(e, initial) for e in entries if e.parameter not in ignored}
    known = {name: value for name, value in values.items() if value is not None}
    flags = distributed.differ_over_ranks(list(known.values()), group)
    if wrong := [name for name, differs in zip(known, flags, strict=True) if differs]:
        raise ValueError(
            f"init[{wrong[0]!r}] differs between the processes: copy init after DistributedDataParallel(model), which "
            "gives all of them the weights of the first. The model is unchanged"
        )


def _is_finite(p: Tensor) -> Tensor:
    """Return whether a tensor is free of NaN and Inf, a scalar bool tensor on its device."""
    if p.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=p.device)
    low, high = p.aminmax()  # one pass, as NaN spreads to both extremes
    return low.isfinite() & high.isfinite()
