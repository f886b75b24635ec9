"""One run: its identity, folder, lock, checkpoints, shared first phase and tracker."""

# The numerics of all programs. Raise it when a change moves any number that training computes (tests/curves shows it):
# it is part of what a run and a shared first phase are, so that finished runs and caches of before are not reused.
NUMERICS = 4

PRUNED = "PRUNED"  # a file in a run folder: its checkpoints were removed on purpose
