"""Fusion with earlier weights, the first half of Rejuvenation (Liu, Liu, Wan, Fu and Pan, "When RL Fails after SFT:
Rejuvenating Model Plasticity for Robust SFT-to-RL Handoff", arXiv 2606.09932; its authors have published no code)."""

from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.ranges import Decay, checked


class Fuse(ShrinkAndPerturb):
    """Move every parameter towards that of a base model: W <- keep W + (1 - keep) W_base.

    Biases, norms and embeddings move too; buffers and frozen weights stay, and the optimizer's state of all that moves
    is reset. The base is the run's own initial weights, so that this is `snp` with `variant=fire_paper` and
    coef = perturb = 1 - keep. In the paper the base is the model before its fine-tuning; to move towards other weights
    call `fire_core.shrink_and_perturb_`.

    Args:
        keep: the share of the trained weights that is kept, in [0, 1); the paper's alpha. At 1 nothing would change.
    """

    @checked
    def __init__(self, keep: Decay = 0.5) -> None:
        super().__init__(1 - keep, perturb=None, variant="fire_paper")
