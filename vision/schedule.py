"""Learning rates within a phase, as a factor of the base rate."""


def warmup(step: int, steps: int, fraction: float = 0.1) -> float:
    """Linear warm-up over the first `fraction` of the phase, then constant: the paper's text.

    Args:
        step: optimizer steps already made in the phase, from 0.
        steps: optimizer steps of the phase.
        fraction: of the phase; 0 turns the warm-up off.
    """
    return min(1.0, (step + 1) / max(1.0, fraction * steps))
