"""The loss of concordance: its steps against the reference, its gradient against all pairs, and its protection."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.config import Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites import resources
from methods.histograms import HistogramPool, ScoreHistograms
from methods.predictions import FedXPredictions, check_times
from payloads.record import PayloadError
from payloads.wire import PAYLOAD
from privacy.budget import noise_for
from problems.data import load
from problems.data.times import Periods
from problems.objectives.concordance import concordance_risk
from problems.objectives.pairwise import ConcordanceRisk, Surrogate, make_objective
from problems.randomness import Purpose
from problems.sampling import EpochSampler, PoolQueue
from problems.survival.concordance import harrell
from simulations.references.centralized import train_centralized
from tests.algorithms.helpers import flattened
from tests.algorithms.test_hazard import MONTHS, config_of
from tests.algorithms.test_hazard import table as table
from tests.battery.federation import federate, model_of, payloads_of
from tests.reference import concordance as reference
from tests.reference.fedx import LOSSES
from tests.refusals import refuses

B, M, STEPS, ROUNDS, BINS, ETA = 4, 6, 2, 3, 16, 0.3
HISTOGRAM = {"fedx_pool": "histogram", "score": "sigmoid", "fedx_bins": BINS, "entry_column": ""}


def keys_of(table: Path, **keys: Any) -> dict[str, Scalar]:
    """Return a run config. In a name the first _ after fedx stands for a dot."""
    batches = {"fedx_positive_batch_size": B, "fedx_negative_batch_size": M, "local_steps": STEPS, "seed": 0}
    common = {"strategy": "fedx1", "num_server_rounds": ROUNDS, "learning_rate": ETA, **batches, **keys}
    return {name.replace("fedx-", "fedx."): value for name, value in config_of(table, **common).items()}


def rows_of(config: dict[str, Scalar]) -> list[reference.Rows]:
    data = load(parse_run_config(config).data, 3)
    found = []
    for rows in map(data.client, range(3)):
        assert rows.periods is not None
        x, entry, leave = rows.features.astype(float), rows.periods.entries, rows.periods.exits
        found.append(reference.Rows(x, entry, leave, rows.labels.astype(int), np.ones(len(x))))
    return found


def models(grid: Any, server_round: int) -> list[np.ndarray]:
    """Return each client's model after a round, by partition id."""
    found = {
        e.partition: model_of(e.reply)[0] for e in grid.exchanges if e.server_round == server_round and not e.phase
    }
    return [found[site] for site in range(3)]


def batches_of(sites: list[reference.Rows], first_round: int) -> Any:
    def batches(client: int, server_round: int, step: int) -> list[np.ndarray]:
        counts, kinds = (sites[client].event.sum(), len(sites[client].event)), (Purpose.POSITIVES, Purpose.PARTNERS)
        position, sides = (server_round - first_round) * STEPS + step, zip(counts, (B, M), kinds, strict=True)
        return [EpochSampler(np.arange(n), size, 0, kind, client).batch(position) for n, size, kind in sides]

    return batches


@pytest.mark.parametrize(
    ("strategy", "surrogate", "pool"),
    [("fedx1", "logistic", {}), ("fedx1", "squared-hinge", HISTOGRAM), ("local-pair", "auto", {})],
)
def test_the_clients_follow_the_reference(
    strategy: str, surrogate: str, pool: dict[str, Any], table: Path, tmp_path: Path
) -> None:
    config = keys_of(table, strategy=strategy, fedx_surrogate=surrogate, **pool)
    assert parse_run_config(config).training.loss == "concordance"
    run, grid = federate(tmp_path / "run", config | ({"client-weights": "equal"} if strategy == "local-pair" else {}))
    sites, start = rows_of(config), model_of(grid.exchanges[0].message)[0]
    first = int(strategy == "local-pair")  # the round that takes the first batches

    def draws(client: int, server_round: int, step: int, *lengths: int) -> list[Any]:
        sides = zip(lengths, (B, M), (Purpose.POSITIVE_POOL, Purpose.PARTNER_POOL), strict=True)
        queues = [(PoolQueue(length, 0, kind, client, server_round), size) for length, size, kind in sides]
        return [[queue.take(size) for _ in range(STEPS)][step] for queue, size in queues]

    case = sites, start, ROUNDS, STEPS, ETA, surrogate.replace("auto", "logistic"), batches_of(sites, first)
    steps = reference.local_pair(*case) if first else reference.fedx1(*case, draws, BINS if pool else 0)
    for number, expected in enumerate(steps, 1):
        np.testing.assert_allclose(models(grid, number), expected, rtol=0, atol=1e-10)
    assert np.abs(np.mean(models(grid, ROUNDS), axis=0) - start).max() > 1e-2
    replies = [e for e in grid.exchanges if e.server_round == ROUNDS]
    payloads = [up.arrays() for e in replies if (up := payloads_of(strategy, e)[1])] if not pool else []
    if payloads:  # the times are counted
        sent = sum(array.nbytes for arrays in payloads for array in arrays.values())
        assert run.lines[-1]["bytes_up"] == sent + 3 * start.nbytes


def test_the_reference_of_all_rows_is_local_pair_on_their_union(table: Path) -> None:
    parsed = parse_run_config(keys_of(table, strategy="local-pair"))
    history, model = train_centralized(parsed, load(parsed.data, 3))
    pooled = [reference.union(rows_of(keys_of(table)))]
    start = resources.new_model(parsed, (2,)).arrays()[0]
    *_, (expected,) = reference.local_pair(pooled, start, ROUNDS, STEPS, ETA, "logistic", batches_of(pooled, 1))
    np.testing.assert_allclose(flattened(model), expected, rtol=0, atol=1e-10)
    assert {"concordance", "loss"} <= history[-1].keys()


@pytest.mark.parametrize("surrogate", ["logistic", "psm", "squared-hinge"])
def test_full_batches_and_the_whole_pool_have_the_gradient_of_all_pairs(
    surrogate: str, table: Path, tmp_path: Path
) -> None:
    config = keys_of(table, fedx_surrogate=surrogate, num_server_rounds=1, local_steps=1, learning_rate=1.0)
    rows = reference.union(rows_of(config))
    sizes = {"fedx.positive-batch-size": int(rows.event.sum()), "fedx.negative-batch-size": len(rows.event)}
    _, grid = federate(tmp_path / "run", config | sizes)
    start = model_of(grid.exchanges[0].message)[0]
    at = lambda w: reference.risk(reference.score(w, rows.x), rows, LOSSES[surrogate])  # noqa: E731
    expected = np.array([(at(start + h) - at(start - h)) / 2e-5 for h in 1e-5 * np.eye(len(start))])
    assert np.linalg.norm(expected[:-1]) > 1e-2
    np.testing.assert_allclose(start - np.mean(models(grid, 1), axis=0), expected, rtol=0, atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), count=st.integers(1, 25), intervals=st.integers(1, 5))
def test_the_risk_is_the_mean_over_pairs_and_harrells_concordance(seed: int, count: int, intervals: int) -> None:
    rng = np.random.default_rng(seed)
    leave, event, scores = rng.integers(0, intervals, count), rng.integers(0, 2, count), rng.integers(0, 4, count)
    cells = np.zeros((intervals, 2, 4), np.int64)
    np.add.at(cells, (leave, event, scores), 1)
    leave.setflags(write=False)  # as on Ray
    steps = ConcordanceRisk(Surrogate(lambda s: (s > 0) + (s == 0).double() / 2, torch.zeros_like))
    logistic = make_objective("concordance")
    labels, values = torch.tensor(event, dtype=torch.float64), torch.tensor(scores, dtype=torch.float64)
    risk = lambda f, entry: concordance_risk(f, values, labels, Periods(leave, entry, intervals))  # noqa: E731
    none, late = 0 * leave, np.minimum(rng.integers(0, intervals, count), leave)
    if not event.any():
        assert np.isnan(risk(steps, none))
        return
    wanted = lambda entry, loss: reference.risk(scores, reference.Rows(scores, entry, leave, event, 1 + none), loss)  # noqa: E731
    comparable = wanted(none, lambda a, b: (1.0, 0, 0))
    assert risk(steps, none) == pytest.approx(comparable and comparable * (1 - harrell(cells).value), abs=1e-12)
    assert risk(logistic, late) == pytest.approx(wanted(late, LOSSES["logistic"]), rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "keys",
    [{"fedx_tau": 2, "fedx_history_size": 7}, {"strategy": "fedx2", **HISTOGRAM}, {"strategy": "local-pair"}],
)
def test_stacked_and_resumed_runs_are_equal(keys: dict[str, Any], table: Path, tmp_path: Path) -> None:
    config = keys_of(table, model="mlp", num_server_rounds=2, **keys)
    whole, _ = federate(tmp_path / "whole", config)
    stacked, _ = federate(tmp_path / "stacked", config, stack=3)
    federate(tmp_path / "half", {**config, "num-server-rounds": 1})
    resumed, _ = federate(tmp_path / "half", {**config, "resume": True})
    for name, value in whole.model.items():
        np.testing.assert_allclose(stacked.model[name], value, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(resumed.model[name], value)
    assert whole.result["metrics"].keys() & {"concordance", "loss", "brier_horizon"} == {"concordance", "loss"}


def test_fedx2_without_memory_is_fedx1(table: Path, tmp_path: Path) -> None:
    one, two = (
        federate(tmp_path / name, keys_of(table, strategy=name, fedx_beta=1.0))[0].model for name in ("fedx1", "fedx2")
    )
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=0, atol=1e-10)


@given(
    events=st.lists(st.integers(-1, 5), max_size=3),
    spans=st.lists(st.tuples(st.integers(-1, 5), st.integers(-2, 5)), max_size=3),
)
def test_times_that_no_row_has_are_refused(events: list[int], spans: list[tuple[int, int]]) -> None:
    lengths = {"positive_scores": np.zeros(len(events)), "partner_scores": np.zeros(len(spans))}
    times = {"positive_times": np.array(events, int), "partner_times": np.array(spans, int).reshape(-1, 2)}
    rows = {(entry, leave - event) for entry in range(5) for leave in range(entry, 5) for event in (0, 1)}
    if set(events) <= set(range(5)) and set(spans) <= rows:
        check_times(FedXPredictions(**lengths, **times), 5)
    else:
        with pytest.raises(PayloadError, match="_times: expected"):
            check_times(FedXPredictions(**lengths, **times), 5)
    for record, intervals in ((FedXPredictions(**lengths, **times), 0), (FedXPredictions(**lengths), 5)):
        with pytest.raises(PayloadError, match="needed for concordance and for no other loss"):
            check_times(record, intervals)


def own_files(folder: Path, least: int) -> tuple[dict[str, Scalar], list[dict[str, Scalar]], pd.DataFrame]:
    """Return a run config, the node configs of three sites with their own files, and the first site's table."""
    rng = np.random.default_rng(5)
    for site in range(3):
        frame = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90), "dead": rng.permutation(90) % 2})
        frame.assign(months=rng.integers(1, MONTHS, 90)).to_csv(folder / f"{site}.csv", index=False)
    nodes: list[dict[str, Scalar]] = [{"data-path": str(folder / f"{s}.csv"), "least-cell": least} for s in range(3)]
    config = keys_of(folder / "0.csv", partition="own", site_column="", entry_column="", fedx_negative_batch_size=80)
    config["fedx.history-size"] = 60  # a subsample of 144 scores
    return config, nodes, pd.read_csv(folder / "0.csv")


def test_the_server_finds_the_time_of_a_known_row(tmp_path: Path) -> None:
    """The attack: a row's features are known, so its score under the initial model is known, too."""
    config, nodes, rows = own_files(tmp_path, least=1)
    _, grid = federate(tmp_path / "run", config, nodes=nodes)
    (asked,) = [e for e in grid.exchanges if e.partition == 0 and e.phase == "scoring"]
    record = FedXPredictions.from_record(asked.reply.content.config_records[PAYLOAD])
    assert record.partner_times is not None
    w = model_of(asked.message)[0]
    gaps = np.abs(rows[["a", "b"]].to_numpy() @ w[:2] + w[2] - record.partner_scores[:, None])
    sent, found = np.nonzero(gaps < 1e-6)
    assert len(found) > 40
    assert (record.partner_times[sent, 1] == (rows["months"] - 1 - rows["dead"]).to_numpy()[found]).all()


@pytest.mark.parametrize("keys", [{}, {"fedx.pool": "histogram", "score": "sigmoid"}])
def test_a_site_that_protects_small_cells_sends_no_times_of_its_own(keys: dict[str, Scalar], tmp_path: Path) -> None:
    config, nodes, _ = own_files(tmp_path, least=5)
    with refuses(RunFailedError, "fedx.pool: set fedx.pool to 'histogram'"):
        federate(tmp_path / "open", {**config, **keys}, nodes=nodes)
    if keys:
        _, grid = federate(tmp_path / "run", {**config, **keys, "privacy.secure-sum": True}, nodes=nodes)
        sent = {name for e in grid.exchanges for name in e.reply.content.get(PAYLOAD, {})}
        assert not sent.intersection(ScoreHistograms.__dataclass_fields__)


def test_the_noise_of_a_budget_is_as_for_classes(table: Path, tmp_path: Path) -> None:
    """A row is in one cell."""
    keys = {**HISTOGRAM, "fedx_bins": 120, "fedx_pool_epsilon": 2.0, "num_server_rounds": 1}
    _, grid = federate(tmp_path / "run", keys_of(table, **keys))
    last = next(e.message for e in grid.exchanges if e.server_round == 1 and not e.phase)
    pool = HistogramPool.from_record(last.content.config_records[PAYLOAD])
    assert len(pool.positive_counts) == 120 * (MONTHS + 1)
    assert pool.positive_counts.std() == pytest.approx(noise_for(2.0, 1e-5, 2) * np.sqrt(3), rel=0.12)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"fedx_pool": "histogram"}, "entry-column: got 'from', allowed: '' with fedx.pool='histogram'"),
        ({"loss": "psm"}, "loss: got 'psm' with time-column 'months', allowed: 'concordance'"),
        ({**HISTOGRAM, "score": "logit"}, "fedx.pool: got 'histogram' with score='logit'"),
    ],
)
def test_other_runs_are_refused(keys: dict[str, Any], match: str, table: Path, tmp_path: Path) -> None:
    with refuses(RunFailedError, match):
        federate(tmp_path / "run", keys_of(table, **keys))
