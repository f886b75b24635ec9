"""SWR, selective weight reinitialization (Hernandez-Garcia, Dohare, Luo and Sutton, "Reinitializing weights vs units
for maintaining plasticity in neural networks", CoLLAs 2025, arXiv 2508.00212; public code:
JFernando4/collas_2025_swr_paper)."""

from typing import Annotated

import torch
from torch import Tensor, nn

from fire_core.methods.protocol import Context, Method, Net
from fire_core.ranges import Count, Decay, Positive, checked, one_of
from fire_core.units.recycle import generator_on, resample


class SelectiveWeightReinitialization(Method):
    """Every `every` steps, single weights of little utility get new values.

    A weight w with gradient g has, after the optimizer's step, the utility u = |g w| (gradient) or |w| (magnitude).
    With `decay` it is a running mean of that over all steps, u <- decay u + (1 - decay) |g w|. Of each parameter by
    itself, be it a matrix, a bias or a norm's scale, those weights are replaced
        whose u <= factor * mean(u) over the parameter               pruning=threshold
        which are the factor * n of its n weights with the least u   pruning=proportional
    and the part of a weight that is left over of a share is one more weight with that probability.

    A new value of a weight is drawn from the distribution of the parameter's own initial entries (`reinit=resample`),
    or is the mean of its initialiser (`reinit=mean`). A bias always gets that mean, as in the public code's
    perceptrons. The mean of a parameter that began with one value, as a norm's scales with 1, is this value; all others
    are taken to be symmetric about 0. A parameter of which weights were replaced begins its running mean anew. The
    optimizer keeps its state.

    An embedding has no gradient for a word that the batch does not hold, so that `utility=gradient` replaces all such
    rows; take magnitude there.

    Args:
        utility: gradient or magnitude.
        pruning: threshold or proportional.
        factor: of the mean utility (threshold), or the share of the weights, at most 1 (proportional).
        every: steps between two times.
        reinit: resample or mean, of all but biases.
        decay: of the running utility; 0 takes that of the step itself.
    """

    FIELDS = ("steps", "means")

    @checked
    def __init__(
        self,
        utility: Annotated[str, one_of("gradient", "magnitude")] = "gradient",
        pruning: Annotated[str, one_of("threshold", "proportional")] = "threshold",
        factor: Positive = 1e-5,
        every: Count = 2048,
        reinit: Annotated[str, one_of("resample", "mean")] = "resample",
        decay: Decay = 0.0,
    ) -> None:
        if pruning == "proportional" and factor > 1:
            raise ValueError(f"factor={factor} is a share of the weights with pruning=proportional: at most 1")
        self.utility, self.pruning, self.factor, self.every = utility, pruning, factor, every
        self.reinit, self.decay = reinit, decay
        self.steps = 0
        self.means: dict[str, Tensor] = {}

    @torch.no_grad()
    def after_step(self, net: Net, context: Context) -> None:
        self.steps += 1
        due = self.steps % self.every == 0
        if not due and self.decay == 0:
            return
        for name, parameter, gradient, initial in just_trained(net):
            u = (gradient * parameter if self.utility == "gradient" else parameter).abs()
            if self.decay > 0:
                u = self.means.setdefault(name, torch.zeros_like(u)).mul_(self.decay).add_(u, alpha=1 - self.decay)
            if due:
                useless = self._useless(u, context.generator)
                new = self._new(name, initial, context.generator)
                parameter.copy_(torch.where(useless, new, parameter))
                if self.decay > 0:
                    u.mul_(~useless.any())

    def _useless(self, utility: Tensor, generator: torch.Generator) -> Tensor:
        """Which weights are to be replaced, a mask of the parameter's shape."""
        if self.pruning == "threshold":
            return utility <= self.factor * utility.mean()
        share = self.factor * utility.numel()
        number = int(share) + int(torch.rand((), generator=generator, dtype=torch.float64) < share % 1)
        least = utility.flatten().topk(number, largest=False).indices
        mask = torch.zeros(utility.numel(), dtype=torch.bool, device=utility.device)
        return mask.index_fill_(0, least, True).view(utility.shape)

    def _new(self, name: str, initial: Tensor, generator: torch.Generator) -> Tensor:
        """New values for every weight of a parameter, of its shape."""
        is_bias = "bias" in name.rpartition(".")[2]  # in_proj_bias too
        if self.reinit == "resample" and not is_bias:
            return resample(initial, initial.shape, generator_on(initial.device, generator))
        return initial * (initial == initial.flatten()[0]).all()


def just_trained(net: Net) -> list[tuple[str, nn.Parameter, Tensor, Tensor]]:
    """Name, value, gradient and initial value of each parameter that the step has trained, shared ones once."""
    found: dict[nn.Parameter, tuple[str, nn.Parameter, Tensor, Tensor]] = {}
    for key, module in net.modules.items():
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and parameter.numel():
                initial = net.init[key][name].to(parameter)
                found.setdefault(parameter, (f"{key}.{name}", parameter, parameter.grad, initial))
    return list(found.values())
