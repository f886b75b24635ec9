"""A reset of the optimizer alone: a control of methods that reset it beside what they do to weights."""

from fire_core.methods.protocol import Context, Method, Net
from fire_core.weights.optimizer_state import reset_optimizer_state


class OptimizerReset(Method):
    """The optimizers forget what they know of the weights; weights and buffers stay as they are, bit for bit.

    The next step is the first step of a new optimizer with the same settings (moments, momentum, step counters). Of an
    agent these are the optimizers of all its networks. Where a boundary brings a new optimizer anyway the method would
    do nothing, and programs refuse it there. The log has how many (optimizer, weight) states were forgotten,
    `boundary/optimizer_states_reset`; of plain gradient descent, which has none, that is 0.
    """

    acts_on_optimizer_alone = True

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        forgotten = reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {"optimizer_states_reset": float(forgotten)}
