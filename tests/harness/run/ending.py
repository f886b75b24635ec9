"""`python -m tests.harness.run.ending RUNS`: what the one run below RUNS ended with, as ckpt-chaos compares it."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from tests.programs import CLOCKS, final_state, only_run, rows


def flat(state: Any) -> str:
    """A nested state as text, tensors by their bytes, without clocks."""
    if isinstance(state, torch.Tensor):
        return hashlib.sha256(state.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(state, dict):
        return str({key: flat(value) for key, value in state.items() if key not in (*CLOCKS, "origin")})
    if isinstance(state, (list, tuple)):
        return str([flat(value) for value in state])
    return repr(state)


if __name__ == "__main__":
    run = only_run(Path(sys.argv[1]))
    ended = [rows(run), flat(final_state(run)), (run / "DONE").exists()]
    print(hashlib.sha256(repr(ended).encode()).hexdigest())
