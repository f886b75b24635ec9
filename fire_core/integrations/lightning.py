"""FIRE, or another method, in Lightning's Trainer.

    Trainer(callbacks=[FireCallback(Plateau("loss"), solver="exact"), EMAWeightAveraging()])

Needs `pip install "fire-plasticity[lightning]"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fire_core.integrations.copies import Source
from fire_core.integrations.intervention import Intervention
from fire_core.methods.protocol import Method
from fire_core.triggers.trigger import Trigger


class FireCallback(Callback):
    """Asks the trigger after each optimizer step (`trainer.global_step`), and acts where it fires, on all ranks.

    `Plateau("loss")` follows what `training_step` returns; other names are those of `self.log`, each taken once when it
    is new: after a validation or at the end of a training epoch. The averaged models of `WeightAveraging` (EMA) and
    `StochasticWeightAveraging` are found and follow. State goes into Lightning's checkpoints, numbers to its loggers.

    Args:
        trigger: when to act.
        method: any method that acts at a boundary; None: `fire_` with `options`.
        copies: further averaged or target models, which take over every weight that the method changes.
        options: of `Intervention` (`trainable_only`, `keep`, `batches`, `loss`, `seed`) and of `fire_`.
    """

    def __init__(
        self, trigger: Trigger, *, method: Method | None = None, copies: Sequence[Source] = (), **options: Any
    ) -> None:
        self.intervention = Intervention(trigger, method, **options)
        self._copies, self._fresh, self._seen = copies, dict[str, Tensor | float](), {"loss"}
        self._step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check everything, and find the averaged models."""
        self._loggers = trainer.loggers
        averaged = [getattr(callback, "_average_model", None) for callback in trainer.callbacks]
        copies = [*self._copies, *(model for model in averaged if isinstance(model, nn.Module))]
        total = trainer.estimated_stepping_batches
        self.intervention.begin(
            {"model": pl_module},
            trainer.optimizers,
            {"model": copies},
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
        fresh, self._fresh = self._fresh, {}
        self.intervention.ask(self._step, **({"loss": loss} if isinstance(loss, Tensor) else {}), **fresh)

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
        self._fresh |= {name: trainer.callback_metrics[name] for name in names & trainer.callback_metrics.keys()}
        self._seen |= self._fresh.keys()

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        for logger in self._loggers:
            logger.log_metrics(numbers, step)

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoint."""
        return self.intervention.state_dict() | {"fresh": {name: float(value) for name, value in self._fresh.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoint."""
        self._fresh = dict(state_dict["fresh"])
        self._seen |= self._fresh.keys()
        self.intervention.load_state_dict(state_dict)
