"""The four programs by name. The harness knows trainers by their names alone, and imports one when it is needed."""

import importlib
from typing import Any

from harness.run.execute import Program

MODULES = {"vision": "vision.train", "language": "language.train", "dqn": "rl.dqn.train", "sac": "rl.sac.train"}


def program_of(name: str) -> Program[Any]:
    """The program of a name; its module is imported here, which makes the types of its options known to Hydra."""
    program: Program[Any] = importlib.import_module(MODULES[name]).PROGRAM
    return program
