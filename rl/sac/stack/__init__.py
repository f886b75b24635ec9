"""Many seeds of one configuration trained at once, as one batched network: `stack=10`."""
