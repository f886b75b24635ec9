"""Load a trained run from its folder: `harness.load(folder)`."""
