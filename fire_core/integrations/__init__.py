"""Let a method act in other training loops: torch, Lightning, transformers, stable-baselines3, TorchRL.

Each module is imported by its name and needs its package: `from fire_core.integrations.lightning import FireCallback`.
The code that they share is in `intervention`.
"""
