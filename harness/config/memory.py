"""How much memory is free, so that a replay buffer that does not fit is refused before training."""

import contextlib
from pathlib import Path

import torch

from harness.config.errors import ConfigError

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")  # Linux writes the bytes that this container may use into it


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Return the free memory in bytes of the GPU or of the machine, at most this container's limit.

    None: the system does not say how much memory is free (no Linux).
    """
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    limits = list[int]()
    with contextlib.suppress(OSError, KeyError, ValueError):
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        limits.append(int(lines["MemAvailable"].split()[0]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # there is no such file, or it says "max"
        limits.append(int(CONTAINER_LIMIT.read_text()))
    return min(limits, default=None)


def check_fits(
    option: str, capacity: int, bytes_each: float, device: torch.device | str, usable_share: float = 0.9
) -> None:
    """Refuse a replay buffer that does not fit into the free memory.

    Args:
        option: name of the option for the buffer's capacity, which the user can lower.
        capacity: number of transitions in the buffer, the value of that option.
        bytes_each: bytes of one transition.
        device: the device that will hold the buffer.
        usable_share: share of the free memory that the buffer may use, in (0, 1].

    Raises:
        ConfigError: the buffer does not fit; the message names a capacity that does.
    """
    free = available_bytes(device)
    if free is not None and capacity * bytes_each > usable_share * free:
        fits = int(usable_share * free / bytes_each)
        fits -= fits % 1000 if fits >= 1000 else 0
        raise ConfigError(
            f"{option}={capacity} needs {capacity * bytes_each / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are "
            f"free on {device}; {option}={fits} fits"
        )
