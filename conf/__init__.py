"""Configuration of all programs, in YAML: the groups that Hydra composes, and tables."""
