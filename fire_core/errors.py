"""What the library warns about."""


class FireWarning(UserWarning):
    """A call did its work, but not what its caller may expect: nothing projected, a weight or a state left as it was.

    Turn it into an error with `warnings.filterwarnings("error", category=FireWarning)`.
    """
