"""Tests of real copies of Fashion-MNIST, UCI credit, Heart Disease, a9a, w8a and PneumoniaMNIST: the publishers'
counts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from problems.data import DataError, DataSpec, load
from tests.programs import REAL, needs_real
from tests.refusals import refuses

pytestmark = needs_real


def test_fashion_mnist_with_the_papers_imbalance() -> None:
    whole, data = (load(DataSpec(dataset="fashion-mnist", data_dir=str(REAL), imbalance=r), 16) for r in (0.0, 0.1))
    assert (len(data.train.positives), len(data.train.negatives)) == (3_333, 30_000)
    assert (len(data.test.positives), len(data.test.negatives)) == (5_000, 5_000)
    assert data.input_shape == (1, 28, 28)
    positives = [len(data.client(index).positives) for index in range(16)]
    assert sum(positives) == 3_333
    assert max(positives) - min(positives) <= 1
    assert len(whole.train.positives) == 30_000
    assert whole.train.features.max() == 1.0
    assert whole.train.features.mean(dtype=np.float64) == pytest.approx(0.2860, abs=1e-4)
    assert whole.train.features.std(dtype=np.float64) == pytest.approx(0.3530, abs=1e-4)


def test_uci_credit_has_ninety_features() -> None:
    data = load(DataSpec(dataset="uci-credit", data_dir=str(REAL)), 8)
    assert len(data.train) + len(data.test) == 30_000
    assert len(data.train.positives) + len(data.test.positives) == 6_636
    assert (len(data.train), len(data.train.positives)) == (24_000, 5_309)
    features = data.train.features
    assert features.shape == (24_000, 90)
    assert (features.min(axis=0) == 0.0).all()
    codes, amounts = features[:, :76], features[:, 76:]
    assert np.isin(codes, (0.0, 1.0)).all()
    # Sex is one column; education, marriage and the six states of payment are groups that sum to one.
    for start, stop in zip([1, 8, 12, 23, 34, 45, 56, 66], [8, 12, 23, 34, 45, 56, 66, 76], strict=True):
        assert (codes[:, start:stop].sum(axis=1) == 1.0).all()
    assert (amounts.max(axis=0) == 1.0).all()
    # columns.json turns the published rows into these rows, in another order
    assert data.columns is not None
    published = data.columns.features(pd.read_csv(REAL / "uci-credit" / "UCI_Credit_Card.csv.gz"))
    ours = np.concatenate([features, data.test.features])
    np.testing.assert_array_equal(published[np.lexsort(published.T)], ours[np.lexsort(ours.T)])


def test_uci_credit_amounts_become_bins() -> None:
    spec = DataSpec(dataset="uci-credit", data_dir=str(REAL), scale="bins", bins=4, borders="AGE:30|45")
    data = load(spec, 8)
    assert data.columns is not None
    assert [name for name in data.columns.names if name.startswith("AGE ")] == ["AGE <= 30", "AGE (30, 45]", "AGE > 45"]
    amounts = [index for index, feature in enumerate(data.columns.outputs) if feature.transform == "bin"]
    assert len({data.columns.outputs[index].column for index in amounts}) == 14
    assert (data.train.features[:, amounts].sum(axis=1) == 14).all()
    for changes, expected in (
        ({"borders": "PAY_0:1"}, "borders: got borders of 'PAY_0', allowed: columns of numbers or dates: LIMIT_BAL"),
        ({"scale": "log", "bins": 10}, "scale: got 'log', allowed: 'auto' or 'bins' with dataset 'uci-credit'"),
    ):
        with refuses(DataError, expected):
            load(replace(spec, **changes), 2)


def test_uci_credit_shares_get_the_same_columns(tmp_path: Path) -> None:
    table = pd.read_csv(REAL / "uci-credit" / "UCI_Credit_Card.csv.gz", nrows=200)
    table.to_csv(tmp_path / "site.csv", index=False)
    samples = load(DataSpec(dataset="uci-credit", data_dir=str(tmp_path / "site.csv")), 2)
    assert samples.input_shape == (90,)
    assert len(samples.train.positives) + len(samples.test.positives) == table["default.payment.next.month"].sum()
    table.loc[3, "MARRIAGE"] = 7
    table.to_csv(tmp_path / "site.csv", index=False)
    with refuses(DataError, "column 'MARRIAGE': got unknown code 7, allowed: 0, 1, 2, 3"):
        load(DataSpec(dataset="uci-credit", data_dir=str(tmp_path / "site.csv")), 2)
    table.drop(columns=["AGE"]).to_csv(tmp_path / "site.csv", index=False)
    with refuses(DataError, "got a table that lacks AGE, allowed: the UCI credit card file"):
        load(DataSpec(dataset="uci-credit", data_dir=str(tmp_path / "site.csv")), 2)


def test_w8a_counts() -> None:
    data = load(DataSpec(dataset="w8a", data_dir=str(REAL / "w8a")), 8)
    assert len(data.train) + len(data.test) == 49_749
    assert len(data.train.positives) + len(data.test.positives) == 1_479
    assert data.input_shape == (300,)
    assert data.train.features.sum(dtype=np.float64) + data.test.features.sum(dtype=np.float64) == 579_586
    assert len(data.test.positives) == 296


def test_pneumonia_counts() -> None:
    data = load(DataSpec(dataset="pneumonia-mnist", data_dir=str(REAL)), 8)
    arrays = np.load(REAL / "pneumonia-mnist" / "pneumoniamnist.npz")
    # the copy has a part of MedMNIST's 4,708 training images, and all of its 524 and 624 others
    assert len(data.train) == len(arrays["train_labels"]) + 524
    assert len(data.train.positives) == arrays["train_labels"].sum() + arrays["val_labels"].sum()
    assert (len(data.test), len(data.test.positives)) == (624, 390)
    assert data.input_shape == (1, 28, 28)


def test_a9a_counts() -> None:
    data = load(DataSpec(dataset="a9a", data_dir=str(REAL), partition="natural"), 16)
    sites = [data.client(index) for index in range(16)]
    assert len(data.train) + len(data.test) == 32_561
    assert len(data.train.positives) + len(data.test.positives) == 7_841
    levels = np.concatenate((data.train.features, data.test.features))[:, 18:34].sum(axis=0)
    assert (min(levels), max(levels), len(levels)) == (51, 10_501, 16)
    # each site has one level of education, and the smallest site has no positive
    assert [int(site.features[:, 18:34].sum(axis=0).argmax()) for site in sites] == list(range(16))
    assert all(site.features[:, 18 + index].all() for index, site in enumerate(sites))
    assert len(sites[15].positives) == 0


def test_heart_disease_is_flambys() -> None:
    import pandas as pd

    spec = DataSpec(dataset="heart-disease", data_dir=str(REAL), partition="natural")
    data = load(spec, 4)
    sites = [data.client(index) for index in range(4)]
    assert [(len(site), len(site.positives)) for site in sites] == [(199, 91), (172, 65), (30, 30), (85, 66)]
    # 740 of 920 patients are left; 46, 38, 98 and 78 % of each hospital's patients are ill
    assert (len(data.test), len(data.train.positives) + len(data.test.positives)) == (254, 139 + 98 + 45 + 101)
    table = pd.read_csv(REAL / "heart-disease" / "processed.cleveland.data").drop(columns=["X11", "X12", "X13", "X14"])
    expected = pd.get_dummies(table, columns=["X3", "X7"], drop_first=True).astype(float)
    assert data.columns is not None
    assert len(data.columns.names) == expected.shape[1] == 13
    where = [data.columns.names.index(name) for name in ("age", "cp=2", "restecg=2", "oldpeak")]
    scales = [(feature.deviation, feature.mean) for feature in data.columns.outputs]
    features = sites[0].features * [deviation for deviation, _ in scales] + [mean for _, mean in scales]
    rows = {tuple(row) for row in expected[["X1", "X3_2.0", "X7_2.0", "X10"]].to_numpy().round(3)}
    assert {tuple(row) for row in features[:, where].round(3).tolist()} <= rows
    pooled = load(DataSpec(dataset="heart-disease", data_dir=str(REAL), seed=5), 7)
    assert (len(pooled.train), len(pooled.client(6))) == (486, 69)
    np.testing.assert_array_equal(pooled.test.features, data.test.features)
