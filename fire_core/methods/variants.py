"""Two forms of a method: as its own authors wrote it, and as the FIRE authors' code does it."""

from typing import Annotated

from fire_core.ranges import one_of

VARIANTS = ("original", "fire_paper")
Variant = Annotated[str, one_of(*VARIANTS)]
