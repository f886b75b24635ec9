"""The life of a run: configuration, run folder, checkpoints, shared first phase, tracker, signals."""
