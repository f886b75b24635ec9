"""Full reset: every phase starts from initial weights, those of the start of the run or of a newly built network."""

from typing import Annotated

from fire_core.methods.protocol import Context, Method, Net, Weights
from fire_core.ranges import checked, one_of
from fire_core.weights.optimizer_state import reset_optimizer_state


class FullReset(Method):
    """Weights and buffers (batch-norm statistics too) back to initial ones; the optimizer forgets all of them.

    Args:
        weights: initial: those at the start of the run, the same at each boundary. new: those of a network that is
            built anew at each boundary, as the program builds it at the start, from a seed of the run and the boundary.
    """

    @checked
    def __init__(self, weights: Annotated[str, one_of("initial", "new")] = "initial") -> None:
        self.weights = weights
        self.builds_networks = weights == "new"

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        start = net.init if self.weights == "initial" else new_weights(context)
        for name, module in net.modules.items():
            named = module.named_parameters(remove_duplicate=False)
            spared = {key: p.detach() for key, p in named if p in context.spared}
            module.load_state_dict(start[name] | spared)  # copies in place: ties and optimizer references stay
        reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {}


def new_weights(context: Context) -> dict[str, Weights]:
    """The weights and buffers of newly built networks.

    Raises:
        ValueError: the trainer cannot build networks.
    """
    if context.new_networks is None:
        raise ValueError(
            "weights=new needs newly built networks, which this trainer does not give: take weights=initial"
        )
    return context.new_networks()
