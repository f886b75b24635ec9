"""Parameters as matrices: layouts, known architectures, optimizer state, distributed weights."""
