"""Command line tools (matrices, audit, project, convergence), and the checkpoints that they read."""
