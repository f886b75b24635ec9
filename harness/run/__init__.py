"""One run: its identity, folder, lock, checkpoints, shared first phase and tracker."""

# The version of each program's numerics. Raise a program's version when a change moves any number that its training
# computes (tests/curves shows it). The version is part of the identity of a run and of a shared first phase, so runs
# and caches from before the change are not reused. Each program has its own, so that the runs of the others stay valid.
NUMERICS = {"vision": 6, "language": 8, "dqn": 8, "sac": 8}
