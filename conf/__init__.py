"""Configuration of all programs, in YAML: the groups and presets that Hydra composes."""
