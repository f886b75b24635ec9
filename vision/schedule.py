"""Learning rates within a phase, as a factor of the base rate."""


def warmup(step: int, steps: int, fraction: float = 0.1) -> float:
    """Return the factor of a linear warm-up over the first `fraction` of the phase, then 1, as the paper's text says.

    Args:
        step: optimizer steps already made in the phase, from 0.
        steps: optimizer steps of the phase.
        fraction: share of the phase in which the rate grows; 0 turns the warm-up off.
    """
    return min(1.0, (step + 1) / max(1.0, fraction * steps))


def authors_factor(
    number: int, epochs: int, passes_per_epoch: int = 1, earlier: int = 0, fraction: float = 0.1
) -> float:
    """Return the factor of the authors' code's schedule, constant within a pass over the data (docs/paper.md, A17).

    With e = earlier + ceil(number / passes_per_epoch) it is 1 where e mod epochs >= fraction * epochs, and else
    min(1, ((number + 1) mod epochs) / epochs * (round(1 / fraction) // passes_per_epoch)): the length of the warm-up is
    counted in displayed epochs, its steps in passes. With 100 epochs of ten passes and a fraction of 0.1 (phase 0 of
    `warm_start`), the warm-up takes 91 passes, and the last nine passes are a warm-up again, the very last one at rate
    0. A factor of 0 in a phase's first pass is refused by `Task.check_schedule`.

    Args:
        number: number of the pass within the phase, from 0.
        epochs: displayed epochs of a phase: each ends with a row of the log.
        passes_per_epoch: passes in a displayed epoch.
        earlier: displayed epochs of earlier phases.
        fraction: share of a phase that the warm-up takes; 0 turns it off.

    Returns:
        The factor, limited to 1, which the authors' code exceeds in phases that are no multiple of ten epochs.
    """
    logged = earlier + -(-number // passes_per_epoch)
    if fraction == 0 or logged % epochs >= fraction * epochs:
        return 1.0
    return min(1.0, (number + 1) % epochs / epochs * (round(1 / fraction) // passes_per_epoch))
