"""FIRE in the middle of a DQN run, target network included. Needs pip install -e ".[stable-baselines3]"."""

from stable_baselines3 import DQN

from fire_core.integrations.stable_baselines3 import FireCallback
from fire_core.triggers import At

model = DQN("MlpPolicy", "CartPole-v1", learning_starts=100, seed=0, device="cpu")
fire = FireCallback(At(1000), solver="exact")
model.learn(2000, callback=fire)
print(fire.intervention.report.weights["q_net"])
