"""Two forms of a method: as its own authors wrote it, and as the FIRE authors' code does it."""

VARIANTS = ("original", "fire_paper")


def check_variant(variant: str, accepted: tuple[str, ...] = VARIANTS) -> str:
    """The variant, if it is a known one.

    Raises:
        ValueError: with what is accepted.
    """
    if variant not in accepted:
        raise ValueError(f"variant={variant} is unknown; accepted: {', '.join(accepted)}")
    return variant
