"""The division of a data set's rows by purpose: training, validation and test rows, and the sites that train."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int8, Int64

from problems.data.disturb import split, validation_split
from problems.data.groups import warn_of_shared
from problems.data.partitions import keeps_sites
from problems.data.samples import Source, check_both_classes
from problems.data.spec import PAGE, DataError, DataSpec, parse_names
from problems.errors import did_you_mean, join_first

Strata = Int8[np.ndarray, "some"] | Int64[np.ndarray, "some"]


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a data set by purpose, each ascending.

    Attributes:
        train: The indices of the training rows.
        test: The indices of the test rows.
        validation: The indices of the validation rows. None: the run has none.
        sites: The number of each row's site among the sites that train; -1 for another site. None: no sites.
        site_names: The names of the sites that train, by number; () if they have no names.
        notes: Lines for the log.
    """

    train: Int64[np.ndarray, "train"]
    test: Int64[np.ndarray, "test"]
    validation: Int64[np.ndarray, "validation"] | None
    sites: Int64[np.ndarray, "n"] | None
    site_names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def split_rows(spec: DataSpec, source: Source, labels: Strata) -> Split:
    """Divide the rows of a data set.

    ``test-sites`` selects the test rows if it is set. Otherwise the data set's own test rows are used, or else a random
    draw. Validation rows are drawn from the training rows of each site.

    Args:
        spec: The options.
        source: The data set's rows.
        labels: The rows' strata, see `problems.data.findings.find_strata`: labels 0 and 1, or classes.

    Raises:
        DataError: ``test-sites`` does not fit the data set, or a part would lack a class.
    """
    sites, names, notes = source.sites, source.site_names, list[str]()
    if spec.test_sites:
        train, test = _split_by_site(spec, source, notes)
    elif source.train_count is None:
        train, test = split(labels, spec.test_fraction, spec.seed, source.groups, classes=_classes(source))
    else:
        train, test = source.own_split()
    if spec.test_sites or source.train_count is not None:
        _check_labels(labels[train], "the training set", source)
        _check_labels(labels[test], "the test set", source)
        if source.groups is not None:
            warn_of_shared(source.groups, train, test)
        if sites is not None and keeps_sites(spec):
            sites, names = _number_training_sites(spec, source, train, test, notes)
    validation = None
    if spec.validation_fraction:
        train, validation = _hold_out(spec, source, labels, train)
    return Split(train, test, validation, sites, names, tuple(notes))


def _split_by_site(
    spec: DataSpec, source: Source, notes: list[str]
) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Return the training rows, and all rows of the sites in ``test-sites``, which are the test rows."""
    assert source.sites is not None, "checked by the validation"
    names = source.site_keys
    chosen = parse_names("test-sites", spec.test_sites)
    for name in chosen:
        if name not in names:
            hint = did_you_mean(name, names, f"correct test-sites, see {PAGE}")
            got, allowed = f"{name!r}, which is not a site", f"names of sites: {join_first(names, 20)}"
            raise DataError("test-sites", got=got, allowed=allowed, hint=hint)
    train, own_test = source.own_split()
    tested = np.isin(source.sites, [names.index(name) for name in chosen])
    train, others = train[~tested[train]], own_test[~tested[own_test]]
    if not len(train):
        allowed = "at least one site that trains"
        raise DataError("test-sites", got="all sites", allowed=allowed, hint="remove a site from test-sites")
    test = np.flatnonzero(tested)
    notes.append(f"test-sites: {len(test):,} rows of {join_first(chosen, 8)} are the test rows; the other sites train")
    if len(others):
        notes.append(f"test-sites: {len(others):,} rows are left out, which are the other sites' own test rows")
    return train, test


def _number_training_sites(
    spec: DataSpec,
    source: Source,
    train: Int64[np.ndarray, "train"],
    test: Int64[np.ndarray, "test"],
    notes: list[str],
) -> tuple[Int64[np.ndarray, "n"], tuple[str, ...]]:
    """Number the sites that have training rows, in their order. Other sites have no client, and get -1.

    Returns:
        The number of each row's site, and the names of the numbered sites.
    """
    assert source.sites is not None
    training = np.unique(source.sites[train])
    number_of = np.full(int(source.sites.max()) + 1, -1)
    number_of[training] = np.arange(len(training))
    sites: Int64[np.ndarray, n] = number_of[source.sites]
    absent = np.unique(source.sites[test][sites[test] < 0]).tolist()
    if absent and not spec.test_sites:
        listed = join_first([source.site_keys[site] for site in absent], 8)
        notes.append(f"{int((sites[test] < 0).sum()):,} test rows belong to sites without training rows: {listed}")
    return sites, tuple(source.site_names[site] for site in training) if source.site_names else ()


def _hold_out(
    spec: DataSpec, source: Source, labels: Strata, train_rows: Int64[np.ndarray, "train"]
) -> tuple[Int64[np.ndarray, "kept"], Int64[np.ndarray, "held"]]:
    """Hold out validation rows at each of the data set's own sites.

    Returns:
        The remaining training rows and the validation rows, both ascending.
    """
    sites = np.zeros(len(labels), dtype=np.int64) if source.sites is None else source.sites
    if source.groups is not None:  # a group may have rows at several sites, so all sites are divided at once
        kinds = max(2, int(labels.max()) + 1) * sites + labels
        remaining, validation = validation_split(
            kinds, train_rows, spec.validation_fraction, spec.seed, groups=source.groups
        )
    else:
        train_sites = sites[train_rows]
        pairs = [
            validation_split(labels, train_rows[train_sites == site], spec.validation_fraction, spec.seed, site)
            for site in np.unique(train_sites).tolist()
        ]
        remaining, validation = (np.sort(np.concatenate([pair[side] for pair in pairs])) for side in (0, 1))
    _check_labels(labels[remaining], "the training set without its validation rows", source)
    _check_labels(labels[validation], "the validation set", source)
    return remaining, validation


def _classes(source: Source) -> tuple[int, ...]:
    """Return the strata that must have rows on both sides of a split. For findings, the caller checks the result."""
    if source.has_classes:
        return 0, 1
    return (0,) if source.findings is None or source.findings.classes is None else ()


def _check_labels(labels: Strata, what: str, source: Source) -> None:
    """Check that both classes have rows; or, if rows have no classes, that there is a row.

    Raises:
        DataError: A class, or the whole set, has no row.
    """
    if source.has_classes:
        check_both_classes(labels, what, source.classes)
    elif not len(labels):
        raise DataError(what, got="no row", allowed="at least one row", hint="add rows")
