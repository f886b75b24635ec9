"""The four programs by name.

The harness knows trainers by name alone and imports a trainer when it is needed, so that nothing here depends on them.
"""

import importlib
from typing import Any

from harness.program.execute import Program

MODULES = {"vision": "vision.train", "language": "language.train", "dqn": "rl.dqn.train", "sac": "rl.sac.train"}


def program_of(name: str) -> Program[Any]:
    """Return a program by its name. Importing its module makes the types of its options known to Hydra."""
    program: Program[Any] = importlib.import_module(MODULES[name]).PROGRAM
    return program
