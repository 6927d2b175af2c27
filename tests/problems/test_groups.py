"""Tests of `group-column`: no group is split, and classes are spread as evenly as whole groups allow."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from problems.data import DataError, DataSpec, load, read_own
from problems.data.disturb import split, validation_split
from problems.data.groups import allot, number_paths
from problems.data.partitions import partition
from problems.data.repeats import warn_of_repeats
from tests.refusals import refuses, spell

PATIENTS, VISITS = 60, 6


def visits(folder: Path, name: str = "visits.csv", **columns: Any) -> Path:
    """Return a table in which ``code`` identifies the patient, and all visits of a patient have the same label."""
    rng = np.random.default_rng(0)
    patient = np.repeat(np.arange(PATIENTS), VISITS)
    frame = pd.DataFrame({"patient": [f"{number:03}" for number in patient], "code": patient * 1.0})
    frame["label"] = (rng.random(PATIENTS) < 0.4).astype(int)[patient]
    frame = frame.assign(**columns).sample(frac=1, random_state=0)
    frame.to_csv(folder / name, index=False)
    return folder / name


def spec_of(path: Path, **keys: Any) -> DataSpec:
    return DataSpec("csv", data_dir=str(path), **{"group_column": "patient", "scale": "none", **keys})


def codes(features: np.ndarray) -> set[float]:
    return set(features[:, 0].tolist())


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "linear", "consecutive", "positives-skewed"])
def test_no_patient_is_in_two_parts(kind: str, tmp_path: Path) -> None:
    data = load(spec_of(visits(tmp_path), partition=kind, validation_fraction=0.25), 3)
    assert data.columns is not None
    assert data.columns.names == ("code",)
    assert data.validation is not None
    parts = [codes(data.client(place).features) for place in range(3)]
    parts += [codes(data.test.features), codes(data.validation.features)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == PATIENTS
    assert len(data.test) == PATIENTS * VISITS // 5
    assert "60 groups of 6 to 6 rows; 36 to train on, 12 to test on, 12 to validate on" in data.grouping
    again = load(spec_of(tmp_path / "visits.csv", partition=kind, validation_fraction=0.25), 3)
    np.testing.assert_array_equal(again.train.features, data.train.features)


def test_sites_keep_their_rows_and_patients_stay_on_one_side(tmp_path: Path) -> None:
    site = np.random.default_rng(1).integers(3, size=PATIENTS * VISITS)
    path = visits(tmp_path, site=[f"s{number}" for number in site])
    keys = {"site_column": "site", "partition": "natural", "validation_fraction": 0.2}
    data = load(spec_of(path, **keys), 3)
    assert data.validation is not None
    parts = [codes(part.features) for part in (data.train, data.test, data.validation)]
    assert sum(map(len, parts)) == PATIENTS
    assert "60 with rows at several sites" in data.grouping
    sizes = pd.read_csv(path, dtype=str)["site"].value_counts()
    for place in range(3):
        held = sum(int((part.sites == place).sum()) for part in (data.test, data.validation))
        assert len(data.client(place)) + held == sizes[f"s{place}"]


@given(st.lists(st.integers(1, 30), min_size=4, max_size=60), st.integers(0, 5), st.sampled_from([0.1, 0.2, 0.3, 0.5]))
@settings(max_examples=60, deadline=None)
def test_a_split_is_off_by_one_group_at_most(sizes: list[int], seed: int, fraction: float) -> None:
    groups = np.repeat(np.arange(len(sizes)), sizes)
    labels = (np.arange(len(sizes)) % 2).astype(np.int8)[groups]
    train, test = split(labels, fraction, seed, groups)
    assert sorted([*train, *test]) == list(range(len(groups)))
    assert not set(groups[train]) & set(groups[test])
    for label in (0, 1):
        wanted, held = fraction * (labels == label).sum(), (labels[test] == label).sum()
        assert 0 < held < (labels == label).sum()
        assert abs(held - wanted) <= max(sizes)
    kept, out = validation_split(labels, train, fraction, seed, groups=groups)
    assert not set(groups[kept]) & set(groups[out])


@given(st.lists(st.integers(1, 9), min_size=6, max_size=40), st.integers(2, 6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_no_client_is_empty(sizes: list[int], clients: int, seed: int) -> None:
    counts = np.stack([sizes, np.roll(sizes, 1)], axis=1).astype(float)
    targets = np.outer(np.random.default_rng(seed).dirichlet([0.2] * clients), counts.sum(axis=0))
    parts = allot(counts, targets, np.random.default_rng(seed))
    assert set(parts) == set(range(clients))


def test_groups_are_few_for_many_clients() -> None:
    groups, labels = np.repeat(np.arange(3), 10), np.tile([0, 1], 15).astype(np.int8)
    with refuses(DataError, r"number of clients: got 4, but only 3 groups of group-column 'who'"):
        partition(DataSpec(group_column="who"), labels, labels.astype(np.int64), 4, groups=groups)


@pytest.mark.parametrize(
    ("change", "keys", "words"),
    [
        ({"patient": "x"}, {}, "'patient', which is the same in all 360 rows, allowed: two groups or more"),
        ({"patient": [None] * 7 + ["a", " "] + ["b"] * 351}, {}, "'patient', which is missing in 8 of 360 rows"),
        ({}, {"partition": "shard"}, "partition: got 'shard', allowed: iid, dirichlet"),
        ({}, {"group_column": "label"}, "group-column: got 'label', allowed: a column that is neither label-column"),
        ({}, {"group_column": "nurse"}, "group-column: got 'nurse', allowed: columns patient, code"),
        ({"label": [1] * 6 + [0] * 354}, {}, "got 1 group with positive rows, allowed: at least two groups"),
    ],
)
def test_unusable_groups_are_refused(change: dict[str, Any], keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(spec_of(visits(tmp_path, **change), **keys), 3)
    assert words in spell(caught.value)


@pytest.mark.parametrize("dataset", ["digits", "npz", "svmlight"])
def test_data_without_columns_have_no_group_column(dataset: str, tmp_path: Path) -> None:
    with refuses(DataError, r"group-column: got 'patient', allowed: '' with this dataset"):
        load(DataSpec(dataset, data_dir=str(tmp_path), group_column="patient"), 3)


def test_ids_are_compared_as_text(tmp_path: Path) -> None:
    names = np.repeat([f"{number:02}" for number in range(10)] + [str(number) for number in range(20)], 12)
    assert "30 groups" in load(spec_of(visits(tmp_path, patient=names)), 2).grouping


def test_a_site_holds_out_whole_patients(tmp_path: Path) -> None:
    path = visits(tmp_path)
    spec = DataSpec("csv", partition="own", group_column="patient", drop_columns="patient", validation_fraction=0.2)
    rows = read_own(str(path), spec, 0)
    assert rows.validation_rows is not None
    parts = [codes(rows.features[part]) for part in (rows.train_rows, rows.test_rows, rows.validation_rows)]
    assert sum(map(len, parts)) == PATIENTS
    assert len(read_own(str(path), spec, None).test_rows) == PATIENTS * VISITS  # the server tests on all rows


def test_shared_patients_of_a_test_file_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = pd.read_csv(visits(tmp_path), dtype={"patient": str})
    frame.to_csv(tmp_path / "train.csv", index=False)
    other = frame[frame["code"] < 40].copy()
    other["patient"] = [f"9{name}" if code < 20 else name for name, code in zip(other.patient, other.code, strict=True)]
    other.to_csv(tmp_path / "test.csv", index=False)
    (tmp_path / "visits.csv").unlink()
    load(spec_of(tmp_path), 2)
    assert "120 of 240 test rows belong to 20 groups that also have training rows" in caplog.text


@pytest.mark.parametrize(("pattern", "name"), [("folder", "p{}/{}.png"), ("^(p[0-9]+)-", "p{}-{}.png")])
def test_images_are_grouped_by_folder_or_name(pattern: str, name: str, tmp_path: Path) -> None:
    for patient in range(10):
        for picture in range(4):
            file = tmp_path / ("ill" if patient % 2 else "well") / name.format(patient, picture)
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 4), 10 * patient, dtype=np.uint8)).save(file)
    data = load(DataSpec("image-folder", data_dir=str(tmp_path), group_column=pattern), 2)
    parts = [set(part.features[:, 0, 0, 0].tolist()) for part in (data.client(0), data.client(1), data.test)]
    assert sum(map(len, parts)) == 10
    with refuses(DataError, r"'\^\(q\)', which is missing in 40 of 40 images"):
        load(DataSpec("image-folder", data_dir=str(tmp_path), group_column="^(q)"), 2)


@pytest.mark.parametrize("pattern", ["patient", "(", "(a)(b)"])
def test_a_pattern_has_one_group(pattern: str) -> None:
    with refuses(DataError, "allowed: 'folder', or a regular expression with one capturing group"):
        number_paths(["a.png"], pattern)


def grouped_frame() -> tuple[pd.DataFrame, np.ndarray]:
    frame = pd.DataFrame({"code": np.repeat(np.arange(20.0), 3), "who": np.repeat(np.arange(20), 3)})
    return frame, np.tile([0, 1], 30)


def bare_arrays() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((6, 2)), np.tile([0, 1], 3)


def test_a_loader_names_its_group_column() -> None:
    data = load(DataSpec(f"{__name__}:grouped_frame", group_column="who"), 3)
    assert data.input_shape == (1,)
    parts = [codes(part.features) for part in (*map(data.client, range(3)), data.test)]
    assert sum(map(len, parts)) == 20
    with refuses(DataError, "returned features of type ndarray without that column"):
        load(DataSpec(f"{__name__}:bare_arrays", group_column="who"), 3)


# The warning of an id that repeats.


@pytest.mark.parametrize(
    ("name", "values", "warned"),
    [
        ("patient", np.repeat(np.arange(50), 8), True),
        ("PatientID", np.arange(400) % 380, True),  # a few patients come again
        ("patient", np.arange(400), False),
        ("patient", np.arange(400) % 395, False),
        ("record_id", np.repeat(np.arange(50), 8), True),
        ("site_id", np.arange(400) % 12, False),
        ("ward", np.arange(400) % 40, False),
        ("patient_age", np.arange(400) % 60, False),
    ],
)
def test_repeated_ids_are_reported(
    name: str, values: np.ndarray, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_repeats(pd.DataFrame({name: values}), [name], [])
    assert (f"column '{name}' has" in caplog.text) == warned


def test_a_run_reports_repeated_patients_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(spec_of(visits(tmp_path), group_column="", drop_columns="patient"), 3)
    text = (
        "column 'patient' has 60 values in 360 rows: rows of one patient may be trained and tested on; set group-column"
    )
    assert caplog.text.count(text) == 1


@pytest.mark.parametrize("dataset", ["digits", "breast-cancer"])
def test_bundled_data_cause_no_warning(dataset: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(DataSpec(dataset), 3)
    assert caplog.text == ""
