"""Groups of rows that belong together, such as the visits of one patient: splits and partitions keep groups whole.

scikit-learn's `StratifiedGroupKFold` makes equal folds only, and takes minutes for 100 clients. `allot` makes parts of
any size, with one NumPy step for each group.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from problems.data.cells import as_text
from problems.data.spec import GROUPED_PARTITIONS, DataError, DataSpec

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 8
"""The number of random orders of the groups that `allot` tries."""
FOLDER = "folder"
"""The value of ``group-column`` with which each folder below a class folder is a group of images."""
_KEY = "group-column"
_log = logging.getLogger(__name__)


def number_groups(values: "pd.Series[Any]", *, what: str = "rows") -> Int64[np.ndarray, "n"]:
    """Return the number of each row's group.

    Args:
        values: The cells of the group column; texts are compared without the spaces around them.
        what: The rows' name in errors.

    Raises:
        DataError: Cells are missing, or there is only one group. The message quotes no cell.
    """
    names = values.map(as_text, na_action="ignore").replace("", None)
    missing = int(names.isna().sum())
    if missing:
        got = f"{values.name!r}, which is missing in {missing:,} of {len(names):,} {what}"
        hint = "fill the missing cells, or drop their rows" if what == "rows" else "correct the pattern in group-column"
        raise DataError(_KEY, got=got, allowed="a group for each row", hint=hint)
    codes: np.ndarray = names.factorize()[0].astype(np.int64)
    if codes.max(initial=0) == 0:
        got, allowed = f"{values.name!r}, which is the same in all {len(names):,} {what}", "two groups or more"
        hint = "set group-column to a column that identifies patients"
        raise DataError(_KEY, got=got, allowed=allowed, hint=hint)
    return codes


def path_pattern(text: str) -> "re.Pattern[str]":
    """Return the pattern that finds the name of an image's group in the image's path below the class folder.

    Args:
        text: ``folder``: the folders below the class folder are the groups. Or a regular expression, whose capturing
            group matches the name.

    Raises:
        DataError: The text is not a regular expression with exactly one capturing group.
    """
    try:
        pattern = re.compile("(.+)/" if text == FOLDER else text)
        fault = "" if pattern.groups == 1 else f", which has {pattern.groups} groups"
    except re.error as error:
        pattern, fault = re.compile(""), f", which is not a regular expression ({error})"
    if fault:
        allowed = f"{FOLDER!r}, or a regular expression with one capturing group, such as '^([^_]+)_'"
        raise DataError(_KEY, got=repr(text) + fault, allowed=allowed, hint="correct the pattern in group-column")
    return pattern


def number_paths(paths: Sequence[str], text: str) -> Int64[np.ndarray, "n"]:
    """Return the number of each image's group.

    Args:
        paths: The paths below the class folders, with ``/`` between folders.
        text: The pattern, see `path_pattern`.

    Raises:
        DataError: See `path_pattern` and `number_groups`. An image that does not match has no group, which is an error.
    """
    import pandas as pd

    pattern = path_pattern(text)
    matches = (pattern.search(path) for path in paths)
    return number_groups(pd.Series([match and match[1] for match in matches], name=text, dtype=object), what="images")


def pop_groups(loader: str, halves: Sequence[Any], column: str) -> tuple[list[Any], Int64[np.ndarray, "n"]]:
    """Remove the group column from a loader's data, and number the groups.

    Args:
        loader: The loader's name, for errors.
        halves: The training data and perhaps the test data, each a pair of features and labels.
        column: The column of the features that identifies groups.

    Returns:
        The halves without the column, and the number of each row's group.

    Raises:
        DataError: Features are not a data frame with the column; see also `number_groups`.
    """
    import pandas as pd

    apart, remaining = [], []
    for half in halves:
        frame = half[0] if isinstance(half, tuple | list) else half
        if not isinstance(frame, pd.DataFrame) or column not in frame.columns:
            got = f"{column!r}, but {loader!r} returned features of type {type(frame).__name__} without that column"
            hint = "return the features as a data frame with this column, or remove group-column"
            raise DataError(_KEY, got=got, allowed="a column of the loader's data frames", hint=hint)
        apart.append(frame[column])
        remaining.append((frame.drop(columns=column), half[1]))
    return remaining, number_groups(pd.concat(apart))


def describe_groups(
    column: str,
    groups: Int64[np.ndarray, "n"],
    parts: Mapping[str, Int64[np.ndarray, "_"]],
    sites: Int64[np.ndarray, "n"] | None,
) -> str:
    """Describe the groups in a sentence: number, sizes, groups in each part, and groups with rows at several sites.

    Args:
        column: The value of ``group-column``.
        groups: The group of each row.
        parts: The rows of each part, by the part's name, such as "to train on".
        sites: The site of each row. None: no sites.
    """
    sizes = np.unique(groups, return_counts=True)[1]
    counts = ", ".join(f"{len(np.unique(groups[rows])):,} {name}" for name, rows in parts.items())
    text = f"{_KEY} {column!r}: {len(sizes):,} groups of {sizes.min():,} to {sizes.max():,} rows; {counts}"
    if sites is None:
        return text
    pairs = np.unique(np.stack((groups, sites)), axis=1)[0]
    several = int((np.unique(pairs, return_counts=True)[1] > 1).sum())
    return f"{text}; {several:,} with rows at several sites" if several else text


def warn_of_shared(
    groups: Int64[np.ndarray, "n"], train_rows: Int64[np.ndarray, "train"], test_rows: Int64[np.ndarray, "test"]
) -> None:
    """Warn if test rows in a separate file or folder belong to groups that also have training rows."""
    shared = np.isin(groups[test_rows], groups[train_rows])
    if shared.any():
        text = "%s of %s test rows belong to %s groups that also have training rows: the test figures flatter the model"
        counts = (int(shared.sum()), len(test_rows), len(np.unique(groups[test_rows][shared])))
        _log.warning(f"{_KEY}: {text}; drop these rows from the test data", *(f"{count:,}" for count in counts))


def split_groups(
    kinds: Int64[np.ndarray, "n"],
    groups: Int64[np.ndarray, "n"],
    held: Sequence[int],
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, "kept"], Int64[np.ndarray, "held"]]:
    """Hold out whole groups of rows.

    Args:
        kinds: The kind of each row: its label, perhaps combined with its site.
        groups: The group of each row.
        held: The number of rows of each kind to hold out, approximately, since groups stay whole.
        rng: The generator that draws the groups.

    Returns:
        The remaining rows and the held-out rows, both ascending.
    """
    index, counts = _count(groups, kinds, len(held))
    targets = np.stack((counts.sum(axis=0) - held, held)).astype(np.float64)
    parts = allot(counts, targets, rng)
    # A class with a single group is not held out; a class with more groups is on both sides.
    for kind in (0, 1) if len(held) == 2 else ():
        members = np.flatnonzero(counts[:, kind])
        if len(members) == 1:
            parts[members] = 0
        elif len(members) and len(set(parts[members])) == 1:
            smallest = members[counts[members].sum(axis=1).argmin()]
            parts[smallest] = 1 - parts[smallest]
    out = parts[index] == 1
    return np.flatnonzero(~out), np.flatnonzero(out)


def check_classes(
    labels: Int64[np.ndarray, "n"], groups: Int64[np.ndarray, "n"], classes: Sequence[int] = (0, 1)
) -> None:
    """Check that each class has rows in at least two groups, one for training and one for testing.

    Args:
        labels: The rows' labels.
        groups: The group of each row.
        classes: The labels to check. (0,) if the labels are numbers, and all rows have the label 0.

    Raises:
        DataError: A class has fewer groups; names the class.
    """
    for label in classes:
        name = ("negative", "positive")[label]
        number = len(np.unique(groups[labels == label]))
        if number < 2:
            rows = f" with {name} rows" if len(classes) > 1 else ""
            got = f"{number} group{'s' * (number != 1)}{rows}"
            allowed = "at least two groups, one for the training set and one for the test set"
            hint = "set positive-label, or add groups" if len(classes) > 1 else "add groups"
            raise DataError(_KEY, got=got, allowed=allowed, hint=hint)


def partition_groups(
    spec: DataSpec,
    labels: Int64[np.ndarray, "n"],
    classes: Int64[np.ndarray, "n"],
    groups: Int64[np.ndarray, "n"],
    num_clients: int,
    rng: np.random.Generator,
) -> list[Int64[np.ndarray, "_"]]:
    """Return the rows of each client; all rows of a group belong to the same client.

    Args:
        spec: The partition's kind, one of `GROUPED_PARTITIONS`, and its alpha.
        labels: The rows' labels, 0 or 1.
        classes: The rows' original classes.
        groups: The group of each row.
        num_clients: The number of clients.
        rng: The generator that draws the groups.

    Raises:
        DataError: There are fewer groups than clients.
    """
    if spec.partition == "dirichlet":
        labels = classes
    index, counts = _count(groups, labels, int(labels.max()) + 1)
    if len(counts) < num_clients:
        got = f"{num_clients:,}, but only {len(counts):,} groups of {_KEY} {spec.group_column!r} to train on"
        raise DataError(
            "number of clients", got=got, allowed=f"at most {len(counts):,} clients", hint="use fewer clients"
        )
    if spec.partition == "consecutive":
        # order groups by their first rows; a group belongs to the slice that contains its middle
        first = np.unique(index, return_index=True)[1]
        order, sizes = np.argsort(first), counts.sum(axis=1)
        ends = np.cumsum(sizes[order])
        parts = np.empty(len(counts), dtype=np.int64)
        parts[order] = (ends - sizes[order] / 2) * num_clients // len(groups)
        return [np.flatnonzero(parts[index] == client) for client in range(num_clients)]
    shares: dict[str, Callable[[], np.ndarray]] = {
        "iid": lambda: np.full(num_clients, 1 / num_clients),
        "linear": lambda: np.arange(1, num_clients + 1) / (num_clients * (num_clients + 1) / 2),
        "dirichlet": lambda: rng.dirichlet([spec.partition_alpha] * num_clients),
        "positives-skewed": lambda: rng.dirichlet([spec.partition_alpha] * num_clients),
    }
    targets = np.stack([shares[spec.partition]() * total for total in counts.sum(axis=0)], axis=1)
    parts = allot(counts, targets, rng)
    return [rng.permutation(np.flatnonzero(parts[index] == client)) for client in range(num_clients)]


def allot(
    counts: Float64[np.ndarray, "groups kinds"],
    targets: Float64[np.ndarray, "parts kinds"],
    rng: np.random.Generator,
) -> Int64[np.ndarray, "groups"]:
    """Divide groups among parts. Each part gets about its target number of rows of each kind.

    In a random order, each group goes to the part in which it reduces the chi-square distance between rows and targets
    most. The best of `DRAWS` orders is used. No part is empty unless there are fewer groups than parts.

    Args:
        counts: The number of rows of each kind in each group.
        targets: The target number of rows of each kind in each part.
        rng: The generator that draws the orders.

    Returns:
        The part of each group.
    """
    orders, draws = np.stack([rng.permutation(len(counts)) for _ in range(DRAWS)]), np.arange(DRAWS)
    weights = 1 / np.maximum(targets, 0.5)
    open_rows = np.repeat(targets[None], DRAWS, axis=0)
    parts = np.empty((DRAWS, len(counts)), dtype=np.int64)
    for groups in orders.T:
        added = counts[groups]
        gains = ((2 * open_rows - added[:, None]) * added[:, None] * weights).sum(axis=2)
        chosen = gains.argmax(axis=1)
        open_rows[draws, chosen] -= added
        parts[draws, groups] = chosen
    best: np.ndarray = parts[(open_rows**2 * weights).sum(axis=(1, 2)).argmin()]
    sizes = counts.sum(axis=1)
    for empty in np.flatnonzero(np.bincount(best, minlength=len(targets)) == 0):
        movable: Bool[np.ndarray, groups] = np.bincount(best, minlength=len(targets))[best] > 1
        if movable.any():
            best[np.where(movable, sizes, np.inf).argmin()] = empty
    return best


def check_spec(spec: DataSpec) -> None:
    """Check that a partition can keep groups whole.

    Raises:
        DataError: The partition would divide groups; names the partitions that keep groups whole.
    """
    if spec.group_column and spec.partition not in GROUPED_PARTITIONS:
        allowed = f"{', '.join(GROUPED_PARTITIONS)} with {_KEY}, since other partitions divide groups"
        hint = "set partition to an allowed value, or remove group-column"
        raise DataError("partition", got=repr(spec.partition), allowed=allowed, hint=hint)


def _count(
    groups: Int64[np.ndarray, "n"], kinds: Int64[np.ndarray, "n"], number: int
) -> tuple[Int64[np.ndarray, "n"], Float64[np.ndarray, "groups kinds"]]:
    """Renumber groups from 0, and count the rows of each kind in each group.

    Returns:
        The new number of each row's group, and the counts.
    """
    names, index = np.unique(groups, return_inverse=True)
    counts = np.zeros((len(names), number))
    np.add.at(counts, (index, kinds), 1)
    return index, counts
