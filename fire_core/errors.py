"""The warning class of the library."""


class FireWarning(UserWarning):
    """A call succeeded, but has not done all that its caller may expect: a weight or a state stayed as it was.

    Turn it into an error with `warnings.filterwarnings("error", category=FireWarning)`.
    """
