"""A trained run back as modules: `harness.load(folder)`."""
