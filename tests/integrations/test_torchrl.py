"""FireHook in TorchRL's own Trainer: DQN on CartPole."""

import shutil
from pathlib import Path

import pytest
import torch

from fire_core.methods.snp import ShrinkAndPerturb
from fire_core.triggers import At, Every, Plateau, Trigger
from tests.integrations.digits import isometric

pytest.importorskip("torchrl")
pytestmark = pytest.mark.filterwarnings("ignore")


def build(trigger: Trigger, folder: Path, frames: int = 400, hooked: bool = True, **options: object):
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate
    from torchrl.record import CSVLogger
    from torchrl.trainers import ReplayBufferTrainer, Trainer

    from fire_core.integrations.torchrl import FireHook

    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    net = MLP(in_features=4, out_features=2, num_cells=[24, 24])
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    loss = DQNLoss(actor, delay_value=True, action_space=env.action_spec)
    loss.make_value_estimator()
    trainer = Trainer(
        collector=Collector(env, actor, frames_per_batch=40, total_frames=frames),
        total_frames=frames, frame_skip=1, optim_steps_per_batch=3, loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-4), logger=CSVLogger("run", str(folder)), progress_bar=False,
        log_interval=1, save_trainer_interval=10**9, save_trainer_file=str(folder / "trainer.pt"),
    )  # fmt: skip
    buffer = ReplayBufferTrainer(
        ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=16), batch_size=16, flatten_tensordicts=True
    )
    buffer.register(trainer)
    hook = FireHook(actor, trigger, **options)
    seen: list[tuple[bool, bool, int]] = []

    def see() -> None:
        target = [b for name, b in loss.named_buffers() if name.endswith("weight")]
        from tests.integrations.digits import deviation

        seen.append((all(isometric(actor)), all(deviation(t) < 1e-3 for t in target), len(trainer.optimizer.state)))

    if hooked:
        hook.register(trainer)
    trainer.register_op("post_optim", see)
    updater = SoftUpdate(loss, eps=0.999)
    trainer.register_op("post_optim", updater.step)
    return trainer, hook, actor, seen


def test_it_fires_after_the_right_steps_the_target_follows_and_numbers_are_logged(tmp_path):
    trainer, _, _, seen = build(Every(10), tmp_path, solver="exact")
    trainer.train()
    assert [step for step, (model, _, _) in enumerate(seen, start=1) if model] == [10, 20, 30]
    assert [step for step, (_, target, _) in enumerate(seen, start=1) if target and seen[step - 1][0]] == [10, 20, 30]
    assert [states for _, _, states in seen[8:11]] == [6, 3, 6]
    rows = Path(tmp_path, "run", "scalars", "fire/dfi_after.csv").read_text().splitlines()
    assert [float(row.split(",")[-1]) < 1e-6 for row in rows] == [True] * 3


def test_a_resumed_run_does_not_fire_again(tmp_path):
    def make() -> tuple:
        trigger = At([5, 14, 20]) | Plateau("loss", every=3, patience=2)
        return build(trigger, tmp_path, method=ShrinkAndPerturb())

    whole, hook, _, _ = make()
    counts = {}

    def save() -> None:
        if hook.step == 18:
            whole.save_trainer(force_save=True)
            shutil.copy(tmp_path / "trainer.pt", tmp_path / "step18.pt")  # the trainer overwrites its file at the end
            counts["saved"] = hook.intervention.firings

    whole.register_op("post_steps", save)
    whole.train()
    assert hook.step == 30
    assert 2 <= counts["saved"] < hook.intervention.firings
    resumed, again, _, _ = make()
    resumed.load_from_file(tmp_path / "step18.pt", weights_only=False)
    assert (again.step, again.intervention.firings) == (18, counts["saved"])
    before = [value.clone() for value in again.intervention.init["model"].values()]
    again()
    assert (again.step, again.intervention.trigger.last, again.intervention.firings) == (19, 19, counts["saved"])
    again()
    assert again.intervention.firings == counts["saved"] + 1, "step 20"
    assert all(torch.equal(a, b) for a, b in zip(before, hook.intervention.init["model"].values(), strict=True))
