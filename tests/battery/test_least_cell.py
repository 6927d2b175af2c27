"""A dishonest server, or a reader of result.json, learns no count of fewer rows of a site than its least cell."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apps.client_app import app as client_app
from apps.config import Scalar, parse_run_config
from methods.histograms import ScoreHistograms
from payloads.handshake import REFUSAL, Scaling, SiteReport
from payloads.held_out import BINS, SCORE_COUNTS, GroupCounts, ScoreEdges
from payloads.wire import CONFIG, PAYLOAD, PHASE, ROUND, content, model_record
from problems.binned_scores import codes
from simulations.engines.grid import FIRST_NODE_ID, task_identity
from simulations.engines.in_process import InProcessGrid
from tests.battery.federation import federate, flat_config, patients
from tests.refusals import states

RUN: dict[str, Scalar] = {
    "dataset": "csv",
    "partition": "own",
    "label-column": "ill",
    "positive-label": "yes",
    "strategy": "local-sgd",
    "model": "linear",
    "site-metrics": True,
}
NAMED: dict[str, Scalar] = {"feature-columns": "age,weight"}
LEAST = 5


def put(table: pd.DataFrame, folder: Path, name: str = "site", **keys: Scalar) -> dict[str, Scalar]:
    """Write a site's table, and return its node config."""
    path = folder / f"{name}.csv"
    table.to_csv(path, index=False)
    return {"data-path": str(path), **keys}


def ask(node: Mapping[str, Scalar], asked: RecordDict, kind: str, config: Mapping[str, Scalar]) -> ConfigRecord | str:
    """Return the record of a real client, or why it refuses."""
    grid = InProcessGrid(client_app, 1, flat_config(Path("run"), config), [node])
    with task_identity():
        (reply,) = grid.send_and_receive([Message(asked, FIRST_NODE_ID, kind)])
    if reply.has_error():
        return str(reply.error.reason)
    records = reply.content.config_records
    return records[PAYLOAD] if PAYLOAD in records else str(records[CONFIG][REFUSAL])


def shake_hands(node: Mapping[str, Scalar], config: Mapping[str, Scalar]) -> SiteReport | str:
    told = ask(node, content(config=ConfigRecord({ROUND: 0})), MessageType.QUERY, config)
    return told if isinstance(told, str) else SiteReport.from_record(told)


def count_scores(
    node: Mapping[str, Scalar], config: Mapping[str, Scalar], weights: list[float], edges: np.ndarray | None = None
) -> GroupCounts | str:
    """Return the counts for a model of the server's choice, without a handshake."""
    size = len(weights)
    asked = content(
        arrays=model_record([np.array([*weights, 0.0], np.float32)]),
        config=ConfigRecord({ROUND: 1, PHASE: SCORE_COUNTS}),
        payload=None if edges is None else ScoreEdges(edges=edges).to_record(),
        scaling=Scaling(means=np.zeros(size), deviations=np.ones(size)).to_record(),
    )
    told = ask(node, asked, MessageType.EVALUATE, config)
    return told if isinstance(told, str) else GroupCounts.from_record(told)


def around(low: float, high: float) -> np.ndarray:
    """Return edges as close together as possible, between two scores."""
    ends = codes([low, high]).astype(np.int64)
    return np.linspace(ends[0], ends[1], BINS - 1).astype(np.int32)


def small(value: Any) -> bool:
    return 0 < value < LEAST


def rows_of(entry: Any) -> Iterator[int]:
    """Return all numbers of rows in a part of result.json."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            if key in ("rows", "positives") or key.endswith(("_positives", "_negatives")):
                yield from np.ravel(value).tolist()
            yield from rows_of(value)
        if "rows" in entry and "positives" in entry:
            yield from np.subtract(entry["rows"], entry["positives"]).ravel().tolist()
        if "observed" in entry:
            positives = round(entry["observed"][0] * entry["rows"])
            yield from (positives, entry["rows"] - positives)
    elif isinstance(entry, list):
        for one in entry:
            yield from rows_of(one)


def test_result_of_a_run_with_a_site_of_four_rows_has_no_row(tmp_path: Path) -> None:
    """The site holds out two rows of each class, and trains on enough rows."""
    tables = [patients(rows, place) for place, rows in enumerate((200, 120, 24))]
    nodes = [put(table, tmp_path, str(place)) for place, table in enumerate(tables)]
    keys: dict[str, Scalar] = {"threshold-at": "sensitivity=0.9", "validation-fraction": 0.2, "test-fraction": 0.16}
    run, grid = federate(tmp_path / "run", {**RUN, **NAMED, **keys, "site-metrics-every": 1}, nodes=nodes)
    assert run.result["left_out"] == {"sites": 1, "fewer_than": LEAST}
    assert [site["partition"] for site in run.result["sites"]] == [0, 1]
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert not [count for part in (run.result, lines) for count in rows_of(part) if small(count)]
    counted = [one.reply.content[PAYLOAD] for one in grid.exchanges if "score-counts" in one.phase]
    counts = [side for one in counted for side in list(GroupCounts.from_record(one).arrays().values())[:2]]
    assert counts
    assert not any(((part > 0) & (part < LEAST)).any() for part in counts)


@pytest.mark.parametrize("rare", [1, 4])
def test_class_counts_of_few_rows_do_not_leave(rare: int, tmp_path: Path) -> None:
    table = patients(60, 0)
    table["ill"] = np.where(np.arange(60) < 2 * rare, "yes", "no")
    node, keys = put(table, tmp_path), {**RUN, **NAMED, "test-fraction": 0.5}
    told = shake_hands(node, keys)
    assert states(str(told), "training rows: got a class with fewer than 5 rows")
    assert "training rows" in str(count_scores(node, keys, [1.0, 0.0]))
    assert not re_number(str(told), rare)
    allowed = shake_hands({**node, "least-cell": 1}, keys)
    assert isinstance(allowed, SiteReport)
    assert allowed.class_counts is not None
    assert allowed.class_counts.tolist() == [30 - rare, rare]


def re_number(text: str, number: int) -> bool:
    return str(number) in text.replace("least-cell to 1", "")


def test_mean_of_a_column_with_a_single_one_does_not_leave(tmp_path: Path) -> None:
    table = patients(100, 0)
    table["hiv"], table["smoker"] = 0, np.arange(100) % 4 == 0
    rare = table.index[table["ill"] == "no"][3]
    config: dict[str, Scalar] = {**RUN, "feature-columns": "age,hiv,smoker", "test-fraction": 0.01, "missing": "mean"}
    without = shake_hands(put(table, tmp_path), config)
    table.loc[rare, "hiv"] = 1
    told = shake_hands(put(table, tmp_path), config)
    assert isinstance(told, SiteReport)
    assert isinstance(without, SiteReport)
    assert {name: array.tobytes() for name, array in told.arrays().items()} == {
        name: array.tobytes() for name, array in without.arrays().items()
    }
    assert told.means is not None
    assert 0.2 < told.means[2] < 0.3


def test_a_single_missing_cell_is_not_counted(tmp_path: Path) -> None:
    table = patients(100, 0)
    table.loc[5:20, "weight"] = np.nan
    table.loc[table.index[30], "age"] = np.nan
    told = shake_hands(put(table, tmp_path), {**RUN, **NAMED, "test-fraction": 0.01, "missing": "mean"})
    assert isinstance(told, SiteReport)
    assert told.counts is not None
    assert told.class_counts is not None
    missing = told.class_counts.sum() - told.counts
    assert missing[0] == LEAST
    assert missing[1] in (15, 16)


def test_a_rare_label_is_not_named(tmp_path: Path) -> None:
    table = patients(100, 0)
    table.loc[table.index[table["ill"] == "no"][0], "ill"] = "Creutzfeldt-Jakob"
    told = shake_hands(put(table, tmp_path), {**RUN, **NAMED})
    assert isinstance(told, SiteReport)
    assert told.label_values == (("no",), ("yes",))
    table["ill"] = np.where(table["ill"] == "yes", "yes", [f"no {number // 3}" for number in range(100)])
    assert states(str(shake_hands(put(table, tmp_path), {**RUN, **NAMED})), "labels: got a class with only rare values")


def test_a_model_of_one_weight_does_not_count_a_single_one(tmp_path: Path) -> None:
    """The model's scores are the column's cells, so bins as narrow as a number's resolution could isolate a row."""
    table = patients(120, 0)
    table["hiv"], config = 0, {**RUN, "feature-columns": "hiv", "test-fraction": 0.5}
    node = put(table, tmp_path)
    for edges in (None, around(0.0, 1.0), around(0.999, 1.001)):
        none = count_scores(node, config, [1.0], edges)
        assert isinstance(none, GroupCounts)
        for place in table.index:
            one = count_scores(put(table.assign(hiv=table.index == place), tmp_path, "one"), config, [1.0], edges)
            assert isinstance(one, GroupCounts)
            same = {name: array.tolist() for name, array in one.arrays().items()}
            assert same == {name: array.tolist() for name, array in none.arrays().items()}
            if place > 3:
                break


def test_other_bins_of_one_model_reveal_nothing_new(tmp_path: Path) -> None:
    """Every request groups the same rows, so no difference of two answers counts fewer rows."""
    node, config = put(patients(160, 2), tmp_path), {**RUN, **NAMED, "test-fraction": 0.5}
    found = []
    for low, high in ((10.0, 100.0), (30.0, 60.0), (49.0, 51.0)):
        told = count_scores(node, config, [1.0, 0.0], around(low, high))
        assert isinstance(told, GroupCounts)
        below = np.cumsum(told.negatives)
        found += below.tolist()
        assert not ((told.negatives > 0) & (told.negatives < LEAST)).any()
    steps = np.diff(np.unique(found))
    assert steps.min() >= LEAST


ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 2.5, 40.0, -3e4]), st.sampled_from([None, 0.0, 1.0, 7.0]), st.booleans()),
    min_size=4,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@example(rows=[(float(n == 0), 0.0, n % 2 == 0) for n in range(40)], least=5, seed=1)
@given(rows=ROWS, least=st.integers(2, 12), seed=st.integers(0, 3))
def test_every_count_that_leaves_is_none_or_large(
    rows: list[tuple[float, float | None, bool]],
    least: int,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "cells"
    folder.mkdir(exist_ok=True)
    table = pd.DataFrame(rows, columns=["age", "weight", "ill"]).assign(
        ill=lambda table: np.where(table["ill"], "yes", "no")
    )
    config: dict[str, Scalar] = {**RUN, **NAMED, "missing": "mean", "seed": seed, "test-fraction": 0.4}
    node = put(table, folder, **{"least-cell": least})
    report = shake_hands(node, config)
    if isinstance(report, str):
        assert report
        return
    assert report.class_counts is not None
    assert report.counts is not None
    assert report.held_out_counts is not None
    total = report.class_counts.sum()
    counts = [report.class_counts, report.held_out_counts, report.counts, total - report.counts]
    told = count_scores(node, {**config, "missing": "error"}, [1.0, 0.0])
    if isinstance(told, GroupCounts):
        counts += [told.negatives, told.positives]
        assert [told.negatives.sum(), told.positives.sum()] == report.held_out_counts.tolist()
    assert not [part.tolist() for part in counts if ((part > 0) & (part < least)).any()]


def test_histograms_of_scores_have_no_bin_of_few_rows(tmp_path: Path) -> None:
    nodes = [put(patients(90, place), tmp_path, str(place)) for place in range(3)]
    keys: dict[str, Scalar] = {"strategy": "fedx2", "fedx.pool": "histogram", "fedx.bins": 64, "test-fraction": 0.3}
    _, grid = federate(tmp_path / "run", {**RUN, **NAMED, **keys}, nodes=nodes)
    replies = [one.reply.content.config_records for one in grid.exchanges if "score-counts" not in one.phase]
    sent = [ScoreHistograms.from_record(records[PAYLOAD]) for records in replies]
    counts = [side for one in sent for name, side in one.arrays().items() if name.endswith("_counts")]
    assert counts
    assert not any(((part > 0) & (part < LEAST)).any() for part in counts)


def test_a_run_config_cannot_lower_it(tmp_path: Path) -> None:
    node = put(patients(60, 0), tmp_path)
    report = shake_hands(node, {**RUN, **NAMED})
    assert isinstance(report, SiteReport)
    assert report.held_out_counts is not None
    assert report.held_out_counts.tolist() == [0, 0]
    with pytest.raises(ValueError, match="least-cell"):
        parse_run_config({**RUN, "least-cell": 1})
    told = shake_hands({**node, "least-cell": 0}, {**RUN, **NAMED})
    assert "least-cell" in str(told)
