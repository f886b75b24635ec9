"""FIRE, or another method, in stable-baselines3: DQN, SAC, TD3, PPO, and others that are built like them.

    model.learn(100_000, callback=FireCallback(At(50_000)))

Needs, in a clone, `pip install -e ".[stable-baselines3]"`.
"""

from __future__ import annotations

import fnmatch
from functools import reduce
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.utils import safe_mean

from fire_core.integrations.copies import named_weights
from fire_core.integrations.intervention import Intervention
from fire_core.integrations.keep import Keep
from fire_core.triggers.trigger import Trigger

# Weights that are kept by default: PPO's and A2C's action layer is initialised small (gain 0.01), which FIRE would
# undo; log_std is a layer in SAC, and a parameter elsewhere.
KEEP = ("*action_net*", "*log_std*")
EPISODES = {"rollout/ep_rew_mean": "r", "rollout/ep_len_mean": "l"}  # metric -> key in an episode's info
# A metric is missed when others have been logged so often: TD3's losses are not all in the logger at each rollout.
TIMES_LOGGED = 10
ATTRIBUTE = "fire_state"  # attribute of the model that holds the state, so that model.save() saves it; see _attribute


class FireCallback(BaseCallback):
    """Asks the trigger between two rollouts, and acts where it fires; steps are the model's `num_timesteps`.

    The method acts on all trained networks, and the state of the weights that it changes is reset in all optimizers.
    Target networks get the changed weights too.
    State goes into `model.save()`, numbers to the model's logger. `Plateau` can follow `rollout/ep_rew_mean`
    (`mode="max"`), `rollout/ep_len_mean` and the logger's `train/...`.

    Args:
        trigger: says when to act.
        keep: selectors of weights to keep as they are. None keeps a policy's small action layer and its `log_std`,
            where it has them; () keeps none.
        options: options of `Intervention` (`method`, `copies`, ...) and of `fire_`.
    """

    def __init__(self, trigger: Trigger, *, keep: Keep | None = None, **options: Any) -> None:
        super().__init__()
        self.intervention = Intervention(trigger, keep=() if keep is None else keep, **options)
        self._default_keep = keep is None

    def _on_training_start(self) -> None:
        """Find the model's networks, targets and optimizers, check everything, and restore the state of a loaded model.

        Raises:
            ValueError: see `Intervention`.
        """
        names = [name for name in self.model.get_parameters() if name.endswith("optimizer")]
        optimizers = [reduce(getattr, name.split("."), self.model) for name in names]
        children = dict(self.model.policy.named_children())
        pairs = {name: children[f"{name}_target"] for name in children if f"{name}_target" in children}
        modules = {name: children[name] for name in pairs} or {"policy": self.model.policy}
        if "actor" in children:  # SAC's actor has no target network
            modules["actor"] = children["actor"]
        if self._default_keep:
            names = [name for module in modules.values() for name in named_weights(module)]
            self.intervention.keep = [pattern for pattern in KEEP if fnmatch.filter(names, pattern)]
        copies = {name: [target] for name, target in pairs.items()}
        train_metrics = {name for name in self.intervention.trigger.needs() if name.startswith("train/")}
        total = self.locals["total_timesteps"]
        self.intervention.begin(modules, optimizers, copies, [*EPISODES, *train_metrics], total, self._write)
        attribute = self._attribute()
        saved = getattr(self.model, attribute, None)
        if isinstance(saved, dict) and self.model.num_timesteps:
            self.intervention.load_state_dict(saved)
        if self.intervention.trigger.last is None:
            # The trigger is only asked between rollouts: what is due within the first one counts at its end.
            self.intervention.trigger.last = self.model.num_timesteps
        setattr(self.model, attribute, PickledState(self.intervention))

    def _attribute(self) -> str:
        """Return the model's attribute for this callback's state: fire_state, fire_state_2, ... in their order."""
        place = next((i for i, each in enumerate(_fire_callbacks(self.locals["callback"])) if each is self), 0)
        return ATTRIBUTE if place == 0 else f"{ATTRIBUTE}_{place + 1}"

    def _on_rollout_start(self) -> None:
        """Ask the trigger with the means over the last episodes and with what the logger holds of training."""
        step = self.model.num_timesteps
        if step == 0:
            return  # nothing is trained yet
        episodes = self.model.ep_info_buffer or ()
        means = {name: safe_mean([info[key] for info in episodes]) for name, key in EPISODES.items() if episodes}
        logged = {name: value for name, value in self.logger.name_to_value.items() if name.startswith("train/")}
        self.intervention.warn_if_missing(logged, "train/", TIMES_LOGGED)
        self.intervention.ask(step, **means, **logged)

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        """Hand the numbers of an action to the model's logger, which writes them with its next line."""
        for name, value in numbers.items():
            self.logger.record(name, value)

    def _on_step(self) -> bool:
        """Return true, so that the rollout goes on; the base class demands the method."""
        return True


def _fire_callbacks(callback: BaseCallback) -> list[FireCallback]:
    """Return the callbacks of this kind in the callback of a run, which may be a list of others."""
    if isinstance(callback, CallbackList):
        return [each for part in callback.callbacks for each in _fire_callbacks(part)]
    return [callback] if isinstance(callback, FireCallback) else []


class PickledState:
    """A stand-in for an intervention that is pickled as the plain dict of its state at that moment."""

    def __init__(self, intervention: Intervention) -> None:
        self.intervention = intervention

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (self.intervention.state_dict(),)
