"""No row, no row's label and no name leaves a site; docs/who-sees-what.md lists the fields that leave it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import app as server_app
from apps.sites.rows import own_rows
from clients.describe import PHASES
from payloads.handshake import SiteReport
from payloads.held_out import FindingCounts, GroupCounts
from payloads.record import Payload, specs_of
from payloads.wire import ARRAYS, CONFIG, METRICS, PAYLOAD, model_record
from tests.battery.federation import OF_ROWS, Listener, flat_config, patients, serve
from tests.docs.markdown import PROJECT, codes, rows, section
from vertical.records import Credentials, DataSummary, Report

SITES = 3
ROWS = 64
ILL, WELL = "label-of-the-ill", "label-of-the-well"
PAGE = PROJECT / "docs" / "who-sees-what.md"
COMMON = "weight,sex[f|m],age"


CONFIG_OF_ALL: dict[str, Scalar] = {
    "dataset": "csv",
    "partition": "own",
    "label-column": "state",
    "positive-label": ILL,
    "feature-columns": COMMON,
    "batch-size": 16,
    "test-fraction": 0.4,  # long columns of labels, which counts in bins do not match by chance
}


def heard(folder: Path, config: dict[str, Scalar]) -> list[Message]:
    """Write the sites' files, and return every reply of a run on them."""
    for place in range(SITES):
        table = patients(ROWS, place)
        table["state"] = np.where(table.pop("ill") == "yes", ILL, WELL)
        table.to_csv(folder / f"{place}.csv", index=False)
    flat = flat_config(folder / "run", {**CONFIG_OF_ALL, **config})
    nodes = [{"data-path": str(folder / f"{place}.csv")} for place in range(SITES)]
    grid = Listener(client_app, SITES, flat, nodes)
    serve(grid, server_app, flat)
    return grid.heard


def secrets(folder: Path) -> tuple[set[bytes], list[np.ndarray]]:
    """Return the secrets: numbers of rows, raw and scaled, and texts; and columns of labels."""
    config = parse_run_config({**CONFIG_OF_ALL, "strategy": "local-sgd"})
    sites = [own_rows(config, {"data-path": str(folder / f"{place}.csv")}, place) for place in range(SITES)]
    training = np.concatenate([site.features[site.train_rows] for site in sites])
    assert sites[0].preprocessing is not None
    numeric = [place for place, name in enumerate(sites[0].preprocessing.names) if "=" not in name]
    means, deviations = training.mean(axis=0), training.std(axis=0)
    found = {ILL.encode(), WELL.encode(), b"patient "}
    for site in sites:
        scaled = (site.features - means) / deviations
        for values in (site.features[:, numeric], scaled[:, numeric]):
            for dtype in (np.float32, np.float64):
                found |= {number.tobytes() for number in values.astype(dtype).ravel()}
    labels = [site.labels[places] for site in sites for places in (site.train_rows, site.test_rows, slice(None))]
    return found, labels


def contents(message: Message) -> Iterator[tuple[str, bytes | str | list[Any] | float]]:
    """Yield every value in a message, with its record and name."""
    records: RecordDict = message.content
    for name, record in records.items():
        for key, value in record.items():
            yield f"{name}.{key}", value.data if isinstance(record, ArrayRecord) else value  # type: ignore[union-attr]


# a site reports its label values, but not which row has which value
OF_LABELS = ("payload.negative_labels", "payload.positive_labels")
# secure sums send random bytes: 100 KB of them contain one of 800 numbers of four bytes in 2 % of the runs
OF_RANDOM_BYTES = {f"payload.{name}" for name in ("elements", "boxes", "shares", "mask_key", "box_key", "commitment")}


def disclosed(message: Message, hidden: set[bytes], labels: list[np.ndarray]) -> list[str]:
    """Return the places in a message that contain a secret."""
    found = []
    for place, value in contents(message):
        blob = value if isinstance(value, bytes) else str(value).encode()
        kept = hidden - {ILL.encode(), WELL.encode()} if place in OF_LABELS else hidden
        if place in OF_RANDOM_BYTES:
            kept = {secret for secret in kept if len(secret) > 4}
        short = re.sub(rb"\0{64,}", bytes(64), blob)  # no secret has as many zeros
        if any(secret in short for secret in kept):
            found.append(f"{place}: a number or a text of a row")
        if isinstance(value, int | float) and not isinstance(value, bool):
            blob = np.float64(value).tobytes()
            found += [f"{place}: a number of a row"] * any(secret == blob for secret in hidden)
        for dtype in (np.int8, np.int32, np.int64, np.float32, np.float64):
            for signed in (False, True):
                columns = [np.where(column == 1, 1, -1 if signed else 0) for column in labels]
                if isinstance(value, bytes) and any(column.astype(dtype).tobytes() in value for column in columns):
                    found.append(f"{place}: a column of labels")
    return found


TABLE = rows(section(PAGE, "Every field that leaves a site"))


def documented() -> dict[str, set[str]]:
    """Return the payload fields of each algorithm in docs/who-sees-what.md."""
    fields: dict[str, set[str]] = {name: set() for name in OF_ROWS}
    for field, sent, *_ in TABLE:
        if strategies := set(codes(sent)) & set(ALGORITHMS):
            assert strategies == set(codes(sent)), f"an unknown strategy: {sent}"
            for name in strategies:
                fields[name] |= set(codes(field))
    return fields


@pytest.mark.parametrize(
    ("starts", "kinds"),
    [
        (("handshake", "evaluation"), (SiteReport, GroupCounts, FindingCounts)),
        (("vertical",), (Credentials, DataSummary, Report)),
        (("`describe`",), tuple(PHASES.values())),
    ],
)
def test_the_page_lists_the_fields_around_the_training(
    starts: tuple[str, ...], kinds: tuple[type[Payload], ...]
) -> None:
    listed = {name for field, sent, *_ in TABLE if sent.startswith(starts) for name in codes(field)}
    assert {field for kind in kinds for field in specs_of(kind)} <= listed


# FedX1 shares FedX2's record, but needs fewer fields, since its f is linear.
UNUSED = {"fedx1": {"partner_labels", "positive_u", "momentum"}}
CASES: list[tuple[str, dict[str, Scalar]]] = [
    *((strategy, {}) for strategy in OF_ROWS),
    ("fedx2", {"loss": "auprc"}),
    ("fedx2", {"fedx.pool": "histogram"}),
    ("local-sgd", {"scale": "quantile", "missing": "median"}),
]


@pytest.mark.parametrize(("strategy", "keys"), CASES)
def test_no_message_holds_a_row_and_each_what_the_page_lists(
    strategy: str, keys: dict[str, Scalar], tmp_path: Path
) -> None:
    replies = heard(tmp_path, {"strategy": strategy, **keys})
    hidden, labels = secrets(tmp_path)
    assert len(replies) >= SITES * (1 + 3 + 4)
    assert [place for message in replies for place in disclosed(message, hidden, labels)] == []

    row, listed = ALGORITHMS[strategy], documented()[strategy]
    half = row.strategy
    forms = [row.settings(pool="histogram")] if row.table == "fedx" else []
    variants = [(form, "") for form in forms] + [(row.settings(), loss) for loss in row.losses]
    kinds = [half.up_type, *half.phases.values()]
    kinds += [kind for form, loss in variants for kind in half.ups_of(form, loss).values()]
    declared = {field for kind in kinds if kind is not None for field in specs_of(kind)}
    assert declared - listed <= UNUSED.get(strategy, set())
    assert listed <= declared
    everywhere = {field for kind in (SiteReport, GroupCounts) for field in specs_of(kind)}
    for message in replies:
        records = message.content
        assert set(records) <= {ARRAYS, PAYLOAD, CONFIG, METRICS}
        assert set(records.config_records.get(CONFIG, {})) <= {"device", "python", "torch", "numpy"}
        assert set(records.config_records.get(PAYLOAD, {})) <= listed | everywhere
        assert set(records.array_records.get(ARRAYS, {})) <= {"parameters", "buffers"}
        assert set(records.metric_records.get(METRICS, {})) <= {"num-examples", "server-round", "state-round"}


@pytest.mark.parametrize("secure", [False, True])
def test_no_message_of_a_description_holds_a_row(secure: bool, tmp_path: Path) -> None:
    replies = heard(tmp_path, {"strategy": "describe", "privacy.secure-sum": secure})
    hidden, labels = secrets(tmp_path)
    assert len(replies) >= SITES * 4
    assert [place for message in replies for place in disclosed(message, hidden, labels)] == []
    assert not any(ARRAYS in message.content for message in replies)


def test_what_is_hidden_in_a_message_is_found(tmp_path: Path) -> None:
    message = heard(tmp_path, {"strategy": "local-sgd", "num-server-rounds": 1})[-1]
    hidden, labels = secrets(tmp_path)
    row = pd.read_csv(tmp_path / "1.csv").iloc[7]
    signs = (labels[2] * 2.0 - 1).astype(np.float32)
    for name, record in (
        (ARRAYS, model_record([np.array([0.5, row["age"]], np.float32)])),
        (PAYLOAD, ConfigRecord({"x": b"..." + signs.tobytes()})),
        (CONFIG, ConfigRecord({"x": f"row 7 is {row['name']}"})),
        (METRICS, MetricRecord({"x": float(row["weight"])})),
    ):
        before = message.content.get(name)
        assert not disclosed(message, hidden, labels)
        message.content[name] = record
        assert disclosed(message, hidden, labels)
        message.content[name] = ConfigRecord() if before is None else before
