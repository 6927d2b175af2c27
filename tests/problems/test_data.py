"""Tests of `load` on every kind of data set: determinism, partitions, disturbances, errors."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.preprocessing import StandardScaler

from problems.data import GIVEN, OWN, PARTITIONS, DataError, DataSpec, FederatedData, Samples, load, validate
from problems.data.disturb import drop_positives, flip_labels
from problems.data.formats.bundled import breast_cancer, digits
from problems.data.partitions import partition
from tests.refusals import refuses

# the partitions of pooled rows
POOLED = [name for name in PARTITIONS if name not in (OWN, GIVEN, "natural")]


def test_the_bundled_sets_are_what_scikit_learn_s_loaders_return() -> None:
    everything = np.arange(1797)
    images, numbers = load_digits(return_X_y=True)
    np.testing.assert_array_equal(digits().features(everything)[0], (images / 16).astype(np.float32))
    np.testing.assert_array_equal(digits().codes, numbers)
    tumours, benign = load_breast_cancer(return_X_y=True, as_frame=True)
    features, columns = breast_cancer().features(everything[:569])
    np.testing.assert_allclose(features, StandardScaler().fit_transform(tumours), rtol=1e-5, atol=1e-6)
    assert columns is not None
    assert columns.names == tuple(tumours.columns)
    np.testing.assert_array_equal(columns.features(tumours), features.astype(np.float32))
    np.testing.assert_array_equal(breast_cancer().codes, 1 - benign)


def parts_of(data: FederatedData) -> list[Samples]:
    return [data.client(index) for index in range(data.num_clients)]


@pytest.mark.parametrize("name", POOLED)
@pytest.mark.parametrize("num_clients", [1, 5, 16])
def test_partitions_place_every_sample_once(name: str, num_clients: int) -> None:
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 6, size=701)
    spec = DataSpec(partition=name, partition_classes=6 if num_clients == 1 else 2)
    parts = partition(spec, (classes < 3).astype(np.int8), classes, num_clients)
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(701))
    if name in ("iid", "consecutive", "sorted-90"):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("name", POOLED)
def test_equal_arguments_give_equal_bytes(name: str) -> None:
    spec = DataSpec(partition=name, label_noise=0.1, client_shift=0.01, seed=3)
    first, second = load(spec, 10), load(spec, 10)
    for left, right in zip([*parts_of(first), first.test], [*parts_of(second), second.test], strict=True):
        assert left.features.tobytes() == right.features.tobytes()
        assert left.labels.tobytes() == right.labels.tobytes()


@pytest.mark.parametrize("name", [name for name in POOLED if name != "consecutive"])
def test_the_seed_moves_a_drawn_partition(name: str) -> None:
    classes = np.repeat(np.arange(10), 50)
    drawn = [
        partition(DataSpec(partition=name, seed=seed), (classes < 5).astype(np.int8), classes, 8) for seed in (0, 1)
    ]
    assert any(not np.array_equal(left, right) for left, right in zip(*drawn, strict=True))


def test_what_the_other_partitions_are_for() -> None:
    classes = np.repeat(np.arange(10), 100)
    labels = (classes < 5).astype(np.int8)

    def held(name: str, num_clients: int = 10, **options: float) -> list[np.ndarray]:
        spec = replace(DataSpec(partition=name), **options)
        return [np.bincount(classes[rows], minlength=10) for rows in partition(spec, labels, classes, num_clients)]

    assert all((counts > 0).sum() == 2 and counts.sum() == 200 for counts in held("pathological", num_clients=5))
    assert all((counts > 0).sum() == 3 for counts in held("pathological", partition_classes=3))
    assert all((counts > 0).sum() <= 2 and counts.sum() == 100 for counts in held("shard"))
    linear = [counts.sum() for counts in held("linear")]
    assert linear[0] < 30
    assert linear == sorted(linear)
    assert [np.argmax(counts) for counts in held("sorted-90")] == list(range(10))
    assert all(75 <= counts.max() < 100 and counts.sum() == 100 for counts in held("sorted-90"))
    assert [list(np.flatnonzero(counts)) for counts in held("consecutive")] == [[digit] for digit in range(10)]
    concentrated = np.mean([counts.max() / counts.sum() for counts in held("dirichlet", partition_alpha=0.1)])
    even = np.mean([counts.max() / counts.sum() for counts in held("dirichlet", partition_alpha=100.0)])
    assert concentrated > 0.4 > 0.2 > even
    skewed = [counts.sum() for counts in held("positives-skewed")]
    assert max(skewed) > 2 * min(skewed)
    dealt = [(counts.sum(), counts[:5].sum()) for counts in held("iid", num_clients=7)]
    assert np.ptp(dealt, axis=0).tolist() == [1, 1]  # equal in size and in positives


def test_train_is_the_union_of_the_clients_without_copies() -> None:
    data = load(DataSpec(partition="dirichlet"), 7)
    assert np.shares_memory(data.client(3).features, data.train.features)
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts_of(data)]), data.train.features)
    np.testing.assert_array_equal(np.concatenate([part.labels for part in parts_of(data)]), data.train.labels)
    assert data.input_shape == data.train.shape == data.client(0).shape == (64,)


def test_training_and_test_samples_are_the_data_set() -> None:
    data = load(DataSpec(dataset="breast-cancer"), 4)
    assert (len(data.train), len(data.test)) == (456, 113)
    assert (len(data.train.positives), len(data.test.positives)) == (170, 42)
    np.testing.assert_allclose(data.train.features.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(data.train.features.std(axis=0), 1.0, atol=1e-5)
    rows = {row.tobytes() for row in np.concatenate((data.train.features, data.test.features))}
    assert len(rows) == 569


def test_samples_are_float32_contiguous_and_read_only() -> None:
    data = load(DataSpec(client_shift=0.01), 3)
    for samples in (data.train, data.test, data.client(2)):
        assert (samples.features.dtype, samples.labels.dtype) == (np.float32, np.int8)
        assert samples.features.flags.c_contiguous
        assert not samples.features.flags.writeable
        assert not samples.labels.flags.writeable
        assert sorted([*samples.positives, *samples.negatives]) == list(range(len(samples)))
        assert samples.labels[samples.positives].all()
    mine = np.zeros((2, 3), dtype=np.float32)
    Samples(mine, np.array([0, 1]))
    assert mine.flags.writeable
    with pytest.raises(ValueError, match="must have the same number of rows"):
        Samples(mine, np.array([0, 1, 1]))
    with pytest.raises(ValueError, match=r"labels must be 0 or 1, got \[0, 2\]"):
        Samples(mine, np.array([0, 2]))


@pytest.mark.parametrize(("noise", "flipped"), [(0.0, (0, 0)), (0.1, (13, 129)), (0.2, (27, 259)), (0.3, (41, 389))])
def test_label_noise_flips_exactly_its_share_of_each_class(noise: float, flipped: tuple[int, int]) -> None:
    clean, noisy = load(DataSpec(), 4), load(DataSpec(label_noise=noise), 4)
    labels = clean.train.labels
    assert (len(clean.train.positives), len(clean.train.negatives)) == (139, 1298)
    changed = flip_labels(labels, noise, seed=0) != labels
    assert (changed[labels == 1].sum(), changed[labels == 0].sum()) == flipped
    assert len(noisy.train.positives) == 139 - flipped[0] + flipped[1]
    np.testing.assert_array_equal(noisy.test.labels, clean.test.labels)


def test_imbalance_drops_training_positives_only() -> None:
    whole, data = (load(DataSpec(positive_label="first-half", imbalance=ratio), 4) for ratio in (0.0, 0.1))
    negatives = len(whole.train.negatives)
    assert (len(data.train.negatives), len(data.train.positives)) == (negatives, negatives // 9)
    np.testing.assert_array_equal(data.test.features, whole.test.features)
    labels = np.repeat(np.array([1, 0], dtype=np.int8), (50, 63))
    for ratio, kept in ((0.1, 7), (0.3, 27), (0.25, 21), (0.125, 9)):  # the fraction exactly as written
        assert labels[drop_positives(labels, ratio, seed=0)].sum() == kept


def test_client_shift_is_the_papers_gaussian() -> None:
    plain = load(DataSpec(), 16)
    shifted = load(DataSpec(client_shift=0.01, client_shift_std=0.2), 16)
    np.testing.assert_array_equal(plain.train.features, shifted.train.features)
    np.testing.assert_array_equal(plain.test.features, shifted.test.features)
    noises = [shifted.client(i).features - plain.client(i).features for i in range(16)]
    for index, noise in enumerate(noises):
        assert noise.mean() == pytest.approx(-0.08 + 0.01 * index, abs=4 * 0.2 / np.sqrt(noise.size))
        assert noise.std() == pytest.approx(0.2, rel=0.05)
    assert not np.allclose(noises[0][:89] + 0.08, noises[1][:89] + 0.07, atol=1e-3)
    assert shifted.client(5) is shifted.client(5)


def test_positive_labels() -> None:
    def positives(positive_label: str, dataset: str = "digits") -> int:
        data = load(DataSpec(dataset=dataset, positive_label=positive_label), 2)
        return len(data.train.positives) + len(data.test.positives)

    assert (positives(""), positives("3, 5"), positives("first-half")) == (174, 183 + 182, 901)
    assert positives("benign", "breast-cancer") == 357
    with refuses(DataError, "positive-label: got '11', which does not occur, .*labels that occur: 0, 1, 2"):
        positives("11")
    with refuses(DataError, "one class only: 1,797 positives and 0 negatives"):
        positives("0,1,2,3,4,5,6,7,8,9")


def test_a_majority_of_the_signs_of_long_and_servedio_is_always_right() -> None:
    data = load(DataSpec("synthetic-long-servedio", seed=3, label_noise=0.2), 8)
    assert (len(data.train), len(data.test), data.input_shape) == (4_000, 4_000, (21,))
    right = data.test.features * (2.0 * data.test.labels[:, None] - 1)
    halves, counts = np.unique(
        np.stack((right[:, :11].sum(axis=1), right[:, 11:].sum(axis=1))), axis=1, return_counts=True
    )
    assert sorted(halves.T.tolist()) == [[-1, 2], [11, -10], [11, 10]]
    np.testing.assert_allclose(counts / 4_000, [0.5, 0.25, 0.25], atol=0.035)  # 5 deviations of the rarer kinds
    wrong = np.sign(data.train.features.sum(axis=1)) != 2 * data.train.labels - 1
    assert wrong.mean() == pytest.approx(0.2, abs=0.001)


def test_offset_sites_hide_the_best_feature_across_sites() -> None:
    data = load(DataSpec(dataset="synthetic-offset-sites", seed=5), 16)
    assert (len(data.train), len(data.test), data.input_shape) == (1920, 9600, (10,))
    assert len(data.test.positives) == 1600
    offsets = []
    for part in parts_of(data):
        assert (len(part.positives), len(part.negatives)) == (20, 100)
        feature = part.features[:, 1]
        assert feature[part.positives].mean() - feature[part.negatives].mean() == pytest.approx(1.0, abs=0.35)
        assert feature[part.negatives].std() == pytest.approx(0.3, abs=0.1)
        offsets.append(feature[part.negatives].mean() + 0.5)
    assert 1.5 < np.std(offsets) < 4.5
    test_offsets = data.test.features[:, 1].reshape(16, 600)[:, 100:].mean(axis=1) + 0.5
    np.testing.assert_allclose(test_offsets, offsets, atol=0.2)
    others = np.delete(data.train.features.std(axis=0), 1)
    np.testing.assert_allclose(others, 1.0, atol=0.15)
    for clients, options, told in (
        (8, {}, "number of clients: got 8, allowed: 16"),
        (16, {"partition": "dirichlet"}, "partition: got 'dirichlet', allowed: 'natural'"),
    ):
        with refuses(DataError, told):
            load(replace(DataSpec(dataset="synthetic-offset-sites"), **options), clients)
    rare = load(DataSpec("synthetic-offset-sites", imbalance=0.1), 16)  # 11 positives to 100 negatives
    assert all(len(part.negatives) == 100 and 3 < len(part.positives) < 19 for part in parts_of(rare))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "digit"}, "dataset: got 'digit', allowed: .*; did you mean 'digits'"),
        ({"partition": "even"}, "partition: got 'even', allowed: iid, dirichlet"),
        ({"partition": "natural"}, "partition: got 'natural' with dataset 'digits', which has no .*heart-disease"),
        ({"partition_alpha": float("nan")}, "partition-alpha: got nan, allowed: a number above 0"),
        ({"partition_classes": 0}, "partition-classes: got 0, allowed: 1 or more"),
        ({"imbalance": 1.0}, "imbalance: got 1.0, allowed: 0"),
        ({"label_noise": 0.5}, "label-noise: got 0.5, allowed: at least 0 and below 0.5"),
        ({"client_shift": float("inf")}, "client-shift: got inf, allowed: a finite number"),
        ({"seed": -1}, "seed: got -1, allowed: 0 or a positive integer"),
        ({"validation_fraction": 1.0}, "validation-fraction: got 1.0, allowed: 0 .* below 1"),
        (
            {"dataset": "synthetic-pl", "validation_fraction": 0.5},
            "validation-fraction: got 0.5, allowed: 0, since dataset 'synthetic-pl' has no test set",
        ),
        ({"dataset": "synthetic-sparse-logistic", "partition_sites": 2}, "partition-sites: got 2, allowed: 0, since"),
        ({"label_column": "y"}, "label-column: got 'y', allowed: '' with dataset 'digits', which is not a table"),
    ],
)
def test_validate_names_the_key(options: dict[str, object], message: str) -> None:
    spec = replace(DataSpec(), **options)
    with refuses(DataError, message):
        validate(spec)
    with refuses(DataError, message):
        load(spec, 2)


@pytest.mark.parametrize(
    ("options", "num_clients", "message"),
    [
        ({}, 0, "number of clients: got 0, allowed: 1 or more"),
        ({}, 1438, "number of clients: got 1,438, but only 1,437 training samples"),
        ({"imbalance": 0.0001}, 2, "keeps no positive: the training set has 139 positives and 1,298 negatives"),
        ({"imbalance": 0.4}, 2, "imbalance: got 0.4, which needs 865 positives.*share of positives, 0.0967"),
        ({"partition": "linear"}, 60, "partition: got 'linear' over 60 clients, which fails .*use fewer clients"),
        ({"partition": "pathological"}, 4, "partition-classes: got 2 for each .*, allowed: 3 to 10"),
        ({"partition": "pathological", "partition_classes": 11}, 4, "classes: got 11 for each .*, allowed: 3 to 10"),
        ({"partition": "dirichlet", "partition_alpha": 1e-4}, 400, "dirichlet.*raise partition-alpha"),
        ({"partition_sites": 2}, 3, "partition-sites: got 2 for 3 clients, allowed: 0, or at least"),
    ],
)
def test_what_cannot_be_spread(options: dict[str, object], num_clients: int, message: str) -> None:
    with refuses(DataError, message):
        load(replace(DataSpec(), **options), num_clients)


@pytest.mark.parametrize("partition_id", [-1, 4])
def test_there_is_no_such_client(partition_id: int) -> None:
    data = load(DataSpec(), 4)
    assert "'digits', 4 clients, 1,437 training samples with 139 positives" in repr(data)
    with refuses(DataError, f"client: got {partition_id}, allowed: 0 to 3"):
        data.client(partition_id)


# Validation rows, and sites that take no part.


def rows_of(samples: Samples) -> set[bytes]:
    return {row.tobytes() for row in samples.features}


def test_validation_rows_come_from_the_training_rows_and_no_test_row_is_seen() -> None:
    plain, held = load(DataSpec(seed=3), 4), load(DataSpec(seed=3, validation_fraction=0.25), 4)
    negatives, positives = round(0.25 * len(plain.train.negatives)), round(0.25 * len(plain.train.positives))
    rows = held.evaluated
    assert (len(rows.negatives), len(rows.positives)) == (negatives, positives)
    assert rows_of(held.train) | rows_of(rows) == rows_of(plain.train)
    assert rows_of(rows) & rows_of(held.train) == rows_of(rows) & rows_of(plain.test) == set()
    assert len(held.train) + len(rows) == len(plain.train)
    assert plain.evaluated is plain.test
    assert held.test.features.tobytes() == plain.test.features.tobytes()
    other = load(DataSpec(seed=4, validation_fraction=0.25), 4)
    assert rows_of(other.evaluated) != rows_of(rows)


def test_validation_rows_are_left_as_they_are() -> None:
    """Like test rows; imbalance, label noise and shift apply to the remaining rows."""
    spec = DataSpec(positive_label="first-half", validation_fraction=0.25)
    disturbed = replace(spec, imbalance=0.1, label_noise=0.2, client_shift=0.01)
    assert load(disturbed, 4).evaluated.features.tobytes() == load(spec, 4).evaluated.features.tobytes()
    assert load(disturbed, 4).evaluated.labels.tobytes() == load(spec, 4).evaluated.labels.tobytes()


@pytest.mark.parametrize(
    ("spec", "clients", "each"),
    [
        (DataSpec("synthetic-offset-sites", partition="natural", validation_fraction=0.25), 16, 30),
        (DataSpec("synthetic-sparse-logistic", synthetic_samples=50, validation_fraction=0.2), 3, 10),
    ],
    ids=lambda value: getattr(value, "dataset", ""),
)
def test_sites_of_their_own_each_hold_validation_rows_out(spec: DataSpec, clients: int, each: int) -> None:
    plain, held = load(replace(spec, validation_fraction=0.0), clients), load(spec, clients)
    for before, after in zip(parts_of(plain), parts_of(held), strict=True):
        assert rows_of(after) < rows_of(before)
        assert len(rows_of(before) & rows_of(held.evaluated)) == len(before) - len(after) == each
    assert len(held.evaluated) == clients * each
    assert rows_of(held.evaluated) & rows_of(plain.test) == set()
    assert rows_of(held.test) == rows_of(plain.test)


@pytest.mark.parametrize("name", ["iid", "sorted-90", "dirichlet"])
def test_the_clients_are_the_first_of_more_sites(name: str) -> None:
    spec = DataSpec(partition=name, client_shift=0.01)
    whole, some = load(spec, 8), load(replace(spec, partition_sites=8), 3)
    assert (some.num_clients, len(some.train)) == (3, sum(len(whole.client(i)) for i in range(3)))
    for index in range(3):
        assert some.client(index).features.tobytes() == whole.client(index).features.tobytes()
        assert some.client(index).labels.tobytes() == whole.client(index).labels.tobytes()
    assert some.test.features.tobytes() == whole.test.features.tobytes()
