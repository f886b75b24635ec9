"""The code that both agents share: phases, boundaries, environments, checkpoints, the replay on disk."""
