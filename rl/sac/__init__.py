"""Soft actor-critic on continuous control: the program `python -m rl.sac` and its parts."""
