"""The Cox model by sums equals the plain reference and lifelines on the pooled rows."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lifelines import CoxPHFitter

from apps.config import parse_run_config
from clients.scoring import NewtonClient
from methods.cox import COX, CoxPlan, describe
from methods.cox_records import CoxSums
from methods.cox_sums import RiskSums, evaluate
from methods.method import Method, Task
from methods.newton_records import NewtonSettings, NewtonSums
from methods.server import Ask, Plan, Replies
from payloads.record import PayloadError
from payloads.settings import TrainingSettings
from problems.data import load
from problems.data.times import Periods
from problems.errors import InputError
from problems.models import FlatModel, build_model
from simulations.python import runs
from strategies.newton import Newton
from tests.reference import cox as reference
from tests.refusals import refuses

GRID, NAMES = 24, ["age", "dose", "sex"]


def draw(sizes: Sequence[int] = (90, 40, 160, 30), seed: int = 0, *, late: bool = False) -> reference.Data:
    """Draw rows of sites with different hazards. The last site has no events. ``late``: rows enter at 0 to 5."""
    rng = np.random.default_rng(seed)
    strata = np.repeat(np.arange(len(sizes)), sizes)
    columns = np.column_stack([rng.normal(60, 10, len(strata)), rng.exponential(2, len(strata)), strata * 0.0])
    columns[:, 2] = rng.random(len(strata)) < 0.4
    rate = np.exp(0.04 * (columns[:, 0] - 60) + 0.2 * columns[:, 1] - 0.5 * columns[:, 2] + 0.3 * strata - 3)
    times, censored = rng.exponential(1 / rate).astype(int), rng.integers(1, GRID, len(strata))
    events = ((times <= censored) & (strata < len(sizes) - 1)).astype(int)
    times = np.minimum(times, censored)
    entries = np.minimum(rng.integers(0, 6, len(strata)), times) if late else np.zeros_like(times)
    return reference.Data(columns, events, times, entries, strata)


def make_site(data: reference.Data, site: int, least: int = 1) -> SimpleNamespace:
    """Return a site as the client half reads it."""
    own = data.strata == site
    return SimpleNamespace(
        features=torch.from_numpy(data.columns[own]), labels=torch.from_numpy(data.events[own]).double(),
        periods=Periods(data.times[own].astype(np.int64), data.entries[own].astype(np.int64), GRID),
        least_cell=least, names=NAMES,
    )  # fmt: skip


def run(
    data: reference.Data, summed: int = 1, least: int = 1, site_ids: Sequence[int] = (), **keys: Any
) -> tuple[dict[str, Any], int]:
    """Run the exchanges of a run in process, each record over the wire; return the table and the number of rounds."""
    settings, sites = NewtonSettings(**keys), list(site_ids) or np.unique(data.strata).tolist()
    method: Method = COX.of(settings)
    model: Any = SimpleNamespace(parameter_names=["weight"])
    training, counts = TrainingSettings(dtype="float64"), np.zeros((len(sites), 2), np.int64)
    parts = [make_site(data, site, least) for site in sites]
    designs = [method.client.objective(model, part, "cox", training, settings) for part in parts]
    x, state = np.zeros(len(NAMES)), None
    for number in range(1, 26):
        plan: CoxPlan = Plan(number, training, settings, "cox", counts, (("weight", (len(NAMES),)),), num_times=GRID)
        exchanges, replies = method.server.run(x, state, plan), None
        while True:
            try:
                exchange = exchanges.send(replies)
            except StopIteration as finished:
                x, state = finished.value
                break
            assert exchange.down is not None
            down, ups = type(exchange.down).from_record(exchange.down.to_record()), []
            for part, design in zip(parts, designs, strict=True):
                task: Any = Task(number, training, settings, part, design, "cox", summed)  # type: ignore[arg-type]
                sent = torch.from_numpy(x)
                if isinstance(exchange, Ask):
                    up = method.phases[exchange.phase].answer(sent, down, task)
                else:
                    up = method.client.finish(method.client.start(sent, down, None, task), task)[1]
                limits = method.checks.limits(0, [x], plan)
                up = type(up).from_record(up.to_record(), {"d": len(x)}, limits)
                method.checks.record(up, [x], plan)
                ups.append(up)
            replies = Replies(range(len(sites)), [], ups, None, None, len(sites))
        assert state is not None
        if method.server.ended(state):
            return describe(state, plan)["coefficients"], number
    raise AssertionError("the run has not converged")


def column(table: dict[str, Any], name: str) -> np.ndarray:
    return np.array([row[name] for row in table["table"]])


def fit_lifelines(data: reference.Data, **keys: Any) -> CoxPHFitter:
    """Fit lifelines; its entries count half a unit earlier, since its rows are at risk after their entry."""
    frame = pd.DataFrame(data.columns, columns=NAMES)
    frame = frame.assign(time=data.times + 1.0, event=data.events, site=data.strata, entry=data.entries + 0.5)
    used = [*NAMES, "time", "event", *keys.get("strata", []), *([keys["entry_col"]] if "entry_col" in keys else [])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = {"precision": 1e-14, "r_precision": 1e-14}
        return CoxPHFitter().fit(frame[used], "time", "event", fit_options=options, **keys)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("strata", [False, True])
def test_the_table_is_that_of_the_pooled_rows(strata: bool, ties: str, late: bool) -> None:
    data = draw(late=late)
    table, rounds = run(data, site_effects=strata, ties=ties)
    pooled = data if strata else data._replace(strata=np.zeros_like(data.strata))
    centred = pooled._replace(columns=pooled.columns - pooled.columns.mean(axis=0))
    point = reference.fit(centred, ties)
    value, _, information = reference.likelihood(point, centred, ties)
    inverse = np.linalg.inv(information)
    np.testing.assert_allclose(column(table, "estimate"), point, rtol=1e-10)
    np.testing.assert_allclose(column(table, "std_error_model"), np.sqrt(np.diag(inverse)), rtol=1e-11)
    assert table["log_likelihood"] == pytest.approx(value, rel=1e-12)
    residuals = reference.residuals(point, centred, ties)
    robust = inverse @ residuals.T @ residuals @ inverse
    np.testing.assert_allclose(column(table, "std_error_robust"), np.sqrt(np.diag(robust)), rtol=1e-10)
    sites = [residuals[data.strata == site].sum(axis=0) for site in range(3 if strata else 4)]
    rows, count = (int((data.strata < len(sites)).sum()), len(sites))
    assert (table["rows"], table["sites"], table["events"]) == (rows, count, data.events.sum())
    factor = count / (count - 1) * (rows - 1) / (rows - 3)
    clustered = factor * inverse @ np.einsum("si,sj->ij", sites, sites) @ inverse
    np.testing.assert_allclose(column(table, "std_error_clustered"), np.sqrt(np.diag(clustered)), rtol=1e-9)
    if strata:
        assert table["baseline"] is None
    else:
        hazard = reference.baseline(point, pooled, np.arange(GRID))
        np.testing.assert_allclose(table["baseline"], hazard, rtol=1e-9)
    assert rounds <= 8


@pytest.mark.parametrize("keys", [{}, {"strata": ["site"]}, {"entry_col": "entry"}])
def test_lifelines_has_the_same_table(keys: dict[str, Any]) -> None:
    data = draw(late="entry_col" in keys)
    table, _ = run(data, site_effects="strata" in keys)
    fit = fit_lifelines(data, **keys)
    np.testing.assert_allclose(column(table, "estimate"), fit.params_.to_numpy(), rtol=1e-8)
    np.testing.assert_allclose(column(table, "std_error_model"), fit.standard_errors_.to_numpy(), rtol=1e-8)
    np.testing.assert_allclose(column(table, "p"), fit.summary["p"].to_numpy(), rtol=1e-6)
    np.testing.assert_allclose(column(table, "ratio_high"), fit.summary["exp(coef) upper 95%"].to_numpy(), rtol=1e-8)
    assert table["log_likelihood"] == pytest.approx(fit.log_likelihood_, rel=1e-10)


def test_robust_errors_without_ties_are_those_of_lifelines() -> None:
    data = draw((20, 4))
    data = data._replace(times=np.random.default_rng(3).permutation(24), events=np.arange(24) % 3 % 2)
    table, _ = run(data)
    fit = fit_lifelines(data, robust=True)
    np.testing.assert_allclose(column(table, "std_error_robust"), fit.standard_errors_.to_numpy(), rtol=1e-7)


def test_the_meta_analysis_is_that_of_the_sites_own_fits() -> None:
    data = draw()
    table, _ = run(data)
    assert table["sites_fitted"] == 3
    fits = []
    for site in range(3):
        own = reference.Data(*(values[data.strata == site] for values in data))
        own = own._replace(columns=own.columns - own.columns.mean(axis=0))
        point = reference.fit(own, "efron")
        fits.append((point, np.diag(np.linalg.inv(reference.likelihood(point, own, "efron")[2]))))
    weights = np.array([1 / variance for _, variance in fits])
    fixed = (weights * [point for point, _ in fits]).sum(axis=0) / weights.sum(axis=0)
    np.testing.assert_allclose([row["meta_analysis"]["fixed"] for row in table["table"]], fixed, rtol=1e-8)


@pytest.mark.parametrize("strata", [False, True])
def test_large_columns_have_moderate_hazards(strata: bool) -> None:
    data = draw()
    year = data._replace(
        columns=data.columns + np.array([10000.0, 0, 0])
    )  # exp(0.04 * 10000) exceeds the range of sums
    tables = [run(part, site_effects=strata)[0] for part in (data, year)]
    np.testing.assert_allclose(column(tables[1], "estimate"), column(tables[0], "estimate"), rtol=1e-9)


def test_hazards_too_small_for_floats_are_no_likelihood() -> None:
    sums = RiskSums(np.zeros((1, 3)), np.zeros((1, 3)), np.array([2]), np.ones(1))
    assert evaluate(sums, np.ones(1), "efron").value == -np.inf


def test_a_column_that_separates_and_rows_without_events_end_the_run() -> None:
    data = draw()
    separated = data._replace(columns=np.column_stack([data.columns[:, :2], data.events]))
    with refuses(InputError, "column 'feature 2': got a coefficient that grows without bound"):
        run(separated)
    with refuses(InputError, "labels: got no events"):
        run(data._replace(events=np.zeros_like(data.events)), site_effects=True)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda record: replace(record, at_risk=record.at_risk[4:]), "at_risk: got 956 integers, expected 960"),
        (lambda record: replace(record, events=record.events - 1), "events: got numbers below 0"),
    ],
)
def test_a_record_of_another_grid_is_refused(change: Any, fault: str) -> None:
    plan: Any = Plan(1, TrainingSettings(), NewtonSettings(), "cox", np.zeros((2, 2), int), num_times=GRID)
    sums = RiskSums(np.ones((GRID, 10)), np.ones((GRID, 10)), np.zeros(GRID, int), np.ones(3))
    COX.checks.record(CoxSums.of(sums, 9), [np.zeros(3)], plan)
    with pytest.raises(PayloadError, match=fault):
        COX.checks.record(change(CoxSums.of(sums, 9)), [np.zeros(3)], plan)


@pytest.mark.parametrize(("strata", "record"), [(False, CoxSums), (True, NewtonSums)])
def test_the_loss_chooses_the_model(strata: bool, record: type) -> None:
    training, settings = TrainingSettings(loss="cox", dtype="float64"), NewtonSettings(site_effects=strata)
    site: Any = make_site(draw(), 0)
    model = FlatModel(build_model("linear", (3,), 0), dtype=torch.float64)
    client, strategy = NewtonClient(site, model, training, settings), Newton(training, settings)
    assert (client.up, strategy.up_type) == (record, record)
    assert client.objective.rows.columns.shape == (90, 4)  # the bias has a column of zeros
    assert not client.objective.rows.columns[:, 3].any()


@pytest.mark.parametrize("keys", [{}, {"privacy.secure-sum": True}, {"newton.site-effects": True}])
def test_a_run_has_the_table_of_lifelines(keys: dict[str, Any], tmp_path: Path) -> None:
    """From a csv with late entries, through Flower's messages, to coefficients.json."""
    data = draw(late=True)
    frame = pd.DataFrame(data.columns, columns=NAMES)
    # on the grid 1, 2, ...: interval k ends at k + 1, and a row that enters at k is at risk from this end on
    frame = frame.assign(months=data.times + 1, entered=data.entries, dead=data.events, site=data.strata)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    config = {
        "strategy": "newton", "dataset": "csv", "data-dir": str(tmp_path / "rows.csv"), "partition": "natural",
        "site-column": "site", "label-column": "dead", "time-column": "months", "entry-column": "entered",
        "time-borders": f"1:{GRID}", "test-fraction": 0.01, "pictures": False, **keys,
    }  # fmt: skip
    runs.run(config, tmp_path / "run", clients=4, quiet=True)
    table = json.loads((tmp_path / "run" / "coefficients.json").read_text())
    train = load(parse_run_config(config).data, 4).train
    assert train.periods is not None
    rows = pd.DataFrame(train.features, columns=NAMES).assign(
        months=train.periods.exits + 1, entered=train.periods.entries, dead=train.labels
    )
    sizes = [len(load(parse_run_config(config).data, 4).client(site)) for site in range(4)]
    rows["site"] = np.repeat(range(4), sizes)
    strata = {"strata": "site"} if "newton.site-effects" in keys else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter = CoxPHFitter().fit(
            rows if strata else rows.drop(columns="site"), "months", "dead", entry_col="entered", **strata,
            fit_options={"precision": 1e-12},
        )  # fmt: skip
    scaled = {entry["name"]: entry for entry in table["table"]}
    columns = load(parse_run_config(config).data, 4).columns
    assert columns is not None
    for feature in columns.outputs:
        wanted, error = fitter.params_[feature.name], fitter.standard_errors_[feature.name]
        per_unit = feature.deviation or 1.0  # lifelines has the scaled columns
        assert scaled[feature.name]["estimate"] * per_unit == pytest.approx(wanted, abs=1e-6)
        assert scaled[feature.name]["std_error_model"] * per_unit == pytest.approx(error, rel=1e-5)
