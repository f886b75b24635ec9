"""Checkpoints on disk: where each tensor's bytes lie, and which parameter of which model it is."""
