"""Command line tools: audit, convergence, runs."""
