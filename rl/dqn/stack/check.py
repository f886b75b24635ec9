"""Whether runs can be trained at once."""

from collections.abc import Sequence

from fire_core.harness.stacked.method import can_act_at_once
from fire_core.harness.stacked.network import StackedNetworks, shares_weights
from rl.common.stack import thrown_away
from rl.dqn.learner import Learner
from rl.dqn.quick import acts_on_steps, takes_quick_steps
from rl.dqn.task import Task


def why_not(tasks: Sequence[Task]) -> str | None:
    """Why these runs cannot be trained at once; None if they can."""
    task, config = tasks[0], tasks[0].config
    if not takes_quick_steps(task) or task.replay_device.type != "cpu":
        return "it needs device=cpu, compile=off and precision=float32"
    if task.trigger is not None and acts_on_steps(task.method):
        return f"with trigger={config.trigger['name']} what method={config.method['name']} keeps differs between seeds"
    if config.env.get("sticky") or config.env.get("life_loss"):
        return f"env={config.env['name']} repeats actions or counts lives"
    if config.num_envs != 1 or config.exploration != "each":
        return "it needs num_envs=1 and exploration=each"
    if task.stack != 1 or not task.dtype.is_floating_point:
        return f"env={config.env['name']} shows images"
    if task.method.overrides("reshape"):
        return f"method={config.method['name']} puts new modules into the network"
    with thrown_away(Learner.new(task)) as learner:
        if shares_weights(learner.q):
            return f"layers of model={config.model['name']} share weights"
        networks = StackedNetworks([learner.q])
        if networks.layers is None:
            return f"model={config.model['name']} is no plain perceptron"
        if not can_act_at_once(learner.method, networks):
            if task.method.overrides("optimizer"):
                return f"method={config.method['name']} brings an optimizer of its own"
            with learner.method.watch(learner.net):
                if any(m._forward_hooks or m._forward_pre_hooks for m in learner.q.modules()):
                    return f"method={config.method['name']} looks at activations in each pass"
    return None
