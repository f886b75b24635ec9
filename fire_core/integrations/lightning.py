"""FIRE, or another method, in Lightning's Trainer.

    Trainer(callbacks=[FireCallback(Plateau("loss"), solver="exact"), EMAWeightAveraging()])

Needs, in a clone, `pip install -e ".[lightning]"`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fire_core.integrations.intervention import Intervention
from fire_core.triggers.trigger import Trigger


class FireCallback(Callback):
    """Asks the trigger after each optimizer step (`trainer.global_step`), and acts where it fires, on all ranks.

    `Plateau("loss")` follows what `training_step` returns. Other names are those of `self.log`; each is read once after
    it has been logged, at the end of a validation or of a training epoch. The averaged models of `WeightAveraging`
    (EMA) and `StochasticWeightAveraging` are found and get the changed weights too. State goes into Lightning's
    checkpoints, numbers to its loggers.

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
        self._received_metrics = {"loss"}  # names of which there was a value
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check everything, and find the averaged models."""
        self._loggers = trainer.loggers
        averaged = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
        total = trainer.estimated_stepping_batches
        self.intervention.begin(
            {"model": pl_module},
            trainer.optimizers,
            {"model": [model for model in averaged if isinstance(model, nn.Module)]},
            metrics={"loss", *self.intervention.trigger.needs()},  # other names are checked when an epoch has ended
            total_steps=int(total) if total < float("inf") else None,
            log=self._write,
        )
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ask the trigger, if the batch made an optimizer step."""
        if trainer.global_step == self._step:
            return  # gradients are being accumulated
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.intervention.ask(self._step, **({"loss": loss} if isinstance(loss, Tensor) else {}))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass the metrics that the trigger follows on to it."""
        if not trainer.sanity_checking:
            self._observe(trainer, self.intervention.trigger.needs() - {"loss"})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pass on the metrics that no validation has logged; raise a ValueError for one that nothing has logged."""
        needs = self.intervention.trigger.needs()
        self._observe(trainer, needs - self._received_metrics)
        if missing := needs - self._received_metrics:
            given = ", ".join(["loss", *map(str, trainer.callback_metrics)])
            raise ValueError(f"Plateau: there is no metric {missing.pop()!r}; metrics of this run: {given}")

    def _observe(self, trainer: Trainer, names: set[str]) -> None:
        """Give the trigger the last values of these metrics, as far as the trainer has them."""
        metrics = {name: trainer.callback_metrics[name] for name in names & trainer.callback_metrics.keys()}
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
