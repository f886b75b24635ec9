"""FIRE and its rivals: restoring the plasticity of neural networks, in any PyTorch loop. It needs torch alone.

`plasticity_gap` measures whether plasticity is lost, `fire_` acts on a model, `fire_core.triggers` say when to act, and
`reset_optimizer_state` makes optimizers forget. `matrices` shows which matrices a model's weights hold, and
`muon_groups` trains them with Muon. The rivals are in `fire_core.methods`; `fire_core.integrations` act in the loops of
other frameworks, and each of its modules is imported by its name, because it needs its framework. The command `fire`
does the same for checkpoints on disk.
"""

from fire_core import triggers
from fire_core.diagnose import Diagnosis, should_reinitialize
from fire_core.errors import FireWarning
from fire_core.gap import PlasticityGap, plasticity_gap
from fire_core.metrics import dfi, sfe
from fire_core.muon.check import MuonProblem, MuonReport, check_muon
from fire_core.muon.dialects import gram_newton_schulz_groups, muonium_groups
from fire_core.muon.groups import muon_groups
from fire_core.muon.optimizer import SplitMuon
from fire_core.polar.factor import newton_schulz, polar_factor
from fire_core.reinit.fire import fire_
from fire_core.reinit.perturb import shrink_and_perturb_
from fire_core.reinit.report import Report
from fire_core.weights.entry import Entry as Matrix
from fire_core.weights.freshness import Freshness, assert_fresh, is_fresh
from fire_core.weights.layout import resolve
from fire_core.weights.matrices import Matrices, matrices
from fire_core.weights.optimizer_state import reset_optimizer_state

__version__ = "0.3.0"

__all__ = [
    "Diagnosis",
    "FireWarning",
    "Freshness",
    "Matrices",
    "Matrix",
    "MuonProblem",
    "MuonReport",
    "PlasticityGap",
    "Report",
    "SplitMuon",
    "__version__",
    "assert_fresh",
    "check_muon",
    "dfi",
    "fire_",
    "gram_newton_schulz_groups",
    "is_fresh",
    "matrices",
    "muon_groups",
    "muonium_groups",
    "newton_schulz",
    "plasticity_gap",
    "polar_factor",
    "reset_optimizer_state",
    "resolve",
    "sfe",
    "should_reinitialize",
    "shrink_and_perturb_",
    "triggers",
]
