"""What `fire_` refuses before anything is changed, each in one line."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fire_core.weights import distributed
from fire_core.weights.entry import Entry
from fire_core.weights.overlap import overlapping, overlaps_itself
from fire_core.weights.topology import clean_name


def check_module(model: object) -> nn.Module:
    """A module whose weights can be written in place.

    Raises:
        TypeError: a state_dict, a tensor, an exported program or a TorchScript module.
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
    """Raise a ValueError that names a weight which is to change and cannot be computed with.

    Args:
        model: a change must not write to the memory of another of its parameters, or of a buffer.
        entries: what is to change.
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
    ids = {id(parameter) for parameter in changing.values()}
    others = [*model.named_parameters(), *model.named_buffers()]
    others = [(clean_name(name), tensor) for name, tensor in others if id(tensor) not in ids]
    for first, second in overlapping([*changing.items(), *others]):
        if first in changing or second in changing:
            one, other = (first, second) if first in changing else (second, first)
            raise ValueError(
                f"{one} and {other} are two tensors in the same memory, in whole or in part: a change of {one} would "
                "change both. Make them one, as in head.weight = embedding.weight, give each its own memory, "
                "clone(), or keep both (exclude=)"
            )


def check_finite(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a ValueError that names every parameter with a NaN or Inf; one host synchronisation for all.

    Args:
        named: (name, tensor) pairs.
    """
    pairs = list(named)
    if not pairs:
        return
    device = pairs[0][1].device
    flags = torch.stack([_finite(distributed.local(p)).to(device, torch.int32) for _, p in pairs])
    found = distributed.all_true(flags, [p for _, p in pairs]).tolist()
    bad = [name for (name, _), fine in zip(pairs, found, strict=True) if not fine]
    if bad:
        raise ValueError(f"NaN or Inf in {', '.join(dict.fromkeys(bad))}: the model is unchanged")


def _finite(p: Tensor) -> Tensor:
    if p.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=p.device)
    low, high = p.aminmax()  # one pass; NaN spreads to both
    return low.isfinite() & high.isfinite()
