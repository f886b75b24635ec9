"""Learning rates within a phase, as a factor of the base rate."""


def warmup(step: int, steps: int, fraction: float = 0.1) -> float:
    """Linear warm-up over the first `fraction` of the phase, then constant: the paper's text.

    Args:
        step: optimizer steps already made in the phase, from 0.
        steps: optimizer steps of the phase.
        fraction: of the phase; 0 turns the warm-up off.
    """
    return min(1.0, (step + 1) / max(1.0, fraction * steps))


def reference(number: int, epochs: int, passes_per_epoch: int = 1, earlier: int = 0, fraction: float = 0.1) -> float:
    """The schedule of the authors' code, constant within a pass over the data (docs/paper.md, A17).

    The ramp's length counts displayed epochs, its steps are passes: where a displayed epoch is ten passes (phase 0 of
    `warm_start`) it takes 91 passes, and the last nine passes are in it again, the last one at rate 0.

    Args:
        number: of the pass within the phase, from 0.
        epochs: displayed epochs of a phase.
        passes_per_epoch: passes that make one of them.
        earlier: displayed epochs of earlier phases.
        fraction: of a phase that the ramp takes.

    Returns:
        The factor; at most 1, where the code would overshoot for phases that are no multiple of ten epochs.
    """
    logged = earlier + -(-number // passes_per_epoch)
    if fraction == 0 or logged % epochs >= fraction * epochs:
        return 1.0
    return min(1.0, (number + 1) % epochs / epochs * (round(1 / fraction) // passes_per_epoch))
