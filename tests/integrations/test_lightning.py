"""FireCallback in Lightning's own Trainer, on the digits."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fire_core.methods.full_reset import FullReset
from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.triggers import At, Every, Plateau
from tests.integrations.digits import isometric, loader, network

L = pytest.importorskip("lightning.pytorch")
callbacks = pytest.importorskip("lightning.pytorch.callbacks")
from fire_core.integrations.lightning import FireCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of small loaders and log steps


class Digits(L.LightningModule):
    """The network of the tests; it notes what it sees before each step."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: dict[int, tuple[bool, int]] = {}

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.seen[self.global_step] = all(isometric(self.net)), len(self.optimizers().state)
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_score", 0.5)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def trainer(folder: Path, *called: object, **options: object) -> "L.Trainer":
    given = {"max_epochs": 3, "num_sanity_val_steps": 0, "limit_val_batches": 0, **options}
    return L.Trainer(
        accelerator="cpu", devices=1, default_root_dir=folder, callbacks=list(called), enable_progress_bar=False,
        enable_model_summary=False, **given,
    )  # fmt: skip


def test_it_fires_after_the_right_steps_and_logs_through_lightnings_loggers(tmp_path):
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    model, logger, fire = Digits(), loggers.CSVLogger(tmp_path), FireCallback(Every(7), solver="exact")
    trainer(tmp_path, fire, logger=logger).fit(model, loader())
    table = str(fire.intervention.report)
    assert all(name in table for name, weight in model.named_parameters() if weight.ndim > 1), table
    assert [step for step, (fired, _) in model.seen.items() if fired] == [7, 14, 21, 28]
    assert model.seen[7][1] == 3
    assert model.seen[8][1] == 6
    logger.save()
    table = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    column = table[0].split(",").index("fire/dfi_after")
    assert [float(line.split(",")[column]) < 1e-6 for line in table[1:] if line.split(",")[column]] == [True] * 4


def test_steps_of_several_batches(tmp_path):
    model = Digits()
    callback = FireCallback(At(4), solver="exact")
    trainer(tmp_path, callback, accumulate_grad_batches=3, logger=False, max_epochs=2).fit(model, loader())
    assert [step for step, (fired, _) in model.seen.items() if fired] == [4]


def test_a_resumed_run_goes_on_as_one_that_was_not_interrupted(tmp_path):
    def run(epochs: int, resume: Path | None = None) -> tuple[Digits, FireCallback, "L.Trainer"]:
        torch.manual_seed(3)
        model = Digits()
        if resume is not None:
            nn.init.zeros_(model.net[0].weight)  # other initial weights: the checkpoint's count
        trigger = At([5, 12, 23]) | Plateau("loss", every=2, patience=4)
        callback = FireCallback(trigger, method=ShrinkAndPerturb())
        which = trainer(tmp_path, callback, max_epochs=epochs, logger=False)
        which.fit(model, loader(), ckpt_path=resume)
        return model, callback, which

    whole, callback, _ = run(3)
    assert callback.intervention.firings >= 3
    assert len(callback.intervention.fired) == callback.intervention.firings
    assert callback.intervention.fired[0].reason
    _, _, first = run(2)
    first.save_checkpoint(tmp_path / "end.ckpt")
    resumed, again, _ = run(3, tmp_path / "end.ckpt")
    assert again.intervention.firings == callback.intervention.firings
    moments = [[(firing.step, firing.trigger) for firing in c.intervention.fired] for c in (again, callback)]
    assert moments[0] == moments[1]
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize("first", [True, False])
def test_the_averaged_model_of_lightning_follows(tmp_path, first):
    """Whichever of the two callbacks comes first."""
    model, ema = Digits(), callbacks.EMAWeightAveraging(decay=0.99)
    order = [FireCallback(At(20), solver="exact"), ema]
    trainer(tmp_path, *(order if first else order[::-1]), logger=False, max_steps=24).fit(model, loader())
    assert all(isometric(model.net, 0.05)), "the averaged weights, which Lightning puts in at the end"


def test_plateau_of_a_metric_of_the_validation(tmp_path):
    model = Digits()
    callback = FireCallback(Plateau("val_score", every=1, patience=2, mode="max"), method=FullReset())
    trainer(tmp_path, callback, logger=False, limit_val_batches=1, max_epochs=5).fit(model, loader(), loader())
    assert callback.intervention.firings == 1, "taken once an epoch: seen first at step 11, then without gain at 21, 31"
    assert callback.intervention.trigger.begin == 31


class Read(Plateau):
    """Notes the values of its metric, each with the step at which it gets it."""

    def look(self, last, step, net, metrics):
        if metrics.get(self.metric) is not None:
            self.read = [*getattr(self, "read", []), (step, float(metrics[self.metric]))]
        return super().look(last, step, net, metrics)


class Logs(Digits):
    """Logs the number of the epoch, in training and in validation, ten batches each epoch."""

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        self.log("epoch_trained", float(self.current_epoch), on_step=False, on_epoch=True)
        return super().training_step(batch, index)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("epoch_tested", float(self.current_epoch))


@pytest.mark.parametrize(
    ("metric", "options", "read"),
    [
        ("epoch_trained", {"limit_val_batches": 0}, [(11, 0), (21, 1), (31, 2)]),
        ("epoch_trained", {"limit_val_batches": 1}, [(11, 0), (21, 1), (31, 2)]),
        ("epoch_tested", {"limit_val_batches": 1}, [(11, 0), (21, 1), (31, 2)]),
        ("epoch_tested", {"limit_val_batches": 1, "check_val_every_n_epoch": 2}, [(21, 1)]),
        ("epoch_tested", {"limit_val_batches": 1, "val_check_interval": 5}, [(6, 0), (11, 0), (16, 1), (21, 1)]),
    ],
)
def test_each_logged_metric_is_read_once_after_it_was_logged(tmp_path, metric, options, read):
    trigger = Read(metric, every=1, patience=9)
    trainer(tmp_path, FireCallback(trigger), logger=False, max_epochs=4, **options).fit(Logs(), loader(), loader())
    assert trigger.read[: len(read)] == read


class TwoOptimizers(Digits):
    """Manual optimization of two networks: two steps a batch, and a loss that is logged or not, but not returned."""

    def __init__(self, logs: bool) -> None:
        super().__init__()
        self.other, self.logs, self.automatic_optimization = network(), logs, False

    def training_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        for net, optimizer in zip((self.net, self.other), self.optimizers(), strict=True):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        if self.logs:
            self.log("loss", loss)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(self.net.parameters()), torch.optim.SGD(self.other.parameters(), lr=0.1)]


def test_manual_optimization_of_two_networks_counts_all_steps(tmp_path):
    fire = FireCallback(Every(20))
    run = trainer(tmp_path, fire, logger=False)
    run.fit(TwoOptimizers(logs=False), loader())
    assert run.global_step == 60, "twenty in each epoch of ten batches"
    assert [firing.step for firing in fire.intervention.fired] == [20, 40, 60]


def test_a_loss_that_is_not_returned_is_the_logged_one_or_an_error(tmp_path):
    trigger = Read("loss", every=1, patience=9)
    trainer(tmp_path, FireCallback(trigger), logger=False).fit(TwoOptimizers(logs=True), loader())
    assert [step for step, _ in trigger.read] == [22, 42], "two steps a batch, after epochs of twenty"
    with pytest.raises(ValueError, match="no metric 'loss'; metrics of this run: none"):
        trainer(tmp_path, FireCallback(Plateau("loss")), logger=False).fit(TwoOptimizers(logs=False), loader())


def test_data_without_a_length(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(list(loader().dataset))

    fire = FireCallback(At(5))
    trainer(tmp_path, fire, logger=False).fit(Digits(), torch.utils.data.DataLoader(Stream(), batch_size=64))
    assert [firing.step for firing in fire.intervention.fired] == [5]
