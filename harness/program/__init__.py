"""A program from its command line to its exit: help, sweeps, one job, one run, and errors in one line."""
