"""FIRE on a whole model: `fire_` and its report; shrink and perturb."""
