"""FireCallback in transformers' own Trainer, on the digits."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.errors import FireWarning
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.triggers import At, Every, Plateau
from tests.integrations.digits import Named, isometric, network

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from fire_core.integrations.transformers import FireCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Digits(nn.Module):
    """The network of the tests as a Trainer wants it; it notes what it sees before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: list[tuple[bool, int]] = []
        self.optimizer: list[torch.optim.Optimizer] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            states = len(self.optimizer[0].state) if self.optimizer else 0
            self.seen.append((all(isometric(self.net)), states))
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


def fit(folder, callback: FireCallback, *, resume=None, bind=True, model=None, **options):
    model = model or Digits()
    given = {"max_steps": 30, "logging_steps": 1, "save_strategy": "no", **options}
    given |= {"learning_rate": 3e-3, "lr_scheduler_type": "constant"}
    args = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=32, use_cpu=True, report_to=[], disable_tqdm=True, seed=1, **given
    )
    trainer = transformers.Trainer(model, args, train_dataset=Named(), eval_dataset=Named(), callbacks=[callback])
    if bind:
        callback.bind(trainer)
    trainer.add_callback(See(model, trainer))
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


class See(transformers.TrainerCallback):
    """Gives the model a look at the optimizer."""

    def __init__(self, model: Digits, trainer) -> None:
        self.model, self.trainer = model, trainer

    def on_train_begin(self, *_: object, **__: object) -> None:
        self.model.optimizer.append(self.trainer.optimizer)


def test_it_fires_after_the_right_steps_and_logs_through_the_trainer(tmp_path):
    model, trainer = fit(tmp_path, FireCallback(Every(7), solver="exact"))
    assert [step for step, (fired, _) in enumerate(model.seen) if fired] == [7, 14, 21, 28]
    assert model.seen[7][1] == 3
    assert model.seen[8][1] == 6
    rows = [row for row in trainer.state.log_history if "fire/dfi_after" in row]
    assert len(rows) == 4
    assert all(row["fire/dfi_after"] < 1e-6 for row in rows)
    assert [row["step"] for row in rows] == [7, 14, 21, 28]
    assert rows[0]["epoch"] == 0.7
    assert [row["step"] for row in trainer.state.log_history if "loss" in row] == list(range(1, 31)), "its own lines"


def test_steps_of_several_batches(tmp_path):
    model, _ = fit(tmp_path, FireCallback(At(4), solver="exact"), gradient_accumulation_steps=2, max_steps=6)
    assert [batch for batch, (fired, _) in enumerate(model.seen) if fired] == [8, 9]


def test_a_resumed_run_goes_on_as_one_that_was_not_interrupted(tmp_path):
    def run(steps: int, resume=None):
        callback = FireCallback(At([5, 12, 23]) | Plateau("loss", every=2, patience=4), method=ShrinkAndPerturb())
        model, _ = fit(tmp_path, callback, resume=resume, max_steps=steps, save_strategy="steps", save_steps=12)
        return model, callback

    whole, callback = run(30)
    assert callback.intervention.firings >= 3
    resumed, again = run(30, tmp_path / "checkpoint-12")
    assert again.intervention.firings == callback.intervention.firings == len(callback.intervention.fired)
    assert again.intervention.fired == callback.intervention.fired
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bind": False}, r"the Trainer hands callbacks no optimizer: call callback.bind\(trainer\) before train\(\)"),
        ({"max_steps": 5}, r"Every\(7\) .* cannot fire within 5 steps|cannot fire within 5 steps"),
        ({"trigger": Plateau("los", every=2)}, "there is no metric 'los'; metrics of this loop: .*loss"),
    ],
)
def test_what_is_refused_at_the_start(tmp_path, options, message):
    options = dict(options)
    callback = FireCallback(options.pop("trigger", Every(7)))
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, callback, **options)


def test_initial_weights_are_those_at_bind_also_for_a_scale():
    callback, model = FireCallback(At(10), scale="init_norm"), network()
    callback.bind(SimpleNamespace(model=model))
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.mul_(7)
    assert torch.equal(callback.intervention.init["model"]["0.weight"], start)


def evaluate_each_step(folder, callback: FireCallback, data=None) -> None:
    """Train for six steps, after each of which `eval_errors` is measured, on each of the data sets."""
    args = transformers.TrainingArguments(
        str(folder), max_steps=6, eval_strategy="steps", eval_steps=1, save_strategy="no", use_cpu=True,
        report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        Digits(), args, train_dataset=Named(), eval_dataset=data or Named(), callbacks=[callback],
        compute_metrics=lambda prediction: {"errors": 7},
    )  # fmt: skip
    callback.bind(trainer)
    trainer.train()


def test_a_metric_that_is_a_whole_number(tmp_path):
    callback = FireCallback(Plateau("eval_errors", every=1, patience=2))
    evaluate_each_step(tmp_path, callback)
    assert callback.intervention.fired[0].reason == "eval_errors 7 not below 7 for 2 x 1 steps"


def test_a_metric_of_evaluation_that_never_comes_is_told_once(tmp_path):
    with pytest.warns(FireWarning, match="waits for eval_error, which training does not log; .*eval_errors") as w:
        evaluate_each_step(tmp_path, FireCallback(Plateau("eval_error", every=1, patience=2)))
    assert len([each for each in w if each.category is FireWarning]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", FireWarning)
        callback = FireCallback(Plateau("eval_second_errors", every=1, patience=2))
        evaluate_each_step(tmp_path, callback, {"first": Named(), "second": Named()})


class Another(FireCallback):
    """A class of one's own."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: [Another(Every(4))],
        lambda: [FireCallback(Every(4)), FireCallback(At([3, 9]))],
        lambda: [FireCallback(Every(4)), Another(At([3, 9]))],
    ],
)
def test_several_callbacks_and_own_classes_resume_each_with_its_own_state(tmp_path, make):
    def run(resume=None) -> list[list[int]]:
        made = make()
        callback = made.pop()
        args = transformers.TrainingArguments(
            str(tmp_path), max_steps=12, save_strategy="steps", save_steps=3, per_device_train_batch_size=32,
            use_cpu=True, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(Digits(), args, train_dataset=Named(), callbacks=[*made, callback])
        for each in (*made, callback):
            each.bind(trainer)
        trainer.train(resume_from_checkpoint=resume)
        return [[firing.step for firing in each.intervention.fired] for each in (*made, callback)]

    moments = run()
    assert moments[-1] in ([4, 8], [3, 9]), "nothing fires at the last step"
    assert run(tmp_path / "checkpoint-6") == moments


def test_a_checkpoint_from_before_there_was_a_callback(tmp_path):
    args = {"save_strategy": "steps", "save_steps": 3, "use_cpu": True, "report_to": [], "disable_tqdm": True}
    first = transformers.TrainingArguments(str(tmp_path), max_steps=3, **args)
    transformers.Trainer(Digits(), first, train_dataset=Named()).train()
    callback = FireCallback(Every(2))
    fit(tmp_path, callback, resume=tmp_path / "checkpoint-3", max_steps=7, save_strategy="steps", save_steps=3)
    assert [firing.step for firing in callback.intervention.fired] == [4, 6]
