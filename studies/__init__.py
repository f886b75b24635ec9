"""Experiments of our own: how each is run (`driver`), how its outcome is judged (`verdict`), and one file a study."""
