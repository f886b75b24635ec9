"""Polar factors of matrices: Newton-Schulz steps and exact solvers; knows no nn.Module."""
