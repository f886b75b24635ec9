"""Polar factors of batches of matrices, by Newton-Schulz steps and by exact solvers; nothing here knows nn.Module."""
