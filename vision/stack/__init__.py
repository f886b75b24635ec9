"""Many seeds of one configuration trained at once, as one batched network: `stack=20`.

Not `seeds=20`, which is one letter away from `seed=20`, and both would be accepted.
"""
