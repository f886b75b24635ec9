"""Errors that a user can mend."""


class ConfigError(ValueError):
    """An option, a file or a package at fault: the message is one line that says which, and what is right."""
