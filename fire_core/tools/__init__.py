"""Command line tools: audit, convergence, project, runs; and the checkpoints that they read."""
