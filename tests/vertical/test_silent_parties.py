"""Tests that run configs that leave one party alone in the masked sums end the run before any sum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from apps.config import Scalar
from benchmarks.parties import PartiesError, run_parties
from tests.apps.vertical_runs import CSV, own_files, play
from tests.clients.party_problems import Case, Tape, make_case
from vertical.segment.plan import PartyState
from vertical.segment.varying import BOTH, Flags, flags_of_columns, flags_of_values
from vertical.transport.frames import Kind

IDS = [f"row-{number:03}" for number in range(120)]
SILENT = r"party \d: its partial sums do not vary over the rows.*masks hide them only if they vary at \d or more"
# the kinds of frames that carry parties' partials
SUMMED = (Kind.PARTIAL, Kind.SNAPSHOT_PARTIAL, Kind.EVALUATION, Kind.SCORES, Kind.VALUE_TREE)


def files(folder: Path, labelled: int = 1) -> list[dict[str, Scalar]]:
    """Write three parties' files; the columns of party 2 are 0/1 flags named `x6` to `x8`, `x8` is 1 in one row."""
    nodes, _ = own_files(folder, [IDS] * 3, labelled)
    frame = pd.read_csv(folder / "party-2.csv")
    for name in ("x6", "x7"):
        frame[name] = (frame[name] > 0).astype(int)
    frame["x8"] = (np.arange(len(frame)) == 3).astype(int)
    frame.to_csv(folder / "party-2.csv", index=False)
    return [{**node, "fewest-columns": 1} for node in nodes]


@pytest.mark.parametrize(
    "keys",
    [
        {"drop-columns": "x6,x7"},  # one row differs
        {"feature-columns": "x0,x1,x2,x3,x4,x5,x8"},
        {"drop-columns": "x6,x7", "strategy": "vfb2-saga", "vfb2.masking": "two-trees", "vfb2.active-parties": 2},
        {"drop-columns": "x6,x7", "vfb2.embedding": 2},
        {"drop-columns": "x6,x7", "strategy": "vfb2-svrg", "vfb2.problem": "ridge"},
    ],
    ids=str,
)
def test_a_run_config_that_leaves_one_party_alone_in_the_sum_is_refused(keys: dict[str, Any], tmp_path: Path) -> None:
    nodes = files(tmp_path, int(keys.get("vfb2.active-parties", 1)))
    config = {**CSV, "vfb2.assemble": False, "num-server-rounds": 2, **keys}
    with pytest.raises(RuntimeError, match=SILENT):
        play(tmp_path / "run", config, nodes)


@pytest.mark.parametrize("strategy", ["vfb2-sgd", "vfb2-svrg", "vfb2-saga"])
def test_a_penalty_that_leaves_one_weight_is_refused(strategy: str, tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"vfb2.penalty": "l1", "vfb2.penalty-weight": 0.08, "learning-rate": 0.2, "batch-size": 0}
    config = {**CSV, **keys, "strategy": strategy, "vfb2.assemble": False, "num-server-rounds": 8}
    with pytest.raises(RuntimeError, match=rf"{SILENT}: lower vfb2.penalty-weight"):
        play(tmp_path / "run", config, files(tmp_path))


def test_owners_may_demand_more_parties_that_vary(tmp_path: Path) -> None:
    nodes, _ = own_files(tmp_path, [IDS] * 4)
    frame = pd.read_csv(tmp_path / "party-3.csv")
    for name in ("x9", "x10", "x11"):
        frame[name] = (np.arange(len(frame)) < 4).astype(int)
    frame.to_csv(tmp_path / "party-3.csv", index=False)
    nodes[3] |= {"fewest-columns": 1}
    config = {**CSV, "num-server-rounds": 1}
    play(tmp_path / "three", config, nodes)
    nodes[1] |= {"fewest-parties": 4}
    with pytest.raises(RuntimeError, match=f"party 3.*{SILENT.partition('.*')[2]}"):
        play(tmp_path / "four", config, nodes)


def test_passive_parties_may_stay_at_zero_if_only_one_party_sees_sums(tmp_path: Path) -> None:
    config = {**CSV, "vfb2.update-passive": False, "num-server-rounds": 2, "vfb2.assemble": True}
    run, _ = play(tmp_path / "run", config, files(tmp_path))
    assert [np.count_nonzero(run.model[f"weights.{party}"]) > 0 for party in range(3)] == [True, False, False]


def alone(case: Case, **options: Any) -> list[Tape]:
    """Return all parties' recorders of a segment that must end with the error of silent parties."""
    tapes = [Tape() for _ in case.columns]
    with pytest.raises(PartiesError, match=SILENT):
        case.run(recorders=tapes, **options)
    return tapes


@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_no_partial_is_sent_where_blocks_stay_or_columns_are_constant(algorithm: str) -> None:
    """With two label holders and ``update_passive=False``; with constants at one of three parties."""
    frozen = make_case(4, (0, 2), counted=True, update_passive=False, algorithm=algorithm)
    constant = make_case(3, (0,), counted=True, algorithm=algorithm)
    constant.features[:, constant.columns[1]] = 2.5
    for case in (frozen, constant):
        for tape in alone(case):
            assert not [frame for _, frame in tape.frames if frame.kind in SUMMED]


@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
@pytest.mark.parametrize("score", [False, True])
def test_no_partial_is_sent_where_one_block_has_weights(score: bool, masking: str) -> None:
    """As after an l1 path, in training, and when rows are scored."""
    case = make_case(3, (0,), counted=True, masking=masking)
    if score:
        plan = replace(case.plan, score=True, epochs=0, evaluate=False, test_rows=0)
        case = replace(case, plan=plan, test_features=case.test_features[:0], test_labels=case.test_labels[:0])
    states = [PartyState(weights=np.zeros(len(own))) for own in case.columns]
    states[1].weights = np.ones(len(case.columns[1]))
    for tape in alone(case, states=states):
        assert not [frame for _, frame in tape.frames if frame.kind in SUMMED]


def test_no_partial_of_the_only_party_with_weights_is_sent_under_a_penalty() -> None:
    """The weight at which exactly one party's first update is not zero."""
    case = make_case(4, (0,), counted=True, penalty="l1", batch_size=0, step=1.0)
    slopes = np.abs(case.features.T @ case.labels) / (2 * len(case.labels))
    largest = sorted(slopes[own].max() for own in case.columns)
    between = float(largest[-1] + largest[-2]) / 2
    case = replace(case, plan=replace(case.plan, penalty_weight=between))
    for tape in alone(case):
        assert not any(values.any() for kind, _, values in tape.partials if kind != Kind.TOTALS)


@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
@pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
def test_counting_changes_no_number(algorithm: str, masking: str) -> None:
    for fields in ({}, {"penalty": "l1", "penalty_weight": 0.001}):
        case = make_case(4, (1, 2), algorithm=algorithm, masking=masking, synchronous=True, **fields)
        counted = replace(case, plan=replace(case.plan, counted=True))
        plain, own = case.run(), counted.run()
        np.testing.assert_array_equal(case.whole(plain), counted.whole(own))
        assert plain[1].metrics == own[1].metrics


@pytest.mark.parametrize("window", [1, 3])
def test_checked_sums_of_a_penalty_keep_their_order(window: int) -> None:
    case = make_case(5, (0, 3), counted=True, penalty="l1", penalty_weight=1e-4, window=window, epochs=3, skew=2)
    holdings = case.sparse_holdings
    outcomes = run_parties(holdings, case.plan, processes=False, threads=2, timeout=30.0)[0]
    assert outcomes[0].counters["updates"] == 3 * 8


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("active", [(0,), (0, 2)])
def test_a_wide_window_does_not_leave_a_dominator_alone_in_its_first_sums(
    active: tuple[int, ...], threads: int
) -> None:
    """Partials of blocks that are still zero, up to the window's number, hide nothing of the dominator's."""
    case = make_case(4, active, counted=True, window=100, batch_size=2, epochs=1)
    tapes = [Tape() for _ in range(4)]
    case.run(recorders=tapes, threads=threads)
    for tape in tapes:
        for dominator in active:
            given = [values for kind, to, values in tape.partials if (kind, to) == (Kind.PARTIAL, dominator)]
            assert [bool(values.any()) for values in given] == [number > 0 for number in range(len(given))]


numbers = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60).map(np.array)


@given(numbers, st.floats(1e-3, 1e3))
def test_flags_of_values_do_not_depend_on_their_order_and_scale(values: Any, scale: float) -> None:
    flags = flags_of_values(values)
    assert flags_of_values(values[::-1]) == flags
    if np.ptp(values) > 1e-6:
        assert flags_of_values(values * scale) == flags
    assert flags_of_values(np.full(len(values), values[0])) == Flags.NONE


def test_what_varies() -> None:
    rng = np.random.default_rng(0)
    rare, constant = (np.arange(100) == 3).astype(float), np.full(100, 1.0)
    assert flags_of_values(rng.standard_normal(100)) == BOTH
    assert flags_of_values(constant + 1e-9 * rng.standard_normal(100)) == Flags.SHOWN
    assert flags_of_values(rare * 1e6 + rng.random(100)) == Flags.SHOWN  # the others are nearly equal
    assert flags_of_columns(np.stack([rare, constant], axis=1)) == Flags.SHOWN
    assert flags_of_columns(np.zeros((100, 0))) == flags_of_columns(np.zeros((0, 2))) == Flags.NONE
    hot = sparse.csr_array(np.eye(20)[rng.integers(0, 20, 100)])  # each column is rare, but together they are not
    assert flags_of_columns(hot) == flags_of_columns(hot.toarray()) == BOTH
