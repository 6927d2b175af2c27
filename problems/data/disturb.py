"""Splits into training, validation and test rows, and changes for experiments: imbalance, label noise, client shift.

Fractions are exact decimal numbers, not floats: 0.3 of 10 is 3 and not 2.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from jaxtyping import Float32, Int8, Int64

from problems.data.groups import check_classes, split_groups
from problems.data.mapped import allocate
from problems.data.spec import DataError
from problems.randomness import stream


def split(
    labels: Int8[np.ndarray, "n"] | Int64[np.ndarray, "n"],
    test_fraction: float,
    seed: int,
    groups: Int64[np.ndarray, "n"] | None = None,
    classes: Sequence[int] = (0, 1),
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Draw a data set's test rows: max(1, round(test_fraction * size)) of each class.

    Args:
        labels: The rows' labels, 0 or 1, or the rows' classes.
        test_fraction: The share of test rows, in (0, 1).
        seed: The run's seed.
        groups: The group of each row. Groups stay whole, so the counts are approximate. None: no groups.
        classes: The labels that must be on both sides: (0,) if the labels are numbers, and all rows have the label 0.
            (): the caller checks both sides.

    Returns:
        The training rows and the test rows, both ascending.

    Raises:
        DataError: A class has too few rows, or groups, for both parts.
    """
    for label in classes:
        size = int((labels == label).sum())
        if size < 2:
            got = f"{size} {'positive' if label else 'negative'}"
            allowed = "at least one row of each class for the training set and one for the test set"
            hint = "change positive-label, or add rows"
            if len(classes) == 1:
                got, allowed, hint = f"{size} rows", "two rows or more, to train and to test", "add rows"
            raise DataError("labels", got=got, allowed=allowed, hint=hint)
    if groups is not None:
        check_classes(labels.astype(np.int64), groups, classes)
    return _split_classes(labels, test_fraction, stream(seed, "test split"), groups)


def hold_out(
    labels: Int8[np.ndarray, "n"] | Int64[np.ndarray, "n"],
    test_fraction: float,
    seed: int,
    partition_id: int,
    groups: Int64[np.ndarray, "n"] | None = None,
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Draw one site's test rows like `split`. The site may lack a class; a class of one row is for training.

    Args:
        labels: See `split`.
        test_fraction: See `split`.
        seed: See `split`.
        partition_id: The site's number; each site has a separate random draw.
        groups: See `split`.
    """
    return _split_classes(labels, test_fraction, stream(seed, "held out", partition_id), groups)


def validation_split(
    labels: Int8[np.ndarray, "n"] | Int64[np.ndarray, "n"],
    train_rows: Int64[np.ndarray, "train"],
    fraction: float,
    seed: int,
    site: int = 0,
    groups: Int64[np.ndarray, "n"] | None = None,
) -> tuple[Int64[np.ndarray, "kept"], Int64[np.ndarray, "held"]]:
    """Hold out validation rows among the training rows; each class is divided as in `split`.

    A class of one row is for training.

    Args:
        labels: The labels of all rows. With ``groups``, they may also be codes of pairs of site and label.
        train_rows: The indices of the training rows.
        fraction: The share to hold out, in (0, 1).
        seed: The run's seed.
        site: The site's number, if each site holds out rows by itself; each site has a separate random draw.
        groups: The group of each row, see `split`.

    Returns:
        The remaining training rows and the validation rows, both ascending.
    """
    members = None if groups is None else groups[train_rows]
    remaining, held = _split_classes(labels[train_rows], fraction, stream(seed, "validation split", site), members)
    return train_rows[remaining], train_rows[held]


def split_rows(
    count: int, fraction: float, seed: int, purpose: str
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Hold out rows at random, whatever their labels.

    Args:
        count: The number of rows.
        fraction: The share to hold out.
        seed: The run's seed.
        purpose: The purpose of the held-out rows, which selects the random draw.

    Returns:
        The remaining rows and the held-out rows, both ascending and not empty.

    Raises:
        DataError: There are fewer than two rows.
    """
    if count < 2:
        raise DataError("rows", got=count, allowed="two or more, to train and to test", hint="add rows")
    held = min(max(round(Fraction(str(fraction)) * count), 1), count - 1)
    order = stream(seed, purpose).permutation(count)
    return np.sort(order[held:]), np.sort(order[:held])


def _split_classes(
    labels: Int8[np.ndarray, "n"] | Int64[np.ndarray, "n"],
    test_fraction: float,
    rng: np.random.Generator,
    groups: Int64[np.ndarray, "n"] | None = None,
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    totals = np.bincount(labels, minlength=2).tolist()
    counts = [min(max(round(Fraction(str(test_fraction)) * total), 1), max(total - 1, 0)) for total in totals]
    if groups is not None:
        return split_groups(labels.astype(np.int64), groups, counts, rng)
    test = []
    for label, count in enumerate(counts):
        test.append(rng.permutation(np.flatnonzero(labels == label))[:count])
    test_rows = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test_rows), test_rows


def drop_positives(labels: Int8[np.ndarray, "n"], imbalance: float, seed: int) -> Int64[np.ndarray, "kept"]:
    """Make a data set imbalanced: keep all negatives and floor(r / (1 - r) * negatives) positives.

    Args:
        labels: The rows' labels, 0 or 1.
        imbalance: r, the remaining share of positives, in [0, 1). 0: all rows are kept.
        seed: The run's seed.

    Returns:
        The rows to keep, ascending.

    Raises:
        DataError: The share leaves no positive, or needs more positives than the data set has.
    """
    if imbalance == 0.0:
        return np.arange(len(labels))
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    ratio = Fraction(str(imbalance))
    num_positives = int(ratio / (1 - ratio) * len(negatives))
    there = f"the training set has {len(positives):,} positives and {len(negatives):,} negatives"
    if num_positives == 0:
        got, allowed = f"{imbalance}, which keeps no positive: {there}", "a share that keeps at least one positive"
        raise DataError("imbalance", got=got, allowed=allowed, hint="remove or raise imbalance")
    if num_positives > len(positives):
        got = f"{imbalance}, which needs {num_positives:,} positives: {there}"
        allowed = f"at most the data's share of positives, {len(positives) / len(labels):.4f}"
        raise DataError("imbalance", got=got, allowed=allowed, hint="remove or lower imbalance")
    chosen = stream(seed, "imbalance").permutation(positives)[:num_positives]
    return np.sort(np.concatenate((chosen, negatives)))


def flip_labels(labels: Int8[np.ndarray, "n"], noise: float, seed: int) -> Int8[np.ndarray, "n"]:
    """Return a copy of the labels, with floor(noise * size) of each class flipped.

    Args:
        labels: The rows' labels, 0 or 1.
        noise: The share to flip, in [0, 0.5).
        seed: The run's seed.
    """
    flipped = labels.copy()
    rng = stream(seed, "label noise")
    for label in (0, 1):
        rows = np.flatnonzero(labels == label)
        flipped[rng.permutation(rows)[: int(Fraction(str(noise)) * len(rows))]] = 1 - label
    return flipped


def shift_client(
    features: Float32[np.ndarray, "n *shape"], partition_id: int, num_clients: int, step: float, std: float, seed: int
) -> Float32[np.ndarray, "n *shape"]:
    """Return client i's features with N(mu_i, std^2) added to each, mu_i = step * (i - N / 2).

    Guo et al., "FedX: Federated Learning for Compositional Pairwise Risk Optimization": step 0.01 and std 0.2
    with N = 16, that is N(-0.08 + 0.01 i, 0.04).

    Args:
        features: The client's features; not changed.
        partition_id: i.
        num_clients: N.
        step: The difference between the means of two successive clients.
        std: The noise's standard deviation.
        seed: The run's seed.
    """
    noise = allocate(features.shape, np.float32)
    stream(seed, "client shift", partition_id).standard_normal(dtype=np.float32, out=noise)
    noise *= np.float32(std)
    noise += np.float32(step * (partition_id - num_clients / 2))
    noise += features
    return noise
