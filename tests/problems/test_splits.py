"""Tests of ``test-sites``, and of test files with sites that do not train."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from problems.data import DataError, DataSpec, FederatedData, load
from problems.data.formats.readers import read
from tests.refusals import refuses

HOSPITALS = DataSpec(dataset="heart-disease", partition="natural")


def write(folder: Path, train: str, test: str = "") -> DataSpec:
    """Write a table whose lines are ``site,age,label``."""
    for name, lines in {"train.csv": train, "test.csv": test}.items():
        if lines:
            (folder / name).write_text("site,age,label\n" + "\n".join(lines.split()) + "\n")
    return DataSpec(dataset="csv", data_dir=str(folder), site_column="site", partition="natural", scale="none")


def ages(data: FederatedData, client: int) -> list[float]:
    return data.client(client).features.ravel().tolist()


@pytest.mark.parametrize("names", ["Cleveland", "Hungary", "Cleveland, VA Long Beach"])
def test_named_sites_test_and_the_others_train(names: str) -> None:
    source = read(HOSPITALS)
    chosen = [source.site_names.index(name) for name in names.split(", ")]
    data = load(replace(HOSPITALS, test_sites=names), 4 - len(chosen))
    train, own_test = source.own_split()
    assert source.sites is not None
    trains = [site for site in range(4) if site not in chosen]
    assert data.site_names == tuple(source.site_names[site] for site in trains)
    assert [len(data.client(i)) for i in range(len(trains))] == [int((source.sites[train] == s).sum()) for s in trains]
    assert len(data.test) == int(np.isin(source.sites, chosen).sum())
    assert data.test.sites is not None
    assert (data.test.sites == -1).all()
    left_out = int(np.isin(source.sites[own_test], trains).sum())
    assert f"test-sites: {left_out} rows are left out" in data.notes[-1]


def test_sites_are_named_as_in_their_column_and_scaling_uses_the_training_rows_alone(tmp_path: Path) -> None:
    spec = write(tmp_path, "7,1,0 7,3,1 8,100,0 8,300,1 Bern,5,0 Bern,7,1")
    data = load(replace(spec, test_sites="8", scale="standard"), 2)
    assert data.site_names == ("site 7", "Bern")
    mean, deviation = 4.0, np.std([1, 3, 5, 7])
    np.testing.assert_allclose(data.test.features.ravel(), (np.array([100, 300]) - mean) / deviation, rtol=1e-6)


def test_a_site_of_the_test_file_alone_is_no_client(tmp_path: Path) -> None:
    data = load(write(tmp_path, "a,1,0 a,2,1 c,3,0 c,4,1", "a,5,0 b,6,1 c,7,0 b,8,0"), 2)
    assert ages(data, 0) == [1, 2]
    assert ages(data, 1) == [3, 4]
    assert data.site_names == ("a", "c")
    assert data.test.sites is not None
    assert data.test.sites.tolist() == [0, -1, 1, -1]
    assert data.notes[-1] == "2 test rows belong to sites without training rows: b"


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"test_sites": "d"}, "test-sites: got 'd', which is not a site, allowed: names of sites: a, b"),
        ({"test_sites": "a, b"}, "test-sites: got all sites, allowed: at least one site that trains"),
        ({"test_sites": "a", "site_column": "", "partition": "iid"}, "test-sites: got 'a', allowed: '' for data"),
        ({"test_sites": "a", "site_column": "", "partition": "own"}, "test-sites: got 'a', allowed: '' for data"),
        (
            {"test_sites": "a", "site_column": "", "partition": "natural", "dataset": "synthetic-pl", "data_dir": ""},
            "test-sites: got 'a', allowed: '' for data",
        ),
        ({"test_sites": "a,"}, "test-sites: got 'a,', allowed: different comma-separated names"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(spec: dict[str, str], error: str, tmp_path: Path) -> None:
    table = write(tmp_path, "a,1,0 a,2,1 b,3,0 b,4,1")
    with refuses(DataError, error):
        load(replace(table, **spec), 1)
