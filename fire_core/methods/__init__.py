"""The methods, one file each, and the protocol between them and the trainers.

To add one, write a class derived from `Method` in a file here (or anywhere importable), a yaml in `conf/method/` that
names it in `_target_`, and a test. This module exports the protocol and the methods that act at a boundary, which
`fire_core.integrations` accept; all others are imported from their files. Rivals since 2023 that the figures of the
FIRE paper lack are in `contrib`.
"""

from fire_core.methods.chain import Chain
from fire_core.methods.contrib.fuse import Fuse
from fire_core.methods.dash import Dash
from fire_core.methods.fire import Fire
from fire_core.methods.full_reset import FullReset
from fire_core.methods.optimizer_reset import OptimizerReset
from fire_core.methods.protocol import BoundaryReport, Context, Method, Net
from fire_core.methods.random_isometry import RandomIsometry
from fire_core.methods.snp import ShrinkAndPerturb

__all__ = [
    "BoundaryReport",
    "Chain",
    "Context",
    "Dash",
    "Fire",
    "FullReset",
    "Fuse",
    "Method",
    "Net",
    "OptimizerReset",
    "RandomIsometry",
    "ShrinkAndPerturb",
]
