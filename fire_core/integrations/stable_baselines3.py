"""FIRE, or another method, in stable-baselines3: DQN, SAC, TD3, PPO, and others that are built like them.

    model.learn(100_000, callback=FireCallback(At(50_000)))

Needs, in a clone, `pip install -e ".[stable-baselines3]"`.
"""

from __future__ import annotations

import fnmatch
from functools import reduce
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import safe_mean

from fire_core.integrations.copies import named_weights
from fire_core.integrations.intervention import Intervention
from fire_core.integrations.keep import Keep
from fire_core.triggers.trigger import Trigger

# PPO's and A2C's layer of actions begins small (gain 0.01), which FIRE would undo; log_std is a layer in SAC.
KEEP = ("*action_net*", "*log_std*")
EPISODES = {"rollout/ep_rew_mean": "r", "rollout/ep_len_mean": "l"}
ATTRIBUTE = "fire_state"  # of the model, so that model.save() takes it along


class FireCallback(BaseCallback):
    """Asks the trigger between two rollouts, and acts where it fires; steps are the model's `num_timesteps`.

    All trained networks take part, with all optimizers. Target networks follow: they take over what the method changed.
    State goes into `model.save()`, numbers to the model's logger. `Plateau` follows `rollout/ep_rew_mean`
    (`mode="max"`), `rollout/ep_len_mean` and the logger's `train/...`.

    Args:
        trigger: when to act.
        keep: selectors of weights to leave alone; None: the small head of a policy and its `log_std`, where there are
            such; () leaves none alone.
        options: of `Intervention` (`method`, `copies`, ...) and of `fire_`.
    """

    def __init__(self, trigger: Trigger, *, keep: Keep | None = None, **options: Any) -> None:
        super().__init__()
        self.intervention = Intervention(trigger, keep=() if keep is None else keep, **options)
        self._default_keep = keep is None

    def _on_training_start(self) -> None:
        names = [name for name in self.model.get_parameters() if name.endswith("optimizer")]
        optimizers = [reduce(getattr, name.split("."), self.model) for name in names]
        children = dict(self.model.policy.named_children())
        pairs = {name: children[f"{name}_target"] for name in children if f"{name}_target" in children}
        modules = {name: children[name] for name in pairs} or {"policy": self.model.policy}
        if "actor" in children:  # SAC's has no target
            modules["actor"] = children["actor"]
        if self._default_keep:
            names = [name for module in modules.values() for name in named_weights(module)]
            self.intervention.keep = [pattern for pattern in KEEP if fnmatch.filter(names, pattern)]
        copies = {name: [target] for name, target in pairs.items()}
        train = {name for name in self.intervention.trigger.needs() if name.startswith("train/")}
        total = self.locals["total_timesteps"]
        self.intervention.begin(modules, optimizers, copies, [*EPISODES, *train], total, self._write)
        saved = getattr(self.model, ATTRIBUTE, None)
        if isinstance(saved, dict) and self.model.num_timesteps:
            self.intervention.load_state_dict(saved)
        if self.intervention.trigger.last is None:  # steps are asked about between rollouts alone
            self.intervention.trigger.last = self.model.num_timesteps
        setattr(self.model, ATTRIBUTE, Saved(self.intervention))

    def _on_rollout_start(self) -> None:
        step = self.model.num_timesteps
        if step == 0:
            return  # nothing is trained yet
        episodes = self.model.ep_info_buffer or ()
        means = {name: safe_mean([info[key] for info in episodes]) for name, key in EPISODES.items() if episodes}
        logged = {name: value for name, value in self.logger.name_to_value.items() if name.startswith("train/")}
        self.intervention.ask(step, **means, **logged)

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self.logger.record(name, value)

    def _on_step(self) -> bool:
        return True


class Saved:
    """The state of an intervention when the model is pickled, as a plain dict."""

    def __init__(self, intervention: Intervention) -> None:
        self.intervention = intervention

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (self.intervention.state_dict(),)
