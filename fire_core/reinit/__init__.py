"""FIRE on a model: `fire_`, its report, shrink and perturb."""
