"""Tests of a site's own file: its columns, its held-out rows, and the common statistics for scaling."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from apps.sites.rows import encode_columns
from payloads.handshake import SiteReport, decode_names, encode_names
from payloads.record import PayloadError
from problems.data import OWN, DataError, DataSpec, Preprocessing, SiteRows, load, read_own, validate
from problems.data.agreement import Agreed, measure
from problems.data.agreement import agree as agree_on
from problems.data.disturb import hold_out
from problems.data.preprocessing import Feature
from problems.data.quoting import quote
from problems.data.spec import Column, fill_in, parse_columns, parse_names
from strategies.rounds.errors import StrategyError
from strategies.rounds.schema import agree
from tests.refusals import refuses, spell, states


def spec(dataset: str = "csv", **changes: Any) -> DataSpec:
    return DataSpec(dataset=dataset, partition=OWN, **changes)


def table(rows: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "weight": rng.normal(70, 9, rows),
            "age": rng.integers(20, 80, rows),
            "sex": rng.choice(["f", "m"], rows),
            "one": 0.1,
            "label": np.arange(rows) % 4 // 3,
        }
    )


def names_of(rows: SiteRows) -> tuple[str, ...]:
    assert rows.preprocessing is not None
    return rows.preprocessing.names


def written(frame: pd.DataFrame, path: Path) -> str:
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return str(path)


# Columns as the run config names them.


def test_columns_are_read_as_they_are_written() -> None:
    assert parse_columns("") == parse_columns("  ") == ()
    assert [column.name for column in fill_in(parse_columns("b,*, sex[f|m]"), ["a", "b", "sex", "d"])] == [
        "b",
        "a",
        "d",
        "sex",
    ]
    assert fill_in((), ["a", "b"]) == (Column("a"), Column("b"))
    assert parse_columns(" age , sex[f | m],b 2") == (Column("age"), Column("sex", ("f", "m")), Column("b 2"))
    quoted = parse_columns('"weight, kg", "dose [mg]"[low|"a,b"|"c|d"|*], 5" pipe, "say ""a"""')
    assert quoted == (
        Column("weight, kg"),
        Column("dose [mg]", ("low", "a,b", "c|d", "*")),
        Column('5" pipe'),
        Column('say "a"'),
    )


names = st.text(st.sampled_from('ab ,[]|"*'), min_size=1, max_size=6).filter(lambda name: name != "*")


@given(st.lists(st.tuples(names, st.lists(names, max_size=3, unique=True)), min_size=1, unique_by=lambda one: one[0]))
def test_any_name_can_be_quoted(columns: list[tuple[str, list[str]]]) -> None:
    listed = [(name, tuple(values) if len(values) > 1 else ()) for name, values in columns]
    words = [quote(name) + (f"[{'|'.join(map(quote, values))}]" if values else "") for name, values in listed]
    assert parse_columns(", ".join(words)) == tuple(Column(*one) for one in listed)
    assert parse_names("drop-columns", ",".join(quote(name) for name, _ in listed)) == tuple(n for n, _ in listed)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[f|m]", "is not a column"),
        ("a[f|m", "'a[f|m' is not a column"),
        ('a,"b', "'\"b' is not a column"),
        (
            '"a"b',
            "allowed: comma-separated names, name[value|value] for text; quoted if they contain commas or brackets",
        ),
        ("a[f]", "allowed: two or more different values in brackets"),
        ("a[f|]", "allowed: two or more different values in brackets"),
        ("a,a[f|m]", "column 'a' occurs twice"),
    ],
)
def test_columns_that_cannot_be(text: str, told: str) -> None:
    with refuses(DataError, "feature-columns") as caught:
        validate(spec(feature_columns=text))
    assert told in spell(caught.value)


@pytest.mark.parametrize(("dataset", "name"), [("csv", "t.csv"), ("csv", "t.csv.gz"), ("parquet", "t.parquet")])
def test_a_sites_table(dataset: str, name: str, tmp_path: Path) -> None:
    frame = table()
    rows = read_own(written(frame, tmp_path / name), spec(dataset, feature_columns="age,sex[f|m],weight"), 0)
    assert names_of(rows) == ("age", "sex=f", "sex=m", "weight")
    expected = [frame["age"], frame["sex"] == "f", frame["sex"] == "m", frame["weight"]]
    np.testing.assert_array_equal(rows.features, np.stack(expected, axis=1).astype(np.float64))
    np.testing.assert_array_equal(rows.labels, frame["label"])
    assert (len(rows.train_rows), rows.class_counts(rows.test_rows)) == (32, (6, 2))


def test_without_names_columns_go_by_theirs(tmp_path: Path) -> None:
    frame = table().drop(columns="sex")
    here = read_own(written(frame, tmp_path / "a.csv"), spec(), 0)
    there = read_own(written(frame[["label", "one", "weight", "age"]], tmp_path / "b.csv"), spec(), 0)
    assert names_of(here) == names_of(there) == ("age", "one", "weight")
    np.testing.assert_array_equal(here.features, there.features)


@pytest.mark.parametrize(
    ("change", "columns", "told"),
    [
        ({}, "", "column 'sex': got text, allowed: numbers, and text whose values are listed; encode the column"),
        ({}, "age,height", "got no column 'height' of feature-columns, allowed: columns weight, age, sex, one"),
        (
            {"sex": ["d"] + ["f"] * 39},
            "sex[f|m]",
            "column 'sex': got 1 of 40 cells that are not listed in feature-columns",
        ),
        (
            {"age": [np.nan] + [1.0] * 39},
            "age",
            "column 'age': got 1 of 40 cells missing, the first in row 1, allowed: no missing cells; set missing",
        ),
        ({"label": "secret"}, "age", "a site's file may lack a label of other sites"),
        ({"label": None}, "age", "40 of 40 labels missing"),
    ],
)
def test_tables_that_cannot_be_used(change: dict[str, Any], columns: str, told: str, tmp_path: Path) -> None:
    path = written(table().assign(**change), tmp_path / "t.csv")
    with pytest.raises(DataError) as caught:
        read_own(path, spec(feature_columns=columns), 0)
    assert told in spell(caught.value)
    assert "secret" not in spell(caught.value)
    assert "'d'" not in spell(caught.value)


def test_labels_a_site_may_lack(tmp_path: Path) -> None:
    path = written(table().assign(label="well"), tmp_path / "t.csv")
    rows = read_own(path, spec(positive_label="ill", feature_columns="age"), 0)
    assert rows.class_counts(rows.train_rows) == (32, 0)
    with refuses(DataError, "'first-half', which depends on labels .* 1 different labels occur here"):
        read_own(path, spec(positive_label="first-half", feature_columns="age"), 0)


# Other file formats.


def test_other_kinds_of_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", X=np.eye(20), y=np.arange(20) % 2, X_test=np.ones((3, 20)), y_test=[0, 1, 1])
    rows = read_own(str(tmp_path / "s.npz"), spec("npz"), 0)
    assert (rows.shape, rows.preprocessing, rows.statistics()) == ((20,), None, None)
    assert (rows.train_rows.tolist(), rows.test_rows.tolist()) == ([*range(20)], [20, 21, 22])
    np.testing.assert_array_equal(rows.samples(rows.train_rows, None).features, np.eye(20))

    (tmp_path / "s.svm").write_text("+1 1:1 4:1\n-1 2:1\n")
    assert read_own(str(tmp_path / "s.svm"), spec("svmlight"), 0).shape == (4,)
    assert read_own(str(tmp_path / "s.svm"), spec("svmlight", feature_columns="6"), 0).shape == (6,)

    for name, value in (("ill", 200), ("well", 100)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            Image.new("L", (6, 4), value + number).save(tmp_path / "images" / name / f"{number}.png")
    rows = read_own(str(tmp_path / "images"), spec("image-folder", positive_label="ill"), 0)
    assert (rows.shape, rows.class_counts(np.arange(10))) == ((1, 4, 6), (5, 5))
    assert rows.samples(rows.test_rows, None).features.max() <= 1.0


@pytest.mark.parametrize("own_test_rows", [True, False])
def test_validation_rows_are_evaluated_in_the_place_of_test_rows(tmp_path: Path, own_test_rows: bool) -> None:
    extra = {"X_test": np.ones((3, 2)), "y_test": [0, 1, 1]} if own_test_rows else {}
    np.savez(tmp_path / "s.npz", X=np.zeros((40, 2)), y=[0, 1] * 20, **extra)  # type: ignore[arg-type]
    plain, held = (read_own(str(tmp_path / "s.npz"), spec("npz", validation_fraction=part), 1) for part in (0.0, 0.25))
    assert held.class_counts(held.evaluated_rows) == ((5, 5) if own_test_rows else (4, 4))
    assert sorted([*held.train_rows, *held.evaluated_rows]) == plain.train_rows.tolist()
    assert held.test_rows.tolist() == plain.test_rows.tolist() == plain.evaluated_rows.tolist()


@pytest.mark.parametrize(
    ("name", "content", "dataset", "told"),
    [
        ("s.svm", "+1 0:1 4:1\n", "svmlight", "cannot be read as svmlight (ValueError)"),
        ("s.svm", "+1 1:secret\n", "svmlight", "cannot be read as svmlight (ValueError)"),
        ("s.svm", "+1 1:1 9:1\n", "svmlight", "cannot be read as svmlight (ValueError)"),
        ("s.npz", "secret", "npz", "cannot be read as npz"),
        ("s.csv", "a,label\n1,2,3\n1,2,3,4\n", "csv", "got 3 cells in line 2, allowed: 2 cells in each line"),
        ("s.csv", "a;b;label\n1,5;secret;1\n2;3,5;0\n", "csv", "column 'b': got text, allowed: numbers"),
        ("s.csv", "a;b,label\nsecret;2,0\n", "csv", "separator: got 'auto', with line 1 of"),
        ("s.csv", "a;b;label\n1,5;2.5;0\n", "csv", "decimal: got 'auto', with decimal commas in column 'a'"),
        ("s.csv", "a,label\nsecret é\x81,0\n", "csv", "bytes in line 2 that are not UTF-8 or cp1252"),
        ("s.doc", "", "csv", "got no file of dataset 'csv', allowed: .csv, .csv.gz"),
        ("s.xls", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "csv", "got an old .xls workbook, or a workbook with a password"),
        ("s.csv", "", "image-folder", "got no file of dataset 'image-folder', allowed: a folder of class folders"),
    ],
)
def test_files_of_no_use(name: str, content: str, dataset: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, "latin-1")
    wanted = spec(dataset, feature_columns="4" if dataset == "svmlight" else "")
    with pytest.raises(DataError) as caught:
        read_own(str(tmp_path / name), wanted, 0)
    assert told in spell(caught.value)
    assert "secret" not in spell(caught.value)
    with refuses(DataError, "got no such file"):
        read_own(str(tmp_path / "nowhere"), wanted, 0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dataset": "digits"}, "allowed: csv, parquet, svmlight, npz, image-folder or 'package.module:loader', since"),
        ({"imbalance": 0.1}, "imbalance: got 0.1, allowed: 0 with partition 'own'"),
        ({"dataset": "npz", "feature_columns": "a"}, "feature-columns: got 'a', allowed: '' with dataset 'npz'"),
        (
            {"dataset": "npz", "scale": "none"},
            "scale: got 'none', allowed: 'auto' with dataset 'npz', which is not a table",
        ),
        (
            {"scale": "logs"},
            "scale: got 'logs', allowed: auto, standard, quantile, log, range, bins, none; did you mean 'log'?",
        ),
        ({"bins": 5}, "bins: got 5, allowed: 10 with scale 'auto', or another with scale 'bins'; set scale to"),
        ({"scale": "bins", "bins": 33}, "bins: got 33, allowed: an integer from 2 to 32"),
        ({"missing": "drop"}, "missing: got 'drop', allowed: error, mean, median, indicator"),
        ({"missing_values": "-9,,?"}, "missing-values: got '-9,,?', with an empty or repeated marker"),
        ({"drop_columns": "a,a"}, "drop-columns: got 'a,a', allowed: different comma-separated names"),
        ({"drop_columns": "a", "feature_columns": "b,a"}, "drop-columns: got 'a', with 'a', allowed: no column that"),
        (
            {"drop_columns": "label"},
            "drop-columns: got 'label', with 'label', allowed: no column that another key names",
        ),
        (
            {"missing_values": "?", "feature_columns": "a[x|?]"},
            "missing-values: got '?', with '?', allowed: no value that",
        ),
        ({"dataset": "svmlight", "feature_columns": "0"}, "feature-columns: got '0', allowed: a number of features"),
    ],
)
def test_what_does_not_go_with_own_files(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError) as caught:
        validate(spec(**changes))
    assert told in spell(caught.value)
    with refuses(DataError, "each site's rows are in a file"):
        load(spec(), 3)


# Held-out rows.


@given(st.lists(st.integers(0, 1), min_size=1, max_size=60), st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_row_is_trained_with_or_held_out(labels: list[int], fraction: float, place: int) -> None:
    array = np.array(labels, dtype=np.int8)
    train, test = hold_out(array, fraction, 0, place)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(labels)))
    for label in (0, 1):
        held, there = int((array[test] == label).sum()), labels.count(label)
        assert held == 0 if there < 2 else 1 <= held < there
    np.testing.assert_array_equal(test, hold_out(array, fraction, 0, place)[1])


def test_a_server_with_a_test_file_leaves_the_sites_all_rows(tmp_path: Path) -> None:
    path = written(table(), tmp_path / "t.csv")
    wanted = spec(feature_columns="age", data_dir="/srv/test.csv")
    rows = read_own(path, wanted, 0)
    assert (len(rows.train_rows), len(rows.test_rows)) == (40, 0)
    rows = read_own(path, wanted, None)
    assert (len(rows.train_rows), len(rows.test_rows)) == (0, 40)


# Scaling by all sites' statistics.


def columns(*names: str, **changes: Any) -> Preprocessing:
    """Return a table of numbers, with codes in the first column."""
    first, *others = names
    features = (Feature(first, "category", "1"), *(Feature(name, "number") for name in others))
    return Preprocessing(features, **changes)


def report(place: int, values: np.ndarray, **changes: Any) -> SiteReport:
    table = columns("x", "y", "z")
    statistics = measure(table, values, min_cells=1)
    fields: dict[str, Any] = {
        "identity": np.array([place, 3]),
        "class_counts": np.array([len(values) - 1, 1]),
        "shape": np.array([len(table.inputs)]),
        "columns": encode_columns(table),
        "negative_labels": encode_names(("no",)),
        "positive_labels": encode_names(("yes",)),
        **{name: getattr(statistics, name) for name in ("counts", "means", "variances", "quantiles")},
    }
    return SiteReport(**{**fields, **changes})


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4).flatmap(
        lambda sizes: st.tuples(
            st.just(sizes),
            arrays(np.float64, (sum(sizes), 3), elements=st.floats(-1e6, 1e6).map(lambda x: round(x, 3))),
        )
    )
)
def test_pooled_statistics_are_those_of_the_union(drawn: tuple[list[int], np.ndarray]) -> None:
    sizes, values = drawn
    parts = np.split(values, np.cumsum(sizes)[:-1])
    told = [measure(columns("x", "y", "z"), part, min_cells=1) for part in parts]
    scaling = agree_on(columns("x", "y", "z"), [statistics for statistics in told if statistics is not None])
    constant, largest = np.ptp(values, axis=0) == 0, 1 + np.abs(values).max()
    expected, means = np.where(constant, 0, values.std(axis=0)), values.mean(axis=0)
    expected[0], means[0], constant[0] = 1.0, 0.0, False
    np.testing.assert_allclose(scaling.means, means, atol=1e-9 * largest)
    np.testing.assert_allclose(scaling.deviations, expected, atol=1e-7 * largest)
    assert not scaling.deviations[constant].any()
    np.testing.assert_array_equal(scaling.means[constant], values[0, constant])


def test_rows_are_scaled_by_all_sites_means_or_not_at_all(tmp_path: Path) -> None:
    frame = table()
    path, few = written(frame, tmp_path / "t.csv"), written(table(11), tmp_path / "few.csv")
    rows = read_own(path, spec(feature_columns="age,weight"), 0)
    with refuses(DataError, "scale, missing: got none, allowed: all sites' numbers for 2 columns"):
        rows.samples(rows.train_rows, None)
    with refuses(DataError, "got numbers for 1 columns, allowed: all sites' numbers for 2 columns"):
        rows.samples(rows.train_rows, Agreed(np.zeros(1), np.ones(1)))
    # a server's own scaling must not reveal a row's values through an overflow
    extreme = rows.samples(rows.train_rows, Agreed(np.zeros(2), np.full(2, 1e-308))).features
    assert np.abs(extreme).max() == 1e6
    lacking = read_own(path, spec(feature_columns="age,weight", missing="mean"), 0)
    for fill, told in ((100.0, ""), (101.0, "a fill more than 10 deviations from the mean of column 'age'")):
        agreed = Agreed(np.full(2, 50.0), np.full(2, 5.0), np.array([fill, 50.0]))
        with refuses(DataError, told) if told else contextlib.nullcontext():
            lacking.samples(lacking.train_rows, agreed)
    with refuses(DataError, "training rows: got 8, allowed: 10 or more, since the means of fewer"):
        read_own(few, spec(feature_columns="age"), 0).statistics()

    plain = spec(feature_columns="age,weight", scale="none")
    assert read_own(few, plain, 0).statistics() is None
    features = read_own(path, plain, 0).samples(np.arange(40), None).features
    np.testing.assert_array_equal(features, frame[["age", "weight"]].to_numpy(np.float32))
    pooled_frame = load(DataSpec("csv", path, feature_columns="age,weight", scale="none"), 1)
    assert set(pooled_frame.train.features[:, 0].tolist()) <= set(frame["age"].astype(float))


# The sites' agreement.

VALUES = np.random.default_rng(0).normal(size=(12, 3))
DATED = Preprocessing((*columns("x", "y").inputs, Feature("z", "date")))
FITTED = Preprocessing((*columns("x", "y", "z").inputs, Feature("z", "missing")))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"columns": encode_columns(columns("x", "y", "v"))},
            "lacks 'z' and has 'v' in addition, allowed: the columns of partition 0; make the columns equal",
        ),
        (
            {"columns": encode_columns(columns("x", "y"))},
            "got a table that lacks 'z', allowed: the columns of partition",
        ),
        (
            {"columns": encode_columns(columns("x", "y", "z", "v"))},
            "got a table that has 'v' in addition, allowed: the columns of partition 0",
        ),
        (
            {"columns": encode_columns(columns("x", "z", "y"))},
            "columns: got another order than partition 0, allowed: the",
        ),
        (
            {"columns": np.frombuffer(b'["x", 1]', np.uint8)},
            "columns: got unreadable columns: SiteReport.columns",
        ),
        ({"columns": np.frombuffer(b"[" * 10**5, np.uint8)}, "SiteReport.columns: not JSON, allowed: the columns"),
        ({"columns": encode_columns(columns("x", "y", "z", scale="log"))}, "columns: got other keys of the run config"),
        (
            {"columns": encode_columns(DATED)},
            "column 'z': got cells of kind 'date', allowed: cells of kind 'number', as at other",
        ),
        ({"columns": encode_columns(FITTED)}, "bins or features of missing cells before the sites have"),
        (
            {"negative_labels": None, "positive_labels": None},
            "labels: got numbers at partition 1",
        ),
        ({"negative_labels": encode_names(("x" * 65,))}, "SiteReport.labels: a value of more than 64 characters"),
        (
            {"negative_labels": encode_names(tuple(map(str, range(128))))},
            "SiteReport.labels: 129 values, allowed: 1",
        ),
        ({"positive_labels": np.frombuffer(b"[1]", np.uint8)}, "SiteReport.labels: not a list of names"),
        ({"shape": np.array([4])}, "samples: got shape (4,), allowed: the shape (3,) of partition 0"),
        (
            {"shape": None},
            "data-path: got a file at partition 0, no file at partition 1, allowed: a file at every site",
        ),
        ({"counts": None}, "means: got means from only one of this site and partition 0, allowed: means from both"),
        ({"variances": None}, "columns: got other statistics than the run config needs"),
        ({"quantiles": np.zeros(1)}, "columns: got other statistics than the run config needs"),
        (dict.fromkeys(("counts", "means", "variances"), np.zeros(2, int)), "columns: got statistics of other columns"),
        ({"variances": -np.ones(3)}, "columns: got a variance below 0"),
        ({"counts": np.array([12, 13, 12])}, "columns: got a count below 0 or above the 12 training rows"),
        ({"counts": np.array([12, 12, -1])}, "columns: got a count below 0 or above the 12 training rows"),
    ],
)
def test_a_site_that_differs_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(StrategyError) as caught:
        agree([report(0, VALUES), report(1, VALUES, **changes), report(2, VALUES)])
    assert str(caught.value).startswith("handshake: partition 1: ")
    assert states(str(caught.value), told)


def test_a_first_site_without_a_file_is_named_too() -> None:
    with refuses(StrategyError, r"partition 0: data-path: got a file at partition 1, no file at partition 0"):
        agree([report(0, VALUES, shape=None), report(1, VALUES)])


def test_sites_may_have_images_of_other_depths_but_one_number_of_bits(caplog: pytest.LogCaptureFixture) -> None:
    table = dict.fromkeys(("columns", "counts", "means", "variances", "quantiles"))

    def join(*maxima: float | None) -> float | None:
        depths = [None if maximum is None else np.array([maximum]) for maximum in maxima]
        schema = agree([report(place, VALUES, **table, pixel_max=depth) for place, depth in enumerate(depths)])
        return None if schema is None else schema.pixel_max

    assert join(None, None) is None
    assert not caplog.records
    assert (join(None, 4095.0, 1.0), join(1.0, None)) == (4095, 1)
    assert "(1 with 8-bit images, 1 with 16-bit images with numbers up to 4095, 1 with floating" in caplog.text
    with refuses(StrategyError, r"partition 1: images: got 16-bit .* to 1023, .* partition 2; set pixel-bits=12"):
        join(None, 1023.0, 4095.0)


def told_labels(*sites: tuple[str, str]) -> list[SiteReport]:
    """Return the reports of sites with the given numbers of negative and positive labels."""
    told = [[encode_names(tuple(values.split())) for values in site] for site in sites]
    return [
        report(place, VALUES, negative_labels=negative, positive_labels=positive)
        for place, (negative, positive) in enumerate(told)
    ]


def test_labels_that_no_other_site_has() -> None:
    with pytest.raises(StrategyError) as caught:
        agree(told_labels(("benign", "malignant"), ("B M", ""), ("0 1", "")))
    text = str(caught.value)
    assert states(
        text, "partition 1: labels: got 'B', 'M', none of them in positive-label or at another site, allowed: "
    )
    assert "handshake: partition 2: labels (got '0', '1', none of them" in text
    assert "partition 0" not in text


@pytest.mark.parametrize(
    ("sites", "told"),
    [
        ([("no", "yes"), ("no", "")], "partition 1 has no positive label, only 'no'"),
        (
            [("B M", ""), ("no", "yes"), ("B M", "")],
            "partition 0 has no positive label, only 'B', 'M'; only partition 1",
        ),
        ([("no", "yes"), ("no Yes", "yes")], "only partition 1 has 'Yes'"),
        ([("no", "yes"), ("", "yes"), ("no", "yes ill")], ""),
        ([("no", "yes")], ""),
    ],
)
def test_labels_to_doubt(sites: list[tuple[str, str]], told: str, caplog: pytest.LogCaptureFixture) -> None:
    agree(told_labels(*sites))
    assert len(caplog.records) == bool(told)
    assert told in caplog.text


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)))))
def test_names_come_back(names: list[str]) -> None:
    assert decode_names(encode_names(tuple(names))) == tuple(names)


def test_bytes_that_are_no_names() -> None:
    for blob in (b"", b"{", b"[" * 100_000, b'"x"', b"\xff"):
        with pytest.raises(PayloadError, match="not a list of names"):
            decode_names(np.frombuffer(blob, np.uint8))
