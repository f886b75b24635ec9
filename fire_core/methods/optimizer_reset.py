"""A reset of the optimizer alone: the control for methods that change weights and also reset the optimizer."""

from fire_core.methods.protocol import Context, Method, Net
from fire_core.weights.optimizer_state import reset_optimizer_state


class OptimizerReset(Method):
    """Reset the state of the optimizers (moments, momentum, step counters); weights and buffers stay, bit for bit.

    The next step is the first step of a new optimizer with the same settings. For an agent this holds for the
    optimizers of all its networks. Where a boundary brings a new optimizer anyway the method would do nothing, and
    programs refuse it there. The number of (optimizer, weight) states that were reset is logged as
    `boundary/optimizer_states_reset`; it is 0 for plain gradient descent, which has no state.
    """

    needs_kept_optimizer = True
    uses_initial_weights = False

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        states_reset = reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {"optimizer_states_reset": float(states_reset)}
