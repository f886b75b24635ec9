"""How much memory is left, so that a replay that does not fit is refused before training."""

import contextlib
from pathlib import Path

import torch

from harness.config.errors import ConfigError

CONTAINER = Path("/sys/fs/cgroup/memory.max")  # how much this container may take


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
