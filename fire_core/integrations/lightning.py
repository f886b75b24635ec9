"""FIRE, or another method, in Lightning's Trainer.

    Trainer(callbacks=[FireCallback(Plateau("loss"), solver="exact"), EMAWeightAveraging()])

Needs, in a clone, `pip install -e ".[lightning]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fire_core.integrations.intervention import Intervention
from fire_core.triggers.trigger import Trigger


class FireCallback(Callback):
    """Asks the trigger after each optimizer step (`trainer.global_step`), and acts where it fires, on all ranks.

    `Plateau("loss")` follows what `training_step` returns. Other names, and `loss` if it returns none, are those of
    `self.log`: what a validation logs is read at its end, all else at the end of a training epoch. The averaged models
    of `WeightAveraging` (EMA) and `StochasticWeightAveraging` are found and get the changed weights too. State goes
    into Lightning's checkpoints, numbers to its loggers.

    The method acts at the end of the batch that made the step, so before the validation of an epoch that ends there.
    `global_step` counts the steps of every optimizer: with manual optimization of two, `At(50)` is the 25th batch. To
    act at known moments between epochs, call `fire_` in a hook of the module instead (docs/in_your_loop.md). A Trainer
    takes one such callback; combine triggers by `|`. Each `fit` of a new Trainer needs a new callback.

    Args:
        trigger: says when to act.
        options: options of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`.
    """

    def __init__(self, trigger: Trigger, **options: Any) -> None:
        self.intervention = Intervention(trigger, **options)
        self._received_metrics: set[str] = set()  # names of which there was a value
        self._validation_metrics: set[str] = set()  # names that a validation has logged
        self._before_validation: dict[str, Tensor] = {}  # the trainer's metrics before the present validation
        self._validated = False  # whether a validation has ended
        self._trained = False  # whether a batch was trained on
        self._returns_loss = False  # whether `training_step` returns a loss
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check everything, and find the averaged models."""
        self._loggers = trainer.loggers
        averaged = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
        self.intervention.begin(
            {"model": pl_module},
            trainer.optimizers,
            {"model": [model for model in averaged if isinstance(model, nn.Module)]},
            metrics={"loss", *self.intervention.trigger.needs()},  # names are checked when an epoch has ended
            total_steps=_total_steps(trainer, pl_module),
            log=self._write,
        )
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ask the trigger, if the batch made an optimizer step."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        metrics = {"loss": loss} if isinstance(loss, Tensor) else {}
        self._trained = True
        self._returns_loss |= bool(metrics)
        self._received_metrics |= metrics.keys()
        if trainer.global_step == self._step:
            return  # gradients are being accumulated
        self._step = trainer.global_step
        self.intervention.ask(self._step, **metrics)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the metrics of training, which the trainer goes on to show beside those of the validation."""
        self._before_validation = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass the metrics that the trigger follows and this validation has logged on to it."""
        if trainer.sanity_checking:
            return
        metrics, before = trainer.callback_metrics, self._before_validation
        logged = {name for name, value in metrics.items() if value is not before.get(name)}
        self._validated = True
        self._validation_metrics |= logged
        self._observe(trainer, logged)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on the metrics that no validation logs; raise a ValueError for one that nothing has logged."""
        self._observe(trainer, trainer.callback_metrics.keys() - self._validation_metrics)
        missing = self.intervention.trigger.needs() - self._received_metrics
        # A run that is resumed at an epoch's end has trained no batch yet, and a first validation may come later.
        if missing and self._trained and (self._validated or not trainer.enable_validation):
            given = ", ".join(map(str, dict.fromkeys([*self._received_metrics, *trainer.callback_metrics]))) or "none"
            name, trigger = missing.pop(), self.intervention.trigger
            raise ValueError(f"{trigger}: there is no metric {name!r}; metrics of this run: {given}")

    def _observe(self, trainer: Trainer, names: Set[str]) -> None:
        """Give the trigger the last values of those of these metrics that it follows."""
        followed = self.intervention.trigger.needs() - ({"loss"} if self._returns_loss else set())
        metrics = {name: trainer.callback_metrics[name] for name in names & followed}
        self.intervention.observe(**metrics)
        self._received_metrics |= metrics.keys()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        """Log the numbers of an action to all of the trainer's loggers."""
        for logger in self._loggers:
            logger.log_metrics(numbers, step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for Lightning's checkpoint."""
        return self.intervention.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state from Lightning's checkpoint."""
        self.intervention.load_state_dict(state_dict)
        self._received_metrics |= self.intervention.observed.keys()


def _total_steps(trainer: Trainer, pl_module: LightningModule) -> int | None:
    """Return the steps of the run, as `global_step` counts them; None if they are not known before it.

    The trainer estimates batches. With manual optimization a batch may make several steps, or none.
    """
    steps = trainer.estimated_stepping_batches if pl_module.automatic_optimization else trainer.max_steps
    return int(steps) if 0 <= steps < float("inf") else None  # -1: `max_steps` is not set
