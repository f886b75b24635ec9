"""How much memory is left, so that a replay or a network that does not fit is refused before training."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from harness.config.errors import ConfigError

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # how much this container may take
COPIES = 3  # of each weight, at the least: itself, its initial value, its gradient


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Free memory of the machine (at most this container's limit) or of the GPU; None if the system is silent."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = list[int]()
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        free.append(int(CONTAINER.read_text()))
    return min(free, default=None)


def check_fits(option: str, capacity: int, bytes_each: float, device: torch.device | str, spare: float = 0.9) -> None:
    """Refuse a replay that does not fit.

    Args:
        option: which the user can lower.
        capacity: its value.
        bytes_each: memory of one transition.
        device: where it is to be.
        spare: share of the free memory that may be used.

    Raises:
        ConfigError: with the number that fits.
    """
    free = available_bytes(device)
    if free is not None and capacity * bytes_each > spare * free:
        fits = int(spare * free / bytes_each) // 1000 * 1000
        raise ConfigError(
            f"{option}={capacity} needs {capacity * bytes_each / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"free on {device}; {option}={fits} fits"
        )


def check_network_fits(option: str, make: Callable[[], nn.Module], device: torch.device) -> None:
    """Refuse a network whose weights alone are more than the free memory, before they are allocated.

    Args:
        option: that names the network, `model=mlp`.
        make: builds it; called with torch's meta device, where tensors have no memory. What cannot be built there is
            not estimated.
        device: where it is trained.

    Raises:
        ConfigError: with what it needs at the least.
    """
    try:
        with torch.device("meta"):
            network = make()
        weights = [tensor for tensor in network.parameters() if tensor.is_meta]
    except Exception:
        return
    count = sum(weight.numel() for weight in weights)
    need = COPIES * sum(weight.numel() * weight.element_size() for weight in weights)
    free = available_bytes(device)
    if free is not None and need > free:
        raise ConfigError(
            f"{option} has {count:,} weights, which need at least {need / 1e9:.0f} GB of memory in training; "
            f"{free / 1e9:.1f} GB are free on {device}"
        )
