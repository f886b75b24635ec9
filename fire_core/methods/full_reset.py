"""Full reset: every phase starts from the initial weights."""

from fire_core.methods.protocol import Context, Method, Net
from fire_core.weights.optimizer_state import reset_optimizer_state


class FullReset(Method):
    """Weights and buffers (batch-norm statistics too) back to those at the start of the run."""

    def at_boundary(self, net: Net, context: Context) -> dict[str, float]:
        for name, module in net.modules.items():
            named = module.named_parameters(remove_duplicate=False)
            spared = {key: p.detach() for key, p in named if p in context.spared}
            module.load_state_dict(net.init[name] | spared)  # copies in place: ties and optimizer references stay
        reset_optimizer_state(context.optimizers, net.parameters(context.spared))
        return {}
