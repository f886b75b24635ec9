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

LOGGED = {"loss", "grad_norm", "learning_rate", "epoch"}  # names in each of the Trainer's log lines


class FireCallback(TrainerCallback, ExportableState):
    """Asks the trigger after each optimizer step (`state.global_step`), and acts where it fires, on all ranks.

    The Trainer gives callbacks None in place of an optimizer, because it makes its optimizer after them. So the
    callback must be given the trainer: call `bind(trainer)` before `trainer.train()`. `Plateau` can follow what the
    Trainer logs (`loss`, `grad_norm`, `eval_*`), when it logs it. State goes into `trainer_state.json` of each
    checkpoint, numbers to `trainer.log`. Leave `restore_callback_states_from_checkpoint` False: this callback restores
    its own state.

    Args:
        trigger: says when to act.
        options: options of `Intervention` (`method`, `copies`, `keep`, ...) and of `fire_`. If the method or the scale
            needs initial weights, they are those at `bind`.
    """

    def __init__(self, trigger: Trigger, **options: Any) -> None:
        self.intervention = Intervention(trigger, **options)
        self._numbers: dict[str, float] | None = None  # of an action, until the Trainer has counted its step
        self.trainer: Trainer | None = None

    def bind(self, trainer: Trainer) -> None:
        """Set the trainer whose optimizer is reset and whose log is written, and copy the initial weights if needed."""
        self.trainer = trainer
        self.intervention.init = None
        self.intervention.keep_initial({"model": trainer.model})

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check everything, and restore the state from a checkpoint if training is resumed.

        Raises:
            ValueError: `bind` was not called, or see `Intervention`.
        """
        trainer = self.trainer
        if trainer is None or trainer.optimizer is None:
            raise ValueError("the Trainer hands callbacks no optimizer: call callback.bind(trainer) before train()")
        names = LOGGED if args.logging_strategy != "no" else set[str]()
        if args.eval_strategy != "no":  # compute_metrics chooses these names, so they cannot be checked yet
            names |= {name for name in self.intervention.trigger.needs() if name.startswith("eval_")}
        self.intervention.begin(
            {"model": trainer.model},
            [trainer.optimizer],
            metrics=names,
            total_steps=state.max_steps,
            log=self._keep_numbers,
        )
        saved = self._saved_state(trainer, state)
        if state.global_step and saved:
            self.intervention.load_state_dict(json.loads(saved["attributes"]["saved"]))

    def _saved_state(self, trainer: Trainer, state: TrainerState) -> dict[str, Any] | None:
        """Return what `state` of this callback returned for the checkpoint that is resumed; None if it has nothing.

        The Trainer stores states by the name of the class: one state, or a list if there are several callbacks of this
        name. At each checkpoint it writes over the one state, and adds to the list. If there is nothing to write over,
        as in a checkpoint from before there was such a callback, it fails: there this gives it something.
        """
        name = type(self).__name__
        alike = [callback for callback in trainer.callback_handler.callbacks if type(callback).__name__ == name]
        stored = state.stateful_callbacks.get(name)
        if stored is None or (len(alike) > 1 and not isinstance(stored, list)):
            present = [callback.state() for callback in alike]
            state.stateful_callbacks[name] = present if len(alike) > 1 else present[0]
        states = [stored] if not isinstance(stored, list) else stored[-len(alike) :]
        place = alike.index(self)
        return states[place] if place < len(states) else None

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Ask the trigger here, while gradients are still there; the Trainer counts the step afterwards."""
        self.intervention.ask(state.global_step + 1)

    def _keep_numbers(self, step: int, numbers: dict[str, float]) -> None:
        """Keep the numbers of an action until the Trainer has counted its step."""
        self._numbers = numbers

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the numbers of an action, now that the Trainer has counted the step after which it was."""
        numbers, self._numbers = self._numbers, None
        if numbers is not None and self.trainer is not None:
            should_log = control.should_log
            self.trainer.log(numbers)
            control.should_log = should_log  # `log` clears it, as if the step's own line had been logged

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Give the trigger the numbers that the Trainer logs."""
        # A name that comes twice begins the second evaluation: all data sets of the first have been evaluated.
        self.intervention.warn_if_missing(logs or {}, "eval_", times=2)
        self.intervention.observe(
            **{name: value for name, value in (logs or {}).items() if isinstance(value, int | float)}
        )

    def state(self) -> dict[str, Any]:
        """Return the state for `trainer_state.json`: numbers and strings."""
        return {"args": {}, "attributes": {"saved": json.dumps(self.intervention.state_dict(weights=False))}}
