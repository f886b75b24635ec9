"""What `fire_` refuses before anything is changed, each in one line."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from fire_core.reinit.initial import address
from fire_core.weights import distributed
from fire_core.weights.entry import Entry


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


def check_weights(entries: Sequence[Entry], every: Iterable[Entry] = ()) -> None:
    """Raise a ValueError that names a weight which is to change and cannot be computed with.

    Args:
        entries: what is to change.
        every: of the model: a change must not write to the memory of another parameter.
    """
    begins = {address(entry.parameter): entry for entry in entries}
    for other in every:
        entry = begins.get(address(other.parameter) or -1)
        if entry is not None and entry.parameter is not other.parameter:
            raise ValueError(
                f"{entry.name} and {other.name} are two parameters in the same memory: make them one, as in "
                "head.weight = embedding.weight, or keep both (exclude=)"
            )
    for entry in entries:
        if entry.parameter.device.type == "meta":
            raise ValueError(f"{entry.name} is on the meta device and holds no numbers: load the weights first")
        if entry.parameter.is_inference() and not torch.is_inference_mode_enabled():
            raise ValueError(f"{entry.name} was made in inference mode: build or load the model outside of that mode")
        if entry.parameter.is_complex():
            raise ValueError(f"{entry.name} is complex, and only real weights can be changed: exclude={entry.name!r}")
        if entry.parameter.layout != torch.strided:
            raise ValueError(f"{entry.name} is sparse, and only dense weights can be projected: exclude={entry.name!r}")
        strides = zip(entry.parameter.stride(), entry.parameter.shape, strict=True)
        if any(stride == 0 < size - 1 for stride, size in strides):
            raise ValueError(f"{entry.name} is expanded, many numbers in one place of memory: clone() it")


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
