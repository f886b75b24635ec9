"""FIRE and its rivals: restoring the plasticity of neural networks. Importing this needs torch alone."""

from fire_core.metrics import dfi, sfe
from fire_core.polar.factor import newton_schulz, polar_factor
from fire_core.reinit.fire import fire_, shrink_and_perturb_
from fire_core.reinit.report import Report
from fire_core.weights.layout import resolve
from fire_core.weights.optimizer_state import reset_optimizer_state

__all__ = [
    "Report",
    "dfi",
    "fire_",
    "newton_schulz",
    "polar_factor",
    "reset_optimizer_state",
    "resolve",
    "sfe",
    "shrink_and_perturb_",
]
