"""Whether runs can be trained at once."""

from collections.abc import Sequence

from rl.common.stack import thrown_away
from rl.sac.learner import Learner
from rl.sac.quick import quick_update
from rl.sac.task import Task


def why_not(tasks: Sequence[Task]) -> str | None:
    """Why these runs cannot be trained at once; None if they can."""
    task, config = tasks[0], tasks[0].config
    if task.device.type != "cpu" or task.compiles or config.precision != "float32":
        return "it needs device=cpu, compile=false and precision=float32"
    if config.num_envs != 1:
        return "it needs num_envs=1"
    if task.networks.kind != "mlp":
        return f"networks={config.networks['name']} are no plain perceptrons"
    if task.method.overrides("reshape"):
        return f"method={config.method['name']} puts new modules into the networks"
    with thrown_away(Learner.new(task)) as learner:
        learner.agent.penalty = None  # its gradients are added
        if quick_update(learner.agent) is None:
            return f"updates of networks={config.networks['name']} need autograd"
    return None
