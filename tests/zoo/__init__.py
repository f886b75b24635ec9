"""Models of others, tiny and at random initialisation: each cut against singular values and a forward pass."""
