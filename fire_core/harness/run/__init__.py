"""A run: its folder, lock, checkpoints, shared first phase, tracker."""
