"""FIRE in TorchRL's Trainer: DQN on CartPole. Needs pip install -e ".[torchrl]" and gymnasium."""

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate
from torchrl.trainers import ReplayBufferTrainer, TargetNetUpdaterHook, Trainer

from fire_core.integrations.torchrl import FireHook
from fire_core.triggers import Every

torch.manual_seed(0)
env = GymEnv("CartPole-v1")
network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
actor = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
loss = DQNLoss(actor, delay_value=True, action_space=env.action_spec)
trainer = Trainer(
    collector=Collector(env, actor, frames_per_batch=50, total_frames=1000),
    total_frames=1000,
    frame_skip=1,
    optim_steps_per_batch=5,
    loss_module=loss,
    optimizer=torch.optim.Adam(loss.parameters(), 1e-3),
    progress_bar=False,
)
buffer = ReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
ReplayBufferTrainer(buffer, batch_size=32, flatten_tensordicts=True).register(trainer)
fire = FireHook(actor, Every(50), solver="exact")
fire.register(trainer)  # finds the loss's target parameters
trainer.register_op("post_optim", TargetNetUpdaterHook(SoftUpdate(loss, eps=0.99)))
trainer.train()
print(fire.intervention.report.weights["model"])
