"""FIRE, or another method, in Lightning's Trainer.

    Trainer(callbacks=[FireCallback(Plateau("loss"), solver="exact"), EMAWeightAveraging()])

Needs `pip install "fire-plasticity[lightning]"`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fire_core.integrations.copies import Source, copies_of
from fire_core.integrations.intervention import Intervention
from fire_core.methods.protocol import Method
from fire_core.triggers.trigger import Trigger

log = logging.getLogger("fire_core")


class FireCallback(Callback):
    """Asks the trigger after each optimizer step (`trainer.global_step`), and acts where it fires, on all ranks.

    `Plateau("loss")` follows what `training_step` returns; other names are those of `self.log`, each taken once when it
    is new: after a validation or at the end of a training epoch. The averaged models of `WeightAveraging` (EMA) and
    `StochasticWeightAveraging` are found and follow. State goes into Lightning's checkpoints, numbers to its loggers.

    It acts when the batch ends that made the step, so before the validation of an epoch whose last step that is.
    `global_step` counts the steps of every optimizer: with manual optimization of two, `At(50)` is the 25th batch. For
    known moments between epochs call `fire_` in a hook of the module instead (docs/in_your_loop.md). Several can stand
    in one Trainer if they differ in trigger, method or options. Each `fit` of a new Trainer needs a new one.

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
        named = [] if method is None else [f"{type(method).__name__}({', '.join(plain(vars(method)))})"]
        given = [str(trigger), *named, *plain(options)]
        self._key = f"FireCallback[{', '.join(given)}]"
        self._copies, self._fresh, self._seen = copies_of(copies), dict[str, Tensor | float](), {"loss"}
        self._step = 0

    @property
    def state_key(self) -> str:
        """By trigger, method and options, so that several can stand in one Trainer."""
        return self._key

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

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Take the state that another key holds: of an older version, or of one with another trigger or options."""
        names = ("FireCallback", type(self).__qualname__)
        states = {key: value for key, value in checkpoint["callbacks"].items() if str(key).startswith(names)}
        mine = [callback for callback in trainer.callbacks if isinstance(callback, FireCallback)]
        if self.state_key in states:
            return  # Lightning gives it
        if len(mine) == len(states) == 1:
            self.load_state_dict(copy.deepcopy(next(iter(states.values()))))
        else:
            log.warning("the checkpoint has no state of %s, which starts anew; it has %s", self._key, list(states))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From Lightning's checkpoint."""
        self._fresh = dict(state_dict["fresh"])
        self._seen |= self._fresh.keys()
        self.intervention.load_state_dict(state_dict)


def plain(options: Mapping[str, Any]) -> list[str]:
    """The options that are numbers, words, lists or mappings of such, as `name=value`, in the order of their names."""
    given = {name: value for name, value in options.items() if not name.startswith("_") and is_plain(value)}
    return [f"{name}={value!r}" for name, value in sorted(given.items())]


def is_plain(value: object) -> bool:
    """Whether a value is printed the same in every process."""
    if isinstance(value, Mapping):
        return all(map(is_plain, [*value.keys(), *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, str | int | float)
