"""Recorders of what the public code of methods gives, for `scripts/record_originals.py`."""
