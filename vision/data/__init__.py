"""Data sets: functions that a config names in `_target_` and that return an `ImageData`."""

from vision.data.digits import digits
from vision.data.images import ImageData

__all__ = ["ImageData", "digits"]
