"""The order in which a benchmark's data came."""

from collections.abc import Sequence

import numpy as np


def arrival_order(phases: Sequence[np.ndarray]) -> np.ndarray:
    """Every training sample of these phases once: the first phase's in its order, then what each later one brought.

    Args:
        phases: each phase's indices into the training set.

    Returns:
        int64 indices.
    """
    together = np.concatenate(phases)
    _, first = np.unique(together, return_index=True)
    return together[np.sort(first)]
