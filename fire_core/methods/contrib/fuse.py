"""Fusion with earlier weights, the first half of Rejuvenation (Liu, Liu, Wan, Fu and Pan, "When RL Fails after SFT:
Rejuvenating Model Plasticity for Robust SFT-to-RL Handoff", arXiv 2606.09932; its authors have published no code)."""

from pathlib import Path
from typing import Any

from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Decay, checked
from fire_core.reinit.perturb import shrink_and_perturb_
from fire_core.tools.checkpoint.source import load
from fire_core.tools.checkpoint.stored import CheckpointError
from fire_core.weights.optimizer_state import reset_optimizer_state
from fire_core.weights.topology import clean_name


class Fuse(Method):
    """Every parameter moves towards that of a base model: W <- keep W + (1 - keep) W_base.

    Biases, norms, embeddings and frozen weights too; buffers stay, and the optimizer forgets what it knows of all. The
    base is what training began from: the paper's is the model before its fine-tuning, `keep` its alpha. Without
    `weights` it is the run's own initial weights; then this is `snp` with `variant=fire_paper` and coef = 1 - keep.

    Args:
        keep: in [0, 1): the share of the trained weights that is kept. At 1 nothing would change.
        weights: of the base, a file of `torch.save` (a state_dict, or one for each network by its name), a .safetensors
            file, or a transformers folder; no code in it is run. None: the run's own initial weights.
    """

    @checked
    def __init__(self, keep: Decay = 0.5, weights: str | None = None) -> None:
        self.keep, self.weights = keep, weights

    def check(self, net: Net) -> None:
        if self.weights is not None:
            read_weights(self.weights, net)

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        base: Any = net.init if self.weights is None else read_weights(self.weights, net)
        for name, module in net.modules.items():
            shrink_and_perturb_(module, base[name], 1 - self.keep, context.spared)
        reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {}


def read_weights(path: str, net: Net) -> dict[str, dict[str, Tensor]]:
    """The parameters of each network that a file holds, by the network's name and their own.

    Args:
        path: of the file or folder.
        net: whose parameters they are to be. Their names in the file begin with the network's name, or, of a single
            network, may be bare.

    Raises:
        ValueError: it cannot be read, or a parameter is not in it, or has another shape.
    """
    try:
        stored = {clean_name(one.name): one.tensor for one in load(Path(path)).tensors}
        found: dict[str, dict[str, Tensor]] = {}
        for key, module in net.modules.items():
            shapes = {clean_name(name): tuple(p.shape) for name, p in module.named_parameters()}
            bare = len(net.modules) == 1 and not any(f"{key}.{name}" in stored for name in shapes)
            places = {name: name if bare else f"{key}.{name}" for name in shapes}
            for name, place in places.items():
                if place not in stored:
                    raise ValueError(f"weights={path} has no {place}")
                if stored[place].shape != shapes[name]:
                    raise ValueError(
                        f"weights={path}: {place} is {tuple(stored[place].shape)}, the network's {shapes[name]}"
                    )
            found[key] = {name: stored[place] for name, place in places.items()}
    except CheckpointError as error:
        raise ValueError(f"weights={path}: {error}") from error
    return found
