"""Reinforcement learning: DQN on Atari and classic control, SAC on continuous control, and playing trained agents."""
