"""DQN on Atari (figure 4a of the paper): `python -m rl.dqn`."""
