"""Baseline: no intervention."""

from fire_core.methods.protocol import Method


class Base(Method):
    """The baseline: every hook does nothing."""

    not_combinable = "does nothing"
