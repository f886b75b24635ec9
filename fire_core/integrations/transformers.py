"""FIRE, or another method, in transformers' Trainer.

    fire = FireCallback(Every(1000), layout="qk")
    trainer = Trainer(model, args, callbacks=[fire], ...)
    fire.bind(trainer)
    trainer.train()

Needs, in a clone, `pip install -e ".[transformers]"`.
"""

from __future__ import annotations

import json
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from fire_core.integrations.intervention import Intervention
from fire_core.triggers.trigger import Trigger

LOGGED = {"loss", "grad_norm", "learning_rate", "epoch"}  # with each of the Trainer's log lines
NAME = "FireCallback"


class FireCallback(TrainerCallback, ExportableState):
    """Asks the trigger after each optimizer step (`state.global_step`), and acts where it fires, on all ranks.

    The Trainer makes its optimizer after it has made its list of callbacks and hands callbacks None in its place, so
    the callback must see the trainer: `bind(trainer)`, before `trainer.train()`. `Plateau` follows what the Trainer
    logs (`loss`, `grad_norm`, `eval_*`), when it logs it. State goes into `trainer_state.json` of each checkpoint,
    numbers to `trainer.log`. Leave `restore_callback_states_from_checkpoint` False: this callback restores itself.

    Args:
        trigger: when to act.
        options: of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`. Initial weights, where the method
            or the scale needs such, are those at `bind`.
    """

    def __init__(self, trigger: Trigger, **options: Any) -> None:
        self.intervention = Intervention(trigger, **options)
        self._numbers: dict[str, float] | None = None  # of an action, until the Trainer has counted its step
        self.trainer: Trainer | None = None

    def bind(self, trainer: Trainer) -> None:
        """Take the trainer whose optimizer is to be reset and whose log is to be written."""
        self.trainer = trainer
        self.intervention.init = None
        self.intervention.keep_initial({"model": trainer.model})

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check everything, and take the state of a checkpoint."""
        trainer = self.trainer
        if trainer is None or trainer.optimizer is None:
            raise ValueError("the Trainer hands callbacks no optimizer: call callback.bind(trainer) before train()")
        names = LOGGED if args.logging_strategy != "no" else set[str]()
        if args.eval_strategy != "no":  # names are those of compute_metrics, which nobody knows before
            names |= {name for name in self.intervention.trigger.needs() if name.startswith("eval_")}
        self.intervention.begin(
            {"model": trainer.model},
            [trainer.optimizer],
            metrics=names,
            total_steps=state.max_steps,
            log=self._note,
        )
        saved = state.stateful_callbacks.get(NAME)
        if state.global_step and saved:
            self.intervention.load_state_dict(json.loads(saved["attributes"]["saved"]))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask, while gradients are there; the Trainer counts the step afterwards."""
        self.intervention.ask(state.global_step + 1)

    def _note(self, step: int, numbers: dict[str, float]) -> None:
        self._numbers = numbers

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log an action, with the step after which it was."""
        numbers, self._numbers = self._numbers, None
        if numbers is not None and self.trainer is not None:
            due = control.should_log
            self.trainer.log(numbers)
            control.should_log = due  # `log` takes it for the step's own line, which is still to come

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Take what is logged."""
        self.intervention.observe(**{name: value for name, value in (logs or {}).items() if isinstance(value, float)})

    def state(self) -> dict[str, Any]:
        """For `trainer_state.json`: numbers and strings."""
        return {"args": {}, "attributes": {"saved": json.dumps(self.intervention.state_dict(weights=False))}}
