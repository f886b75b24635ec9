"""Go on training as if nothing had changed: the reference that hardens."""

from fire_core.methods.protocol import Method


class Base(Method):
    """No intervention."""
