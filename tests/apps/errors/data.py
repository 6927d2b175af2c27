"""Errors of the files of a data set, which the server and every client read, and of spreading it over clients."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from problems.data import DataSpec
from problems.data.credit import AMOUNTS, CODES, LABELS
from problems.data.readers import read
from tests.apps.errors.row import Row, Says, called, command, run

PAGE = "docs/data.md"
TABLE = "".join(f"{x},{x % 3},{x % 2}\n" for x in range(40))
GOOD = "a,b,label\n" + TABLE
TINY = 'strategy="local-sgd" model="linear" num-server-rounds=1 local-steps=1'


def data(name: str, dataset: str, *configs: str, says: Says, **more: Any) -> Row:
    """A run of two clients on the files of ``{tmp}/data``."""
    place = "" if more.pop("nowhere", False) else ' data-dir="{tmp}/data"'
    more = {"clients": 2, **more}
    more["files"] = {f"data/{file}": content for file, content in more.get("files", {}).items()}
    return run(name, f'{TINY} dataset="{dataset}"{place}', *configs, says=says, **more)


def table(name: str, content: Any, *configs: str, says: Says, file: str = "a.csv", **more: Any) -> Row:
    return data(name, "csv", *configs, says=(*says, PAGE)[:4], files={file: content, **more.pop("others", {})}, **more)


def bundled(name: str, dataset: str, *configs: str, says: Says, **more: Any) -> Row:
    return data(name, dataset, *configs, says=(*says, PAGE)[:4], nowhere=True, **more)


def npz(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


def parquet(frame: pd.DataFrame) -> Callable[[Path], None]:
    return lambda path: frame.to_parquet(path)


X, Y = np.arange(80.0).reshape(40, 2), np.arange(40) % 2


def credit_cards(path: Path) -> None:
    """Clients of the credit set, of whom one has an unknown sex."""
    frame = pd.DataFrame({name: [codes[0]] * 10 for name, codes in CODES.items()})
    for name in AMOUNTS:
        frame[name] = range(10)
    frame.assign(**{LABELS[0]: [0, 1] * 5, "SEX": [1] * 9 + [7]}).to_csv(path, index=False)


def unusable(tmp: Path) -> None:
    with patch.dict(sys.modules, {"huggingface_hub": None}):
        read(DataSpec("cifar10"))


def offline(tmp: Path) -> None:
    def refuse(path: str) -> None:
        raise ConnectionError("no route to the hub")

    with (
        patch("problems.data.hub._reachable", return_value=False),
        patch("problems.data.hub._offline", contextlib.nullcontext),
        patch("problems.data.hub._splits", refuse),
    ):
        read(DataSpec("cifar10"))


ROWS = [
    # where they are
    data("folder that is not there", "csv", says=("data-dir", "{tmp}/data' does not exist", "a file or folder", PAGE)),
    run(
        "file where a folder is needed",
        f'{TINY} dataset="cifar10" data-dir="{{tmp}}/a.bin"',
        says=("data-dir", "is a file", "needs the folder", PAGE),
        files={"a.bin": "x"},
    ),
    data(
        "no file of the kind",
        "csv",
        says=("dataset 'csv'", "found: none", "(.csv, .csv.gz)", PAGE),
        files={"a.txt": "x"},
    ),
    data(
        "several files",
        "csv",
        says=("dataset 'csv'", "found: a.csv, b.csv", "train.* and test.*", PAGE),
        files={"a.csv": GOOD, "b.csv": GOOD},
    ),
    data(
        "named set without its files",
        "fashion-mnist",
        says=("'fashion-mnist' is not available", "looked in", "train-images-idx3-ubyte", "set data-dir"),
        files={"a.txt": ""},
        longest=800,
    ),
    data(
        "named file that is not there",
        "uci-credit",
        says=("'uci-credit' is not available", "looked in", "UCI_Credit_Card.csv", "set data-dir"),
        files={"a.txt": ""},
        longest=800,
    ),
    data(
        "vertical file that is not there",
        "w8a",
        'strategy="vfb2-sgd" model="auto"',
        says=("'w8a' is not available", "looked in", "w8a.svm", "set data-dir"),
        files={"a.txt": ""},
        longest=800,
        clients=3,
    ),
    # tables
    table(
        "table that is none", b"\x00\xff\x00", says=("{tmp}/data/a.csv", "cannot be read as a table", "named columns")
    ),
    table(
        "packed table that is none",
        b"no gzip",
        file="a.csv.gz",
        says=("{tmp}/data/a.csv.gz", "cannot be read as a table", "named columns"),
    ),
    table("empty table", "a,label\n", says=("{tmp}/data/a.csv", "has no row", "at least one row")),
    table("no label column", "a,b\n1,2\n", says=("'label'", "has no column 'label'", "a, b", "set label-column")),
    table(
        "tables that differ",
        GOOD,
        says=("{tmp}/data/test.csv", "differ in columns: b", "expected the same", "set feature-columns"),
        file="train.csv",
        others={"test.csv": "a,label\n1,0\n2,1\n"},
    ),
    table(
        "labels that are missing",
        GOOD + "1,2,\n",
        says=("column 'label'", "1 of 41 labels are missing", "fill or drop"),
    ),
    table("no feature", "label\n0\n1\n", says=("{tmp}/data/a.csv", "has no column but 'label'", "one of features")),
    table(
        "chosen column that is missing",
        GOOD,
        'feature-columns="a,c"',
        says=("feature-columns", "has no column 'c'", "a, b"),
    ),
    table(
        "number that is missing",
        GOOD + ",1,1\n",
        says=("column 'a'", "1 of 41 values are missing", "finite", "fill or drop"),
    ),
    table(
        "text with many values",
        "a,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(600)),
        says=("column 'a'", "different values", "at most 256", "drop it or encode"),
    ),
    table(
        "text that is missing",
        "a,label\n" + "x,0\ny,1\n" * 9 + ",1\n",
        says=("column 'a'", "1 of 19 values are missing", "fill", "drop it"),
    ),
    data(
        "column of a type without encoding",
        "parquet",
        says=("column 'a'", "of type datetime64", "numbers and text", "encode it"),
        files={"a.parquet": parquet(pd.DataFrame({"a": pd.to_datetime(["2020-01-01"] * 4), "label": [0, 1] * 2}))},
    ),
    data(
        "not the file of credits",
        "uci-credit",
        says=("{tmp}/data/UCI_Credit_Card.csv", "it lacks", "UCI_Credit_Card.csv", PAGE),
        files={"UCI_Credit_Card.csv": GOOD},
        longest=700,
    ),
    # labels
    table(
        "three labels",
        "a,label\n" + "1,x\n2,y\n3,z\n" * 4,
        says=("positive-label", "3 labels", "x, y, z", "set positive-label"),
    ),
    table(
        "label that does not occur", GOOD, 'positive-label="2"', says=("positive-label '2'", "does not occur", "0, 1")
    ),
    table(
        "labels that are all positive",
        GOOD,
        'positive-label="0,1"',
        says=("the data set", "has one class only", "0, 1", "set positive-label"),
    ),
    table(
        "one positive",
        "a,label\n1,1\n" + "2,0\n" * 9,
        says=("1 positive", "1 positive", "one each", "set positive-label"),
    ),
    # arrays
    data(
        "text that is not svmlight",
        "svmlight",
        says=("{tmp}/data/a.svm", "cannot be read as svmlight", "1 3:0.5 7:1", PAGE),
        files={"a.svm": "one two\n"},
    ),
    data(
        "dense rows without end",
        "svmlight",
        'feature-columns="2000000000"',
        says=("{tmp}/data/a.svm", "need", "more than 8", "choose fewer features"),
        files={"a.svm": "1 1:1\n0 2:1\n" * 4},
    ),
    data(
        "array that is none",
        "npz",
        says=("{tmp}/data/a.npz", "cannot be read as npz", "without Python objects", PAGE),
        files={"a.npz": b"PK\x03\x04 not"},
    ),
    data("other arrays", "npz", says=("{tmp}/data/a.npz", "it holds: Z", "X and y", PAGE), files={"a.npz": npz(Z=X)}),
    data(
        "labels alone",
        "npz",
        says=("{tmp}/data/a.npz", "only one of features and labels", "expected both", PAGE),
        files={"a.npz": npz(y=Y)},
    ),
    data(
        "features of one axis",
        "npz",
        says=("{tmp}/data/a.npz", "got (40,)", "(n, ...)", PAGE),
        files={"a.npz": npz(X=Y, y=Y)},
    ),
    data(
        "labels of other rows",
        "npz",
        says=("{tmp}/data/a.npz", "(40, 2)", "one label a row", PAGE),
        files={"a.npz": npz(X=X, y=Y[1:])},
    ),
    data(
        "test arrays of another shape",
        "npz",
        says=("{tmp}/data/a.npz", "(1,)", "expected the same", PAGE),
        files={"a.npz": npz(X=X, y=Y, X_test=X[:, :1], y_test=Y)},
    ),
    data(
        "infinite features",
        "npz",
        says=("1 of 40 samples", "not finite", "fill", "drop them"),
        files={"a.npz": npz(X=np.where(X == 3, np.inf, X), y=Y)},
    ),
    data(
        "label that is missing",
        "npz",
        says=("labels", "1 of 40 labels are missing", "expected none", "fill them"),
        files={"a.npz": npz(X=X, y=np.where(Y + X[:, 0] == 0, np.nan, Y))},
    ),
    data(
        "no sample",
        "npz",
        says=("dataset 'npz'", "there is no sample", "at least one", PAGE),
        files={"a.npz": npz(X=X[:0], y=Y[:0])},
    ),
    # how it is disturbed and spread
    bundled(
        "imbalance that leaves none",
        "digits",
        "imbalance=0.0001",
        says=("imbalance", "keeps no positive", "positives", "raise imbalance"),
    ),
    bundled(
        "imbalance that adds some", "digits", "imbalance=0.9", says=("imbalance 0.9", "needs", "can only be lowered")
    ),
    bundled(
        "imbalance that leaves a client none",
        "digits",
        'imbalance=0.004 partition="sorted-90"',
        says=("imbalance 0.004", "leaves 0 positives", "without it", "raise imbalance"),
        clients=8,
        longest=700,
    ),
    table(
        "more clients than rows",
        GOOD,
        says=("33 clients", "only", "training samples", "take at most as many"),
        clients=33,
    ),
    table(
        "fewer sites than clients",
        GOOD,
        "partition-sites=3",
        says=("partition-sites", "got 3 for 4 clients", "allowed: 0, or at least", "raise it"),
        clients=4,
    ),
    table(
        "client without a row",
        GOOD,
        'partition="pathological"',
        says=("partition 'pathological'", "leaves client", "32 training samples", "take fewer clients"),
        clients=32,
    ),
    table(
        "share of no row",
        GOOD,
        'partition="linear"',
        says=("partition 'linear'", "over 20 clients fails", "num_partitions=20", "take fewer clients"),
        clients=20,
    ),
    bundled(
        "classes that no client takes",
        "digits",
        'partition="pathological" partition-classes=1',
        says=("partition-classes", "2 clients 1 classes", "between 5 and 10"),
    ),
    bundled(
        "sites of its own",
        "synthetic-offset-sites",
        'partition="natural"',
        says=("dataset", "got 2", "needs 16 clients"),
    ),
    bundled(
        "sites of its own with imbalance",
        "synthetic-offset-sites",
        'partition="natural" imbalance=0.1',
        says=("imbalance", "changes the sizes", "leave it at 0", "leave it"),
        clients=16,
    ),
    bundled(
        "one class by chance",
        "synthetic-sparse-logistic",
        "synthetic.samples=1",
        says=("dataset 'synthetic-sparse-logistic'", "one class only", "positives", "synthetic.samples"),
        clients=1,
    ),
    data(
        "unknown code of a credit",
        "uci-credit",
        says=("column 'SEX'", "unknown code 7", "known: 1, 2", PAGE),
        files={"UCI_Credit_Card.csv": credit_cards},
    ),
    called(
        "named set without its libraries",
        unusable,
        says=("'cifar10' is not available", "flwr-datasets is not usable", "data_batch_1", "set data-dir"),
        longest=900,
    ),
    called(
        "named set without a network",
        offline,
        says=("'cifar10' is not available", "found no network and no local copy", "data_batch_1", "set data-dir"),
        longest=900,
    ),
    command(
        "rows of sites in one place",
        "centralized",
        "--out",
        "{out}",
        "-c",
        'dataset="csv" partition="own"',
        says=("partition 'own'", "the rows are at the sites", "only their nodes", "--node-config"),
    ),
]
