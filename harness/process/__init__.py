"""A process of ours: what it prints, the signals that it heeds, and worker processes."""
