"""Full reset: every phase starts from initial weights, those of the start of the run or of a newly built network."""

from typing import Annotated

from torch import Tensor

from fire_core.methods.protocol import Context, Method, Net, Weights, load_tensors
from fire_core.ranges import checked, one_of
from fire_core.weights.optimizer_state import reset_optimizer_state


class FullReset(Method):
    """Set all weights and buffers (batch-norm statistics too) back to initial ones, and reset the optimizer's state.

    Frozen weights stay, and so does what modules keep beside them (`get_extra_state`).

    Args:
        weights: `initial` takes those at the start of the run, the same at each boundary. `new` takes those of a
            network that is built anew at each boundary, as the program builds it at the start, from a seed of the run
            and the boundary.
    """

    @checked
    def __init__(self, weights: Annotated[str, one_of("initial", "new")] = "initial") -> None:
        self.weights = weights
        self.builds_networks = weights == "new"

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        protected = context.spared_or_frozen(net)
        reset_to = net.init if self.weights == "initial" else new_weights(context)
        with net.unchanged_on_error():
            for name, module in net.modules.items():
                weights = module.state_dict(keep_vars=True)  # whose names wrappers of `named_parameters` may change
                old = {key: p.detach() for key, p in weights.items() if isinstance(p, Tensor) and p in protected}
                load_tensors(module, reset_to[name] | old)  # in place: ties and optimizer references stay
        reset_optimizer_state(context.optimizers, net.parameters(protected))
        return {}


def new_weights(context: Context) -> dict[str, Weights]:
    """Return the weights and buffers of newly built networks, by the network's name.

    Raises:
        ValueError: the trainer cannot build networks.
    """
    if context.new_networks is None:
        raise ValueError(
            "weights=new needs newly built networks, which this trainer does not give: take weights=initial"
        )
    return context.new_networks()
