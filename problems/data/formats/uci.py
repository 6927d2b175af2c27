"""Readers of two tables of the UCI Machine Learning Repository: credit card clients, and heart disease.

I-Cheng Yeh, "Default of Credit Card Clients": the nine categorical columns are one-hot encoded, including undocumented
codes (`EDUCATION` 0, 5, 6; `MARRIAGE` 0; `PAY_*` -2 and 0). This module lists the codes, so a site with a part of the
rows gets the same columns. `SEX` has two codes and needs a single column, which leads to the 90 features of the
literature. The other 14 columns are scaled to [0, 1] over the training rows, or become bins.

Janosi, Steinbrunn, Pfisterer and Detrano, "Heart Disease", 1988: rows, columns and split are the same as in FLamby (du
Terrail et al., NeurIPS 2022); docs/data-sets.md lists the differences.
"""

import base64
import io
import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int64

from problems.data.agreement import Encoded
from problems.data.borders import check_bordered, parse_borders
from problems.data.formats.inspection import numeric_column
from problems.data.formats.tables import read_table
from problems.data.preprocessing import Feature, Preprocessing, Scale
from problems.data.samples import Source, add_subgroups, make_source
from problems.data.spec import DataError, DataSpec

CREDIT_FILES = ("UCI_Credit_Card.csv", "UCI_Credit_Card.csv.gz")
LABELS = ("default.payment.next.month", "default payment next month")
_STATUS = tuple(range(-2, 9))
_LATE_STATUS = tuple(code for code in _STATUS if code != 1)
CREDIT_CODES: dict[str, tuple[int, ...]] = {
    "SEX": (1, 2),
    "EDUCATION": tuple(range(7)),
    "MARRIAGE": tuple(range(4)),
    **{f"PAY_{month}": _STATUS for month in (0, 2, 3, 4)},
    **{f"PAY_{month}": _LATE_STATUS for month in (5, 6)},
}
AMOUNTS = (
    "LIMIT_BAL",
    "AGE",
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)

# the publisher's four files, compressed, with the attribution that their licence asks for
HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
"""The hospitals, in the order of `HEART_FILES`."""
_HEART_COPY = Path(__file__).with_name("heart_disease.json")
HEART_FILES = tuple(f"processed.{hospital}.data" for hospital in ("cleveland", "hungarian", "switzerland", "va"))
DIAGNOSIS = "num"
COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
HEART_CODES: dict[str, tuple[int, ...]] = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2)}
ALL_COLUMNS = 14  # with slope, ca and thal, which are left out, and the diagnosis
TRAIN_SHARE, TEST_SHARE, SPLIT_SEED = 0.66, 0.34, 43

_AS_PUBLISHED = "use the file as it is published"


def credit(path: Path, spec: DataSpec) -> Source:
    """Return the credit card clients in `path`: 90 features, or more with bins, and classes "0" and "1".

    Args:
        path: The file.
        spec: The options. With the scale "bins" the amounts become bins. Its subgroups divide the rows.

    Raises:
        DataError: ``borders`` names another column than an amount. Or a column is missing, not finite, or contains a
            code that is not in the published file; names the column.
    """
    frame = read_table(path)
    label = next((name for name in LABELS if name in frame.columns), None)
    missing = [name for name in (*CREDIT_CODES, *AMOUNTS) if name not in frame.columns]
    if label is None or missing:
        got = f"a table that lacks {', '.join([LABELS[0]] * (label is None) + missing)}"
        allowed = "the UCI credit card file UCI_Credit_Card.csv"
        raise DataError(path, got=got, allowed=allowed, hint="set data-dir to UCI_Credit_Card.csv")

    for name in (*CREDIT_CODES, *AMOUNTS):
        values = numeric_column(frame[name])
        if name in CREDIT_CODES:
            _check_codes(path, name, values, CREDIT_CODES[name])
    coded = [
        Feature(name, "category", str(code))
        for name, codes in CREDIT_CODES.items()
        for code in (codes[1:] if len(codes) == 2 else codes)
    ]
    amounts = [Feature(name, "number") for name in AMOUNTS]
    borders = parse_borders(spec.borders)
    check_bordered(borders, AMOUNTS)
    scale: Scale = "bins" if spec.scale == "bins" else "range"
    preprocessing = Preprocessing((*coded, *amounts), scale=scale, label_column=label, bins=spec.bins, borders=borders)
    rows = Encoded(preprocessing, preprocessing.encode(frame))
    return add_subgroups(make_source(frame[label].to_numpy(), lambda train_rows: rows), spec, [frame])


def base_codes(dataset: str) -> dict[str, str]:
    """Return the code of each column that has no feature: all features of the column are 0 for this code.

    Args:
        dataset: The name of a data set. Data sets of other modules have no such codes.
    """
    if dataset == "heart-disease":
        return {name: str(codes[0]) for name, codes in HEART_CODES.items()}
    return {name: str(codes[0]) for name, codes in CREDIT_CODES.items() if len(codes) == 2 and dataset == "uci-credit"}


def heart_disease(paths: Sequence[Path] | None = None, spec: DataSpec | None = None) -> Source:
    """Return the patients in the hospitals' files: 13 features, classes "0" (healthy) to "4".

    The hospitals are the sites. Training rows come first, hospital by hospital, then the test rows in the same order.

    Args:
        paths: The hospitals' files, in the order of `HEART_FILES`. None: the copies in this package.
        spec: The run's options, for its subgroups. None: no subgroups.

    Raises:
        DataError: A file differs from the published file, or contains an unknown code; names the file.
    """
    import pandas as pd

    if paths is None:
        packed = json.loads(_HEART_COPY.read_text("utf-8"))["files"]
        copies = json.loads(lzma.decompress(base64.b85decode(packed)))
        hospitals = [_read(Path(name), io.StringIO("\n".join(copies[name]))) for name in HEART_FILES]
    else:
        hospitals = [_read(path, path) for path in paths]
    splits = [_split(rows[:, -1] > 0) for rows in hospitals]
    train, test = ([rows[split[side]] for rows, split in zip(hospitals, splits, strict=True)] for side in (0, 1))
    patients = np.concatenate([*train, *test])  # (n, 11)
    features = [
        feature
        for name in COLUMNS
        for feature in (
            [Feature(name, "category", str(code)) for code in HEART_CODES[name][1:]]
            if name in HEART_CODES
            else [Feature(name, "number")]
        )
    ]
    preprocessing = Preprocessing(tuple(features), label_column=DIAGNOSIS)
    frame = pd.DataFrame(patients[:, :-1], columns=list(COLUMNS))
    encoded = Encoded(preprocessing, preprocessing.encode(frame))
    sites = np.concatenate([np.repeat(np.arange(len(part)), list(map(len, part))) for part in (train, test)])
    source = make_source(patients[:, -1], lambda rows: encoded, sum(map(len, train)), sites)
    return add_subgroups(replace(source, site_names=HOSPITALS), spec, [frame])


def _read(path: Path, content: Path | io.StringIO) -> Float64[np.ndarray, "n 11"]:
    """Return the rows of a hospital's file without missing cells, with the diagnosis last.

    Args:
        path: The file's name, for errors.
        content: The file, or its text.
    """
    import pandas as pd

    # Copies in circulation have a header line, X1 to X14.
    try:
        frame = pd.read_csv(content, header=None, comment="X", na_values=["?"])
    except (OSError, EOFError, ValueError) as error:  # pandas' own errors are ValueErrors
        got = f"a file that cannot be read as a table ({' '.join(str(error).split())})"
        raise DataError(path, got=got, allowed="a row for each patient", hint=_AS_PUBLISHED) from error
    numbers = sum(kind.kind in "if" for kind in frame.dtypes)
    if not frame.shape[1] == numbers == ALL_COLUMNS:
        got = f"{frame.shape[1]} columns, {numbers} of them of numbers"
        raise DataError(path, got=got, allowed=f"{ALL_COLUMNS} columns of numbers or ?", hint=_AS_PUBLISHED)
    values = frame.to_numpy(dtype=np.float64)[:, [*range(len(COLUMNS)), -1]]
    rows: np.ndarray = values[~(np.isnan(values) | (values == -9)).any(axis=1)]
    for name, codes in HEART_CODES.items():
        _check_codes(path, name, rows[:, COLUMNS.index(name)], codes)
    return rows


def _split(ill: Bool[np.ndarray, "n"]) -> tuple[Int64[np.ndarray, "train"], Int64[np.ndarray, "test"]]:
    """Draw a hospital's training and test rows as FLamby does: stratified if both classes have at least three rows."""
    from sklearn.model_selection import train_test_split

    train, test = train_test_split(
        np.arange(len(ill)),
        test_size=TEST_SHARE,
        train_size=TRAIN_SHARE,
        random_state=SPLIT_SEED,
        stratify=ill if min(ill.sum(), (~ill).sum()) > 2 else None,
    )
    return train, test


def _check_codes(path: Path, name: str, values: Float64[np.ndarray, "n"], codes: tuple[int, ...]) -> None:
    unknown = np.setdiff1d(values, codes)
    if len(unknown):
        got, allowed = f"unknown code {', '.join(f'{code:g}' for code in unknown[:10])}", ", ".join(map(str, codes))
        raise DataError(f"{path}, column {name!r}", got=got, allowed=allowed, hint=_AS_PUBLISHED)
