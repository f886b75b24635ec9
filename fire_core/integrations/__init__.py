"""A method at the right moment in the loops of others: torch, Lightning, transformers, stable-baselines3, TorchRL.

Each module is imported by its name and needs its package: `from fire_core.integrations.lightning import FireCallback`.
What they share is in `intervention`.
"""
