"""Errors of nodes: their node config, and the files that only they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from apps.resources import device_of
from payloads.settings import TrainingSettings
from tests.apps.errors.data import GOOD, TABLE, npz
from tests.apps.errors.row import Content, Row, Says, called, run

PAGE = "docs/data.md"
VERTICAL = "docs/vertical.md"
TINY = 'strategy="local-sgd" model="linear" num-server-rounds=1 local-steps=1 batch-size=2'
PATHS = tuple(f'data-path="{{tmp}}/{name}.csv"' for name in ("a", "b"))


def sites(
    name: str,
    *contents: Content,
    config: str = "",
    dataset: str = "csv",
    ending: str = "csv",
    says: Says,
    nodes: Sequence[str] | None = None,
    files: Mapping[str, Content] = {},
    **more: Any,
) -> Row:
    """A run whose sites have a file each."""
    names = [f"{letter}.{ending}" for letter in "abcd"[: len(contents)]]
    paths = [f'data-path="{{tmp}}/{file}"' for file in names]
    return run(
        name,
        f'{TINY} dataset="{dataset}" partition="own"',
        config,
        says=says,
        nodes=paths if nodes is None else nodes,
        files={**dict(zip(names, contents, strict=True)), **files},
        **more,
    )


def ids(count: int = 12, labels: str = "label", more: str = "") -> str:
    """A party's table."""
    lines = [f"id,x{',' + labels if labels else ''}"]
    lines += [f"{row},{row % 5}{f',{row % 2}' if labels else ''}" for row in range(count)]
    return "\n".join(lines) + "\n" + more


def parties(
    name: str,
    *contents: str,
    config: str = "",
    says: Says,
    nodes: Sequence[str] | None = None,
    dataset: str = "csv",
    **more: Any,
) -> Row:
    """A vertical run whose parties have a file each."""
    contents = contents or (ids(), ids(), ids())
    names = [f"{letter}.csv" for letter in "abcd"[: len(contents)]]
    paths = [f'data-path="{{tmp}}/{file}"' for file in names]
    return run(
        name,
        f'strategy="vfb2-sgd" dataset="{dataset}" num-server-rounds=1 batch-size=4 {config}',
        says=(*says, VERTICAL)[:4],
        nodes=paths if nodes is None else nodes,
        files=dict(zip(names, contents, strict=True)),
        **more,
    )


def with_node(name: str, node: str, **told: Any) -> Row:
    """Parties one of which has this node config."""
    return run(
        name, 'strategy="vfb2-sgd" dataset="breast-cancer" num-server-rounds=1', nodes=[node, "a=1", "a=1"], **told
    )


def doctor(name: str, node: str, *more: str, says: Says) -> Row:
    arguments = ("apps.doctor", "site", "--node-config", node, *more)
    return Row(name, arguments, says, longest=900)


def without_cuda(tmp: Path) -> None:
    with patch("torch.cuda.is_available", return_value=False):
        device_of(TrainingSettings(device="cuda"))


ONE = "a,b,label\n" + "".join(f"{x},{x % 3},1\n" for x in range(20))
ROWS = [
    # a site's own file
    sites("no file of a site's own", says=("data-path", "got ''", "in every node config", PAGE), nodes=["x=1", "x=1"]),
    sites(
        "file that is not there",
        says=("partition 0", "{tmp}/none.csv' does not exist", "an existing file", PAGE),
        nodes=['data-path="{tmp}/none.csv"'] * 2,
    ),
    sites(
        "relative path",
        says=("data-path", "got 'a.csv'", "which is relative", "give the whole path"),
        nodes=['data-path="a.csv"'] * 2,
    ),
    sites(
        "file of another kind",
        "x",
        ending="txt",
        says=("{tmp}/a.txt", "no file of dataset 'csv'", "expected .csv", PAGE),
        nodes=['data-path="{tmp}/a.txt"'],
    ),
    sites(
        "class folder of a site",
        dataset="image-folder",
        says=("{tmp}", "no images", "train/<class>/", PAGE),
        config='positive-label="a"',
        nodes=['data-path="{tmp}"'],
    ),
    sites(
        "svmlight of a site",
        "one two\n",
        dataset="svmlight",
        ending="svm",
        config='feature-columns="3"',
        says=("{tmp}/a.svm", "cannot be read as svmlight", "1 3:0.5 7:1", PAGE),
    ),
    sites(
        "labels by their order",
        "a,label\n" + "1,x\n2,y\n" * 10,
        says=("positive-label", "2 different labels", "set positive-label", PAGE),
    ),
    sites(
        "labels by their half",
        GOOD,
        config='positive-label="first-half"',
        says=("positive-label", "'first-half'", "name the positive labels", PAGE),
    ),
    sites(
        "text of a site",
        "a,label\n" + "x,0\ny,1\n" * 10,
        says=("feature-columns", "text in column 'a'", "a[value|value]", PAGE),
    ),
    sites(
        "text that a site must not have",
        "a,label\n" + "x,0\ny,1\n" * 10,
        config='feature-columns="a[x|z]"',
        says=("feature-columns", "10 of 20 values", "(x, z)", PAGE),
    ),
    sites(
        "too few rows",
        "a,label\n1,0\n2,1\n3,0\n4,1\n",
        says=("standardise", "2 training rows", "fewer than 10", "set standardise=false"),
    ),
    sites(
        "sites of other columns",
        GOOD,
        "a,c,label\n" + TABLE,
        says=("partition 1", "lacks 'b' and has 'c'", "make them alike", "set feature-columns"),
    ),
    sites(
        "sites of other shapes",
        npz(X=np.ones((40, 2)), y=np.arange(40) % 2),
        npz(X=np.ones((40, 3)), y=np.arange(40) % 2),
        dataset="npz",
        ending="npz",
        says=("partition 1", "samples of shape (3,)", "of (2,)", "make them alike"),
    ),
    sites(
        "sites of one class",
        ONE,
        ONE,
        says=("positive-label", "0 negatives", "metrics need both", "set positive-label"),
    ),
    sites(
        "pairs of one class",
        ONE,
        ONE,
        config='strategy="fedx1"',
        says=("positive-label", "0 negatives", "needs both", "set positive-label"),
    ),
    sites(
        "ratio of one class",
        ONE,
        ONE,
        config='strategy="local-sgdm-rl"',
        says=("loss", "0 negatives", "needs both classes", "set positive-label"),
    ),
    sites(
        "test file of other columns",
        GOOD,
        GOOD,
        config='data-dir="{tmp}/test.csv"',
        says=("data-dir", "columns 'b', 'c'", "expected the same", PAGE),
        files={"test.csv": "a,c,label\n" + TABLE},
    ),
    sites(
        "test file of one class",
        GOOD,
        GOOD,
        config='data-dir="{tmp}/test.csv"',
        says=("data-dir", "no negative row", "both classes", "set positive-label"),
        files={"test.csv": ONE},
    ),
    sites(
        "own problem without a test file",
        GOOD,
        GOOD,
        config='strategy="coda" loss="tests.apps.errors.own:Problem"',
        says=("loss", "got 'tests.apps.errors.own:Problem'", "a test set", "set data-dir"),
    ),
    # a party's own table
    parties(
        "party's file that is not there",
        says=("data-path", "{tmp}/none.csv' does not exist", "expected a file"),
        nodes=['data-path="{tmp}/none.csv"'] * 3,
    ),
    parties(
        "party's file of another kind", dataset="npz", says=("dataset", "got 'npz'", "csv, parquet", "set it to one")
    ),
    parties(
        "party without a file",
        says=("data-path", "dataset 'csv' is read from files", "give the node a data-path", "set data-dir"),
        nodes=["x=1"] * 3,
    ),
    parties(
        "ids that are missing",
        ids(),
        ids(more=",1,0\n"),
        ids(),
        says=("column 'id'", "1 of 13 ids are missing", "expected none"),
    ),
    parties(
        "ids that occur twice",
        ids(),
        ids(more="3,1,0\n"),
        ids(),
        says=("column 'id'", "1 ids occur more than once", "expected once"),
    ),
    parties(
        "no column of ids",
        config='vfb2.id-column="name"',
        says=("vfb2.id-column", "has no column 'name'", "columns: id, x"),
    ),
    parties(
        "party without features",
        "id,label\n1,0\n2,1\n3,0\n",
        ids(),
        ids(),
        says=("{tmp}/a.csv", "only id and label", "one at least"),
    ),
    parties(
        "party of one row",
        ids(1),
        ids(1),
        ids(1),
        config='positive-label="0"',
        says=("rows", "1 rows are too few", "two or more", "bring"),
    ),
    parties(
        "parties of other rows",
        ids(),
        ids(),
        ids(9),
        says=("vfb2.alignment", "2 (9 rows)", "agree on 12 rows", 'vfb2.alignment="intersection"'),
    ),
    parties(
        "labels at too few parties",
        ids(),
        ids(labels=""),
        ids(labels=""),
        says=("vfb2.active-parties", "got 2", "party 0 only", "lower it"),
    ),
    # what a node says of itself
    with_node(
        "certificate without a key",
        'peer-cert="a.pem"',
        says=("node config", "got peer-cert without peer-key", "both or neither", "give peer-key"),
    ),
    with_node(
        "authority alone",
        'peer-ca="a.pem"',
        says=("peer-ca", "got peer-ca 'a.pem'", "needs peer-cert and peer-key", "give them too"),
    ),
    with_node(
        "certificate that is not there",
        'peer-cert="{tmp}/a.pem" peer-key="{tmp}/b.pem"',
        says=("peer-cert", "got '{tmp}/a.pem'", "a PEM file", "give the path"),
    ),
    with_node(
        "truth value of a node", 'share-block="yes"', says=("share-block", "got 'yes'", "true or false", VERTICAL)
    ),
    doctor(
        "node without a place",
        "x=1",
        says=("'partition-id'", "got x", "partition-id=0 num-partitions=3", "--node-config"),
    ),
    doctor(
        "place that is no number",
        'partition-id="a" num-partitions=3',
        says=("partition-id", "'a'", "integers", "--node-config"),
    ),
    doctor(
        "place outside",
        "partition-id=3 num-partitions=3",
        says=("partition-id", "got 3", "0 to num-partitions - 1 = 2", "--node-config"),
    ),
    called("no CUDA device", without_cuda, says=("device", "got 'cuda'", "auto, cpu", "leave it out")),
    # regression at the server's own data
    *(
        run(
            name,
            'strategy="vfb2-sgd" dataset="csv" num-server-rounds=1 vfb2.problem="ridge" batch-size=1',
            f'data-dir="{{tmp}}/a.csv" {config}',
            says=(key, got, allowed, help),
            clients=3,
            files={"a.csv": "a,b,c,label\n" + rows},
        )
        for name, rows, config, key, got, allowed, help in (
            (
                "regression of text",
                "1,2,3,x\n" * 4 + "1,2,3,y\n",
                "",
                "vfb2.problem",
                "got x, y",
                "must be numbers",
                "set vfb2.problem",
            ),
            (
                "regression of infinity",
                "1,2,3,inf\n" * 4 + "1,2,3,2\n",
                "",
                "labels of a regression",
                "got 2 to inf",
                "must be finite",
                "drop such rows",
            ),
            (
                "regression of one row",
                "1,2,3,4\n",
                "",
                "dataset 'csv'",
                "1 rows are too few",
                "training and a test set",
                "bring two",
            ),
            (
                "regression without validation",
                "1,2,3,4\n" * 2,
                "validation-fraction=0.5",
                "validation-fraction",
                "1 training row",
                "2 training rows at least",
                "leave it out",
            ),
            (
                "regression with noise",
                "1,2,3,4\n" * 4,
                "label-noise=0.1",
                "label-noise",
                "got 0.1",
                "must be 0.0",
                "leave it out",
            ),
        )
    ),
    run(
        "vertical classes that are one",
        'strategy="vfb2-sgd" dataset="npz" data-dir="{tmp}/a.npz" num-server-rounds=1',
        says=("positive-label", "one class only", "labels that occur: 0, 1", "set positive-label"),
        clients=3,
        files={
            "a.npz": npz(X=np.ones((4, 3)), y=np.array([0, 1, 0, 1]), X_test=np.ones((4, 3)), y_test=np.zeros(4, int))
        },
    ),
    run(
        "vertical features that are not finite",
        'strategy="vfb2-sgd" dataset="npz" data-dir="{tmp}/a.npz" num-server-rounds=1',
        says=("dataset 'npz'", "2 features in 1 of 3 columns", "not finite", "fill or drop them"),
        clients=3,
        files={"a.npz": npz(X=np.where(np.arange(30).reshape(10, 3) % 15 == 4, np.nan, 1.0), y=np.arange(10) % 2)},
    ),
    run(
        "vertical svmlight that is none",
        'strategy="vfb2-sgd" dataset="svmlight" data-dir="{tmp}/a.svm" num-server-rounds=1',
        says=("{tmp}/a.svm", "cannot be read as svmlight", "1 3:0.5 7:1", PAGE),
        clients=3,
        files={"a.svm": "one two\n"},
    ),
]
