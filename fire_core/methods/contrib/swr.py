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
    """Every `every` steps, give new values to single weights of little utility.

    A weight w with gradient g has, after the optimizer's step, the utility u = |g w| (gradient) or |w| (magnitude).
    With `decay` it is a running mean over all steps, u <- decay u + (1 - decay) |g w|. Each parameter (a matrix, a
    bias, a norm's scale) is treated by itself. With `pruning=threshold` its weights with u <= factor * mean(u) are
    replaced; with `pruning=proportional`, the factor * n of its n weights with the least u. If factor * n is not whole,
    its fraction is the probability that one weight more is replaced.

    The new value of a weight is drawn from the distribution of the parameter's own initial entries (`reinit=resample`),
    or is the mean of its initialiser (`reinit=mean`). A bias always gets that mean, as in the public code's
    perceptrons. If all initial entries of a parameter are equal, as a norm's scales are 1, that value is the mean; all
    other initialisers are taken to be symmetric about 0. If weights of a parameter were replaced, its running mean
    starts anew. The optimizer keeps its state.

    An embedding has no gradient for a word that the batch does not hold, so that `utility=gradient` replaces all such
    rows; take magnitude there.

    Args:
        utility: gradient or magnitude.
        pruning: threshold or proportional.
        factor: multiple of the mean utility (threshold), or share of the weights, at most 1 (proportional).
        every: steps between two replacements.
        reinit: resample or mean, for all parameters except biases.
        decay: decay factor of the running utility; 0 takes the utility of the step itself.
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
                new_values = self._new_values(name, initial, context.generator)
                parameter.copy_(torch.where(useless, new_values, parameter))
                if self.decay > 0:
                    u.mul_(~useless.any())  # the running mean starts anew if any weight was replaced

    def idle_reason(self) -> str:
        return "" if self.steps >= self.every else f"every={self.every} steps, of which it has seen {self.steps}"

    def _useless(self, utility: Tensor, generator: torch.Generator) -> Tensor:
        """Return which weights of a parameter are replaced, a mask of the shape of their utility."""
        if self.pruning == "threshold":
            return utility <= self.factor * utility.mean()
        expected = self.factor * utility.numel()
        number = int(expected) + int(torch.rand((), generator=generator, dtype=torch.float64) < expected % 1)
        least = utility.flatten().topk(number, largest=False).indices
        mask = torch.zeros(utility.numel(), dtype=torch.bool, device=utility.device)
        return mask.index_fill_(0, least, True).view(utility.shape)

    def _new_values(self, name: str, initial: Tensor, generator: torch.Generator) -> Tensor:
        """Return new values for every weight of a parameter, a tensor of the shape of its initial value."""
        is_bias = "bias" in name.rpartition(".")[2]  # matches in_proj_bias too
        if self.reinit == "resample" and not is_bias:
            return resample(initial, initial.shape, generator_on(initial.device, generator))
        is_constant = (initial == initial.flatten()[0]).all()
        return initial * is_constant  # the mean: the constant itself, or 0


def just_trained(net: Net) -> list[tuple[str, nn.Parameter, Tensor, Tensor]]:
    """Return name, parameter, gradient and initial value of each parameter that trains, shared ones once."""
    trained: dict[nn.Parameter, tuple[str, nn.Parameter, Tensor, Tensor]] = {}
    for key, module in net.modules.items():
        for name, parameter in module.named_parameters():
            if parameter.grad is not None and parameter.requires_grad and parameter.numel():
                initial = net.init[key][name].to(parameter)
                trained.setdefault(parameter, (f"{key}.{name}", parameter, parameter.grad, initial))
    return list(trained.values())
