"""Data sets of simulations: `load` reads the rows, splits off test rows and divides the rest among the clients."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int8, Int64

from problems.data.disturb import drop_positives, flip_labels, shift_client, validation_split
from problems.data.doubts import warn_of_rows
from problems.data.findings import find_strata
from problems.data.formats.bundled import synthetic_pl, synthetic_sparse_logistic
from problems.data.formats.readers import DEFAULT_POSITIVE, read
from problems.data.groups import describe_groups
from problems.data.partitions import clients_of, merge_sites, partition
from problems.data.preprocessing import Preprocessing
from problems.data.sample_format import SampleFormat
from problems.data.samples import (
    Samples,
    as_float32,
    check_both_classes,
    check_finite,
    positive_classes,
    take_float32,
    with_findings,
)
from problems.data.spec import OWN, SPARSE_LOGISTIC, UNLABELLED, DataError, DataSpec, in_data_set
from problems.data.splits import split_rows
from problems.data.subgroups import Subgroups
from problems.data.times import choose_borders
from problems.data.validation import validate

# the result of `Source.encode` -> the features of all rows, and their preprocessing
Raw = Callable[[Any], tuple[Any, Preprocessing]]
# the labels of rows, and each client's indices among these rows
Spread = tuple[Int8[np.ndarray, "_"], list[Int64[np.ndarray, "_"]]]


class FederatedData:
    """The training samples of every client, and the test samples of the server.

    Attributes:
        columns: The preprocessing of a table's raw rows; None for other data.
        sample_format: The format of the samples in the files; None if the samples have no labels.
        notes: Lines for the log about the reading of the rows.
        site_names: The names of the clients; () if clients are not sites with names.
        subgroups: The columns of ``subgroups``.
        grouping: A sentence about the groups of rows that stay together; "" without groups.
        input_shape: The shape of one sample's features.
        train: The samples of all clients, client by client, before ``client_shift`` adds noise.
        test: The test samples, without label noise and shift.
        validation: The rows held out of the training rows, without label noise and shift; None if
            ``validation_fraction`` is 0.
    """

    def __init__(
        self,
        train: Samples,
        test: Samples,
        sizes: Sequence[int],
        spec: DataSpec,
        columns: Preprocessing | None = None,
        validation: Samples | None = None,
        sample_format: SampleFormat | None = None,
        notes: Sequence[str] = (),
        grouping: str = "",
        site_names: Sequence[str] = (),
        subgroups: Sequence[Subgroups] = (),
    ) -> None:
        self.subgroups = tuple(subgroups)
        self.notes = tuple(notes)
        self.columns = columns
        self.sample_format = sample_format
        self.grouping = grouping
        self.site_names = tuple(site_names)
        self.train = train
        self.test = test
        self.validation = validation
        self.num_clients = len(sizes)
        self.input_shape = train.shape
        self._ends = np.cumsum([0, *sizes])
        self._spec = spec
        self._shifted: dict[int, Samples] = {}

    @property
    def evaluated(self) -> Samples:
        """The samples that evaluate the model of each round: validation samples, or test samples if there are none."""
        return self.test if self.validation is None else self.validation

    def client(self, partition_id: int) -> Samples:
        """Return the training samples of one client, after its shift; without a shift, a view of `train`.

        Raises:
            DataError: The client does not exist.
        """
        index = operator.index(partition_id)
        if not 0 <= index < self.num_clients:
            allowed = f"0 to {self.num_clients - 1}, since there are {self.num_clients} clients"
            raise DataError("client", got=index, allowed=allowed, hint="choose the number of a client")
        rows = slice(self._ends[index], self._ends[index + 1])
        samples = self.train.select(rows)
        if self._spec.client_shift == 0.0:
            return samples
        if index not in self._shifted:
            features = shift_client(
                as_float32(np.asarray(samples.features)),
                index,
                self._spec.partition_sites or self.num_clients,
                self._spec.client_shift,
                self._spec.client_shift_std,
                self._spec.seed,
            )
            self._shifted[index] = replace(samples, features=features)
        return self._shifted[index]

    def __repr__(self) -> str:
        return (
            f"FederatedData({self._spec.dataset!r}, {self.num_clients} clients, "
            f"{len(self.train):,} training samples with {len(self.train.positives):,} positives, "
            f"{len(self.test):,} test samples, shape {self.input_shape})"
        )


def load(spec: DataSpec, num_clients: int) -> FederatedData:
    """Read a data set and divide its training rows among the clients. Equal arguments return equal bytes.

    Args:
        spec: The data set and its options.
        num_clients: The number of clients.

    Raises:
        DataError: An option is wrong, the data are missing or damaged, or the partition is impossible.

    Example:
        >>> data = load(DataSpec(dataset="digits"), num_clients=4)
        >>> len(data.train), len(data.test), data.input_shape
        (1437, 360, (64,))
    """
    validate(spec)
    try:
        return load_rows(spec, num_clients)
    except DataError as error:
        raise in_data_set(error, spec) from error


def _check_clients(spec: DataSpec, num_clients: int) -> None:
    """Raise DataError if the options do not fit the number of clients, or if sites read their own files."""
    if spec.partition == OWN:
        allowed = "another partition, since each site's rows are in a file that only its node reads"
        hint = "choose another partition, or start nodes that set data-path in their --node-config"
        raise DataError("partition", got=repr(OWN), allowed=allowed, hint=hint)
    if num_clients < 1:
        raise DataError("number of clients", got=num_clients, allowed="1 or more", hint="use at least one client")
    if 0 < spec.partition_sites < num_clients:
        got, allowed = f"{spec.partition_sites} for {num_clients:,} clients", "0, or at least the number of clients"
        raise DataError("partition-sites", got=got, allowed=allowed, hint="remove or raise partition-sites")


def load_rows(spec: DataSpec, num_clients: int, raw: Raw | None = None) -> FederatedData:
    """Read a data set like `load`, without checks of the options.

    Args:
        spec: The data set and its options.
        num_clients: The number of clients.
        raw: A function that makes features and preprocessing from the result of `Source.encode`. None: features are
            scaled, and are float32.
    """
    _check_clients(spec, num_clients)
    if spec.dataset in UNLABELLED:
        return _without_labels(spec, num_clients)
    if spec.dataset == SPARSE_LOGISTIC:
        return _sparse_logistic(spec, num_clients)
    source = with_findings(read(spec), spec)
    marked = np.zeros(len(source.classes), dtype=bool)
    if source.has_classes:
        marked = positive_classes(source.classes, spec.positive_label or DEFAULT_POSITIVE.get(spec.dataset, ""))
        labels = marked[source.codes].astype(np.int8)
        check_both_classes(labels, "the data set", source.classes)
    else:
        labels = np.zeros(len(source), dtype=np.int8)  # the rows are divided like rows of a single class
    rows_of = split_rows(spec, source, find_strata(labels, source.findings))
    train_rows, findings = rows_of.train, source.findings
    if findings is not None:
        for what, some in (("training", train_rows), ("validation", rows_of.validation), ("test", rows_of.test)):
            if some is not None:
                findings.check(some, f"the {what} rows")

    def check(encoded: Any) -> None:
        warn_of_rows(encoded, labels, source.codes, train_rows, source.sites)

    take: Callable[..., Any] = partial(take_float32, precise=spec.precise) if raw is None else operator.getitem
    columns: Preprocessing | None
    if raw is not None:
        features, columns = raw(source.encode(train_rows))
    else:
        tested = rows_of.test if spec.test_sites else None
        features, columns = source.features(train_rows, check, tested, precise=spec.precise)
        check_finite(features)
    if source.times is not None and columns is not None and not columns.time_borders:
        columns = replace(columns, time_borders=choose_borders(source.times.ends[train_rows], labels[train_rows]))
    periods = None if source.times is None else source.times.on_grid(columns.time_borders if columns else ())
    sites, site_names = rows_of.sites, rows_of.site_names
    if sites is not None:
        sites, site_names = merge_sites(spec, sites, site_names, num_clients)

    def spread(rows: Int64[np.ndarray, "some"]) -> Spread:
        """Flip labels and partition rows: return the rows' labels, and each client's indices among the rows."""
        noisy = flip_labels(labels[rows], spec.label_noise, spec.seed)
        parts = spec.partition_sites or num_clients
        own, number = (None, 0) if sites is None else (sites[rows], int(sites.max()) + 1)
        groups = None if source.groups is None else source.groups[rows]
        return noisy, partition(spec, noisy, source.codes[rows], parts, own, number, groups)[:num_clients]

    rows = train_rows[drop_positives(labels[train_rows], spec.imbalance, spec.seed)]
    train_labels, parts = spread(rows)
    if spec.imbalance and not all(train_labels[part].any() for part in parts):
        _refuse_lost_positives(spec, (train_labels, parts), spread(train_rows))
    order = np.concatenate(parts)
    findings = None if findings is None else findings.with_totals_of(rows[order])
    grouping = ""
    if source.groups is not None:
        rows_by_purpose = {"to train on": train_rows, "to test on": rows_of.test}
        rows_by_purpose |= {} if rows_of.validation is None else {"to validate on": rows_of.validation}
        grouping = describe_groups(spec.group_column, source.groups, rows_by_purpose, source.sites)

    clients = clients_of(spec, sites, num_clients)

    numbers, offsets, codes = source.numbers, source.offsets, source.subgroup_codes

    def samples_of(indices: Int64[np.ndarray, "some"], own: Int8[np.ndarray, "some"]) -> Samples:
        return Samples(
            take(features, indices),
            own if numbers is None else numbers[indices],
            None if clients is None else clients[indices],
            subgroups=None if codes is None else codes[indices],
            offsets=None if offsets is None else offsets[indices],
            numeric=numbers is not None,
            periods=None if periods is None else periods[indices],
            findings=None if findings is None else findings[indices],
        )

    train, test = rows[order], rows_of.test
    validation = rows_of.validation
    return FederatedData(
        train=replace(samples_of(train, train_labels[order]), sites=None, subgroups=None),
        test=samples_of(test, labels[test]),
        sizes=[len(part) for part in parts],
        spec=spec,
        columns=columns and columns.with_labels(np.array(source.classes)[marked].tolist()),
        validation=None if validation is None else samples_of(validation, labels[validation]),
        sample_format=None
        if raw is not None
        else SampleFormat.of(features, source.classes, marked, source.pixel_max, spec.image_size),
        notes=(*source.notes, *rows_of.notes),
        grouping=grouping,
        site_names=() if clients is None else site_names[:num_clients],
        subgroups=source.subgroups,
    )


def _refuse_lost_positives(spec: DataSpec, spread: Spread, without_imbalance: Spread) -> None:
    """Raise DataError if `imbalance` has removed all positives of a client."""
    now, before = ([int(labels[part].sum()) for part in parts] for labels, parts in (spread, without_imbalance))
    lost = [f"client {i} ({held} without it)" for i, held in enumerate(before) if held and not now[i]]
    if lost:
        more = f", and {len(lost) - 8} more" if len(lost) > 8 else ""
        left = f"leaves 0 positives to {len(lost)} of {len(now)} clients, {sum(now):,} to all clients together"
        raise DataError(
            "imbalance",
            got=f"{spec.imbalance}, which {left}: {', '.join(lost[:8])}{more}",
            allowed="a share that leaves a positive to each client",
            hint="raise imbalance, use fewer clients, or choose another partition",
        )


def _without_labels(spec: DataSpec, num_clients: int) -> FederatedData:
    features = synthetic_pl(spec.seed, num_clients)
    labels = np.zeros(len(features), dtype=np.int8)
    nothing = Samples(features[:0], labels[:0])
    return FederatedData(Samples(features, labels), nothing, [len(features) // num_clients] * num_clients, spec)


def _sparse_logistic(spec: DataSpec, num_clients: int) -> FederatedData:
    drawn = [
        synthetic_sparse_logistic(spec.seed, client, spec.synthetic_alpha, spec.synthetic_beta, spec.synthetic_samples)
        for client in range(num_clients)
    ]
    count = spec.synthetic_samples
    rows = {
        "the training set": [np.arange(count) for _ in drawn],
        "the test set": [np.arange(count, len(y)) for _, y in drawn],
    }
    if spec.validation_fraction:
        pairs = [
            validation_split(y, np.arange(count), spec.validation_fraction, spec.seed, client)
            for client, (_, y) in enumerate(drawn)
        ]
        rows["the training set"], rows["the validation set"] = ([pair[side] for pair in pairs] for side in (0, 1))
    parts = {
        what: Samples(
            np.concatenate([x[chosen] for (x, _), chosen in zip(drawn, each, strict=True)]),
            np.concatenate([y[chosen] for (_, y), chosen in zip(drawn, each, strict=True)]),
            np.concatenate([np.full(len(chosen), client) for client, chosen in enumerate(each)]),
        )
        for what, each in rows.items()
    }
    for what, part in parts.items():
        if not (len(part.positives) and len(part.negatives)):
            counts = f"{len(part.positives):,} positives and {len(part.negatives):,} negatives"
            got = f"one class only in {what} of {num_clients:,} clients, {counts}"
            hint = "use more clients, raise synthetic.samples or change the seed"
            raise DataError(f"dataset {spec.dataset!r}", got=got, allowed="both classes", hint=hint)
    train, test, *validation = parts.values()
    sizes = [len(chosen) for chosen in rows["the training set"]]
    form = SampleFormat.of(train.features, ("0", "1"), np.array([False, True]))
    held = validation[0] if validation else None
    return FederatedData(train, test, sizes, spec, validation=held, sample_format=form)
