"""Partitions: which client gets which training rows.

"dirichlet", "shard" and "linear" use the partitioners of flwr-datasets, which see row numbers and classes only. All
other partitions use NumPy, since importing flwr-datasets takes more than a second.
"""

import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from problems.data.groups import partition_groups
from problems.data.spec import GIVEN, OFFSET_SITES, DataError, DataSpec, parse_rows
from problems.errors import require
from problems.importing import import_named, is_dotted
from problems.randomness import stream

SORTED_SHARE = 0.9
MERGED = "%s sites are merged into %s clients%s; use %s clients to keep each site separate"
_log = logging.getLogger(__name__)
_WAYS_OUT = {"dirichlet": ", or raise partition-alpha", "shard": ", or lower partition-classes"}


def partition(
    spec: DataSpec,
    labels: Int8[np.ndarray, "n"],
    classes: Int64[np.ndarray, "n"],
    num_clients: int,
    own_sites: Int64[np.ndarray, "n"] | None = None,
    num_sites: int = 0,
    groups: Int64[np.ndarray, "n"] | None = None,
) -> list[Int64[np.ndarray, "_"]]:
    """Return the training rows of each client. Each row has exactly one client; with "given", at most one.

    Args:
        spec: The options; `partition`, `partition_alpha`, `partition_classes`, `partition_rows` and `seed` are used.
        labels: The rows' labels, 0 or 1.
        classes: The rows' original classes, as integers.
        num_clients: The number of clients.
        own_sites: The site of each row; None if the data set has no sites.
        num_sites: The number of the data set's sites, including sites without training rows.
        groups: The group of each row. All rows of a group get the same client, unless clients are sites. None: no
            groups.

    Raises:
        DataError: There are more clients than rows, a client would have no row, or the partition is impossible.
    """
    count, kind = len(labels), spec.partition
    if num_clients > count:
        got = f"{num_clients:,}, but only {count:,} training samples"
        raise DataError("number of clients", got=got, allowed=f"at most {count:,} clients", hint="use fewer clients")
    rng = stream(spec.seed, f"partition {kind}")
    if own_sites is not None and keeps_sites(spec):
        _check_number(num_clients, num_sites, "{} sites have training rows", "", "at most " if _may_merge(spec) else "")
        parts = [np.flatnonzero(own_sites == site) for site in range(num_sites)]
    elif is_dotted(kind):
        parts = _by_function(kind, classes, num_clients, rng, groups)
    elif groups is not None:
        parts = partition_groups(spec, labels.astype(np.int64), classes, groups, num_clients, rng)
    elif kind == "iid":
        parts = _iid(labels, num_clients, rng)
    elif kind == "consecutive":
        parts = np.array_split(np.arange(count), num_clients)
    elif kind == "sorted-90":
        parts = _mostly_sorted(classes, num_clients, rng)
    elif kind == "pathological":
        parts = _pathological(classes, num_clients, spec.partition_classes, rng)
    elif kind == GIVEN:
        return _cut_as_given(labels, parse_rows(spec.partition_rows), num_clients, rng)
    elif kind == "positives-skewed":
        parts = _cut_skewed(labels, num_clients, spec.partition_alpha, rng)
    else:
        parts = _by_flwr_datasets(spec, classes, num_clients, rng)

    empty = [str(client) for client, rows in enumerate(parts) if len(rows) == 0]
    if empty:
        got = f"leaves client {', '.join(empty[:10])} without a sample of {count:,}"
        raise _impossible(kind, num_clients, got, "at least one sample for each client")
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(count)):
        raise _impossible(kind, num_clients, "does not place every sample", "exactly one client for each sample")
    return parts


def _by_function(
    path: str,
    classes: Int64[np.ndarray, "n"],
    num_clients: int,
    rng: np.random.Generator,
    groups: Int64[np.ndarray, "n"] | None,
) -> list[Int64[np.ndarray, "_"]]:
    """Return the rows of each client by a user's function.

    Args:
        path: The function's path, ``package.module:name``. Its arguments are the classes, the number of clients and a
            random generator; its result is the client of each row, a number from 0.
        classes: The rows' original classes.
        num_clients: The number of clients.
        rng: The generator.
        groups: The group of each row. None: no groups.

    Raises:
        DataError: The function cannot be imported, its result has another form, or a group is at several clients.
    """

    def refuse(got: str) -> DataError:
        hint = "correct the function, see docs/data.md"
        return DataError("partition", got=got, allowed=f"a function that returns {len(classes)} clients", hint=hint)

    clients = np.asarray(import_named(path, refuse)(classes, num_clients, rng))
    if clients.shape != classes.shape or not np.issubdtype(clients.dtype, np.integer):
        raise refuse(f"{path!r}, which returns {clients.dtype} numbers of shape {clients.shape}")
    if clients.min() < 0 or clients.max() >= num_clients:
        raise refuse(f"{path!r}, which returns clients {clients.min()} to {clients.max()} of {num_clients}")
    if groups is not None and len(np.unique(np.stack((groups, clients)), axis=1).T) > len(np.unique(groups)):
        raise refuse(f"{path!r}, which divides rows of a group of group-column")
    return [np.flatnonzero(clients == client) for client in range(num_clients)]


def merge_sites(
    spec: DataSpec, sites: Int64[np.ndarray, "n"], names: Sequence[str], num_clients: int
) -> tuple[Int64[np.ndarray, "n"], tuple[str, ...]]:
    """Merge natural sites if there are more sites than clients: site k joins client k mod `num_clients`. Log it.

    With `partition_sites`, and for data sets whose sites are drawn to differ, nothing is merged.

    Args:
        spec: The options; `partition`, `partition_sites` and `dataset` are used.
        sites: The number of each row's site; -1 for a site that does not train.
        names: The names of the sites, by number; () if they have no names.
        num_clients: The number of clients.

    Returns:
        The number of each row's client or -1, and the clients' names.
    """
    count = int(sites.max()) + 1
    if num_clients >= count or not _may_merge(spec):
        return sites, tuple(names)
    members = [names[client::num_clients] for client in range(num_clients)] if names else []
    merged = tuple(map(_join_names, members))
    _log.warning(MERGED, f"{count:,}", f"{num_clients:,}", f" ({'; '.join(merged)})" if merged else "", f"{count:,}")
    return np.where(sites < 0, -1, sites % num_clients), merged


def _may_merge(spec: DataSpec) -> bool:
    return spec.partition == "natural" and spec.dataset != OFFSET_SITES and not spec.partition_sites


def _join_names(names: Sequence[str]) -> str:
    first, *others = names
    return " and ".join(names) if len(others) < 2 else f"{first} and {len(others)} more"


def clients_of(
    spec: DataSpec, own_sites: Int64[np.ndarray, "n"] | None, num_clients: int
) -> Int64[np.ndarray, "n"] | None:
    """Return the client that stands for each row's site: -1 for a site without a client; None if clients are not sites.

    Args:
        spec: The options; `partition` and `dataset` are used.
        own_sites: The site of each row; None if the data set has no sites.
        num_clients: The number of clients, which are the first sites.
    """
    if own_sites is None or not keeps_sites(spec):
        return None
    return np.where(own_sites < num_clients, own_sites, -1)


def keeps_sites(spec: DataSpec) -> bool:
    """Return whether each client is a site of the data set."""
    return spec.partition == "natural" or spec.dataset == OFFSET_SITES


def _impossible(kind: str, num_clients: int, got: str, allowed: str) -> DataError:
    got, hint = f"{kind!r} over {num_clients:,} clients, which {got}", f"use fewer clients{_WAYS_OUT.get(kind, '')}"
    return DataError("partition", got=got, allowed=allowed, hint=hint)


def _iid(labels: Int8[np.ndarray, "n"], num_clients: int, rng: np.random.Generator) -> list[Int64[np.ndarray, "_"]]:
    # Deal the rows like cards, positives first: the clients' sizes and numbers of positives differ by at most one.
    deck = np.concatenate([rng.permutation(np.flatnonzero(labels == label)) for label in (1, 0)])
    return [rng.permutation(deck[client::num_clients]) for client in range(num_clients)]


def _check_number(got: int, expected: int, why: str, otherwise: str, bound: str = "") -> None:
    if got != expected:
        allowed, hint = f"{bound}{expected}, since {why.format(expected)}", f"use {expected} clients{otherwise}"
        raise DataError("number of clients", got=got, allowed=allowed, hint=hint)


def _mostly_sorted(
    classes: Int64[np.ndarray, "n"], num_clients: int, rng: np.random.Generator
) -> list[Int64[np.ndarray, "_"]]:
    """Deal 10 % of the rows at random, and the rest sorted by class.

    The "s % similarity" of Hsu et al. (2019) and of SCAFFOLD (Karimireddy et al., ICML 2020), s = 10.
    """
    order = rng.permutation(len(classes))
    cut = round(SORTED_SHARE * len(order))
    in_order = order[:cut][np.argsort(classes[order[:cut]], kind="stable")]
    # The larger slices come first in both parts; reversing the order in one part keeps the clients even.
    dealt = np.array_split(order[cut:][::-1], num_clients)[::-1]
    return [np.concatenate(pair) for pair in zip(np.array_split(in_order, num_clients), dealt, strict=True)]


def _pathological(
    classes: Int64[np.ndarray, "n"], num_clients: int, per_client: int, rng: np.random.Generator
) -> list[Int64[np.ndarray, "_"]]:
    """Give each client the next `per_client` classes of a circle. The clients of a class share its rows evenly.

    Unlike the partitioner of this name in flwr-datasets, no class is left out.
    """
    circle = rng.permutation(np.unique(classes))
    if per_client > len(circle) or num_clients * per_client < len(circle):
        count, got = len(circle), f"{per_client} for each of {num_clients:,} clients"
        allowed = f"{-(-count // num_clients)} to {count}, since partition 'pathological' distributes {count} classes"
        raise DataError("partition-classes", got=got, allowed=allowed, hint="set partition-classes in this range")
    takers: list[list[int]] = [[] for _ in circle]
    for turn in range(num_clients * per_client):
        takers[turn % len(circle)].append(turn // per_client)
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label, clients in zip(circle, takers, strict=True):
        rows = rng.permutation(np.flatnonzero(classes == label))
        for client, chunk in zip(clients, np.array_split(rows, len(clients)), strict=True):
            parts[client].append(chunk)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def _cut_skewed(
    labels: Int8[np.ndarray, "n"], num_clients: int, alpha: float, rng: np.random.Generator
) -> list[Int64[np.ndarray, "_"]]:
    by_label = [rng.permutation(np.flatnonzero(labels == label)) for label in (0, 1)]
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for rows in sorted(by_label, key=len, reverse=True):
        # A sample of the larger class for each client, so no client is empty.
        floor = int(rows is max(by_label, key=len) and len(rows) >= num_clients)
        sizes = floor + rng.multinomial(len(rows) - floor * num_clients, rng.dirichlet([alpha] * num_clients))
        for part, chunk in zip(parts, np.split(rows, np.cumsum(sizes)[:-1]), strict=True):
            part.append(chunk)
    return [rng.permutation(np.concatenate(part)) for part in parts]


def _cut_as_given(
    labels: Int8[np.ndarray, "n"], wanted: list[tuple[int, int]], num_clients: int, rng: np.random.Generator
) -> list[Int64[np.ndarray, "_"]]:
    _check_number(num_clients, len(wanted), "partition-rows describes {} clients", ", or change partition-rows")
    drawn = []
    for label, kind in enumerate(("negatives", "positives")):
        sizes = [counts[label] for counts in wanted]
        rows = rng.permutation(np.flatnonzero(labels == label))
        if sum(sizes) > len(rows):
            got, allowed = f"{sum(sizes):,} {kind} in all", f"at most the {len(rows):,} {kind} of the training set"
            raise DataError(
                "partition-rows", got=got, allowed=allowed, hint=f"lower the numbers of {kind} in partition-rows"
            )
        drawn.append(np.split(rows[: sum(sizes)], np.cumsum(sizes)[:-1]))
    return [rng.permutation(np.concatenate(pair)) for pair in zip(*drawn, strict=True)]


def _by_flwr_datasets(
    spec: DataSpec, classes: Int64[np.ndarray, "n"], num_clients: int, rng: np.random.Generator
) -> list[Int64[np.ndarray, "_"]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        require(f"partition {spec.partition!r}", "simulation", "flwr_datasets")
        import datasets
        from flwr_datasets import partitioner as flower

        order = rng.permutation(len(classes))
        seed = int(rng.integers(2**31))
        # The partitioners give neighbouring classes to the same client: random names hide the labels' order.
        names = rng.permutation(int(classes.max()) + 1)
        splitter: Any
        if spec.partition == "dirichlet":
            splitter = flower.DirichletPartitioner(
                num_partitions=num_clients,
                partition_by="label",
                alpha=float(spec.partition_alpha),
                min_partition_size=max(1, min(10, len(classes) // (4 * num_clients))),
                self_balancing=True,
                seed=seed,
            )
        elif spec.partition == "shard":
            # Set the shards' size, since a split into a number of shards would drop the remaining rows.
            splitter = flower.ShardPartitioner(
                num_partitions=num_clients,
                partition_by="label",
                shard_size=math.ceil(len(classes) / (num_clients * spec.partition_classes)),
                keep_incomplete_shard=True,
                seed=seed,
            )
        else:
            splitter = flower.LinearPartitioner(num_partitions=num_clients)
        splitter.dataset = datasets.Dataset.from_dict({"index": order, "label": names[classes[order]]})
        try:
            parts = [splitter.load_partition(client).with_format("numpy") for client in range(num_clients)]
        except ValueError as error:
            allowed = "a partition that places every sample"
            raise _impossible(spec.partition, num_clients, f"fails ({error})", allowed) from None
        return [np.asarray(part["index"][:], dtype=np.int64) for part in parts]
