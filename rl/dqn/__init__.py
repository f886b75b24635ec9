"""DQN on Atari, MinAtar and classic control: the program `python -m rl.dqn` and its parts."""
