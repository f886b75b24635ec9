"""One run: its identity, folder, lock, checkpoints, shared first phase and tracker."""

# The numerics of each program. Raise a program's number when a change moves any number that its training computes
# (tests/curves shows it): it is part of what a run and a shared first phase are, so that finished runs and caches of
# before are not reused. One for each program, so that a change of one leaves the runs of the others valid.
NUMERICS = {"vision": 6, "language": 6, "dqn": 7, "sac": 8}
