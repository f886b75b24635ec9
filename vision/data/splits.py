"""Split a data set into phases: pure functions of sizes, labels and a seed.

They draw from a local generator of NumPy's legacy kind (MT19937), whose stream NumPy promises not to change, in the
order of the FIRE authors' code: training permutation, test permutation, class permutation.
"""

import numpy as np
from numpy.random import RandomState

Split = tuple[np.ndarray, np.ndarray]  # indices into the training set, indices into the test set


def warm_start_phases(n_train: int, n_test: int, ratio: int, seed: int) -> list[Split]:
    """Return two phases: a random fraction of the training set, then all of it; both with the whole test set.

    Args:
        n_train: number of training samples.
        n_test: number of test samples.
        ratio: per cent of the training set in the first phase, which has n_train // (100 // ratio) samples.
        seed: seed of the permutation.

    Returns:
        Train and test indices of the two phases.

    Raises:
        ValueError: if `ratio` leaves the first phase without samples.
    """
    first_size = n_train // (100 // ratio)
    if first_size < 1:
        raise ValueError(f"ratio={ratio} leaves no samples of {n_train} for the first phase")
    order = RandomState(seed).permutation(n_train)
    test = np.arange(n_test)
    return [(order[:first_size], test), (order, test)]


def sample_phases(n_train: int, n_test: int, chunks: int, seed: int) -> list[Split]:
    """Return phases that add equal chunks of a permuted training set; n_train mod chunks samples are never used.

    Args:
        n_train: number of training samples.
        n_test: number of test samples.
        chunks: number of phases.
        seed: seed of the permutations.

    Returns:
        Train and test indices of each phase. A phase has its chunk and all chunks before it; the test indices are the
        same permutation of the whole test set in every phase.
    """
    generator = RandomState(seed)
    order, test = generator.permutation(n_train), generator.permutation(n_test)
    size = n_train // chunks
    return [(order[: (i + 1) * size], test) for i in range(chunks)]


def class_phases(train_labels: np.ndarray, test_labels: np.ndarray, chunks: int, seed: int) -> list[Split]:
    """Return phases that add equal groups of permuted classes, each with the test samples of its classes.

    Args:
        train_labels: integer labels (n_train,).
        test_labels: integer labels (n_test,).
        chunks: number of phases; each adds 1 / chunks of the classes, rounded down, and the remainder is never used.
        seed: seed of the class order.

    Returns:
        Train and test indices of each phase, ascending. A phase has the samples of its classes and of all before them.
    """
    num_classes = int(train_labels.max()) + 1
    generator = RandomState(seed)
    generator.permutation(len(train_labels))  # drawn before the classes in the authors' code
    generator.permutation(len(test_labels))
    order = generator.permutation(num_classes)
    size = num_classes // chunks
    phases = []
    for i in range(chunks):
        classes = order[: (i + 1) * size]
        train, test = (np.flatnonzero(np.isin(labels, classes)) for labels in (train_labels, test_labels))
        phases.append((train, test))
    return phases
