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

    `Plateau("loss")` follows what `training_step` returns; other names are those of `self.log`, each taken once when it
    is new: after a validation or at the end of a training epoch. The averaged models of `WeightAveraging` (EMA) and
    `StochasticWeightAveraging` are found and follow. State goes into Lightning's checkpoints, numbers to its loggers.

    It acts when the batch ends that made the step, so before the validation of an epoch whose last step that is.
    `global_step` counts the steps of every optimizer: with manual optimization of two, `At(50)` is the 25th batch. For
    known moments between epochs call `fire_` in a hook of the module instead (docs/in_your_loop.md). One stands in a
    Trainer; triggers combine by `|`. Each `fit` of a new Trainer needs a new one.

    Args:
        trigger: when to act.
        options: of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`.
    """

    def __init__(self, trigger: Trigger, **options: Any) -> None:
        self.intervention = Intervention(trigger, **options)
        self._seen, self._step = {"loss"}, 0

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
        """Ask, if the batch made a step."""
        if trainer.global_step == self._step:
            return  # gradients are being accumulated
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.intervention.ask(self._step, **({"loss": loss} if isinstance(loss, Tensor) else {}))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the new values of metrics."""
        if not trainer.sanity_checking:
            self._take(trainer, self.intervention.trigger.needs() - {"loss"})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take those that no validation gives; a name that nobody gives is an error."""
        needs = self.intervention.trigger.needs()
        self._take(trainer, needs - self._seen)
        if missing := needs - self._seen:
            given = ", ".join(["loss", *map(str, trainer.callback_metrics)])
            raise ValueError(f"Plateau: there is no metric {missing.pop()!r}; metrics of this run: {given}")

    def _take(self, trainer: Trainer, names: set[str]) -> None:
        found = {name: trainer.callback_metrics[name] for name in names & trainer.callback_metrics.keys()}
        self.intervention.observe(**found)
        self._seen |= found.keys()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for logger in self._loggers:
            logger.log_metrics(numbers, step)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint."""
        return self.intervention.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoint."""
        self.intervention.load_state_dict(state_dict)
        self._seen |= self.intervention.observed.keys()
