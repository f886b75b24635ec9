"""Seeds that are derived from names, and the state of every global random generator."""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def derive(seed: int, *names: object) -> int:
    """Return a 63-bit seed for one purpose, such as `derive(0, "order", phase, epoch)`.

    Seeds by name, rather than draws from one stream, make a phase independent of what was drawn before it: after
    a resume, or started from a cache, it draws the same numbers.
    """
    text = "/".join(map(str, (seed, *names)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator seeded with `derive(seed, *names)`."""
    return torch.Generator().manual_seed(derive(seed, *names))


def seed_everything(seed: int) -> None:
    """Seed the global generators of python, numpy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  user models may draw from the legacy generator
    torch.manual_seed(seed)


@contextlib.contextmanager
def seeded(seed: int, *names: object) -> Iterator[None]:
    """Within this block the global generators are seeded with `derive(seed, *names)`; after it they are as before."""
    before = rng_state()
    seed_everything(derive(seed, *names))
    try:
        yield
    finally:
        set_rng_state(before)


def rng_state() -> dict[str, Any]:
    """Return the state of every global generator, in types that `torch.load(weights_only=True)` accepts."""
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), int(position), int(has_gauss), float(cached)),  # type: ignore[attr-defined]
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore every global generator to a state that `rng_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])
