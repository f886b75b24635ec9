"""What a process prints, the signals that it heeds, and worker processes."""
