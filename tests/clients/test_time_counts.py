"""Counts of held-out rows by time and score: the figures of the rows, and requests that would reveal single rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lifelines.utils import concordance_index
from safetensors.torch import load_file

from apps.config import parse_run_config
from apps.server_app import RunFailedError
from clients.time_counts import count_times
from payloads.held_out import TIME_BINS, TIME_COUNTS, TimeCounts
from payloads.record import PayloadError
from problems.binned_scores import RISK_EDGES, codes, find_bins
from problems.data.own import read_own
from problems.data.times import Periods
from problems.models import FlatModel, build_model
from problems.site import Site
from simulations.python.runs import run

INTERVALS = 5


def make_site(least: int = 1, rows: int = 80) -> Site:
    rng = np.random.default_rng(0)
    periods = Periods(rng.integers(0, INTERVALS, rows), np.zeros(rows, np.int64), INTERVALS)
    held = Site.from_arrays(0, rng.normal(size=(rows, 3)), rng.integers(0, 2, rows), dtype=torch.float64)
    return replace(held, held_out=replace(held, periods=periods), least_cell=least)


def count(site: Site, *, summed: bool = False) -> np.ndarray:
    model = FlatModel(build_model("linear", (3,), 0), dtype=torch.float64)
    return count_times(model, [np.array([1.0, -0.5, 0.2, 0.1])], site, TIME_COUNTS, summed=summed)[0].cells


def test_cells_are_those_of_the_rows() -> None:
    site = make_site()
    held = site.held_out
    assert held is not None
    assert held.periods is not None
    cells = count(site)
    scores = held.features.numpy() @ [1.0, -0.5, 0.2] + 0.1
    bins = find_bins(codes(scores), RISK_EDGES)
    for row, label in enumerate(held.labels.long().tolist()):
        cells[held.periods.exits[row], label, bins[row]] -= 1
    assert not cells.any()
    assert len(RISK_EDGES) == TIME_BINS - 1


def test_a_site_with_a_least_cell_counts_only_in_a_secure_sum() -> None:
    with pytest.raises(ValueError, match="only in a secure sum"):
        count(make_site(least=5))
    assert count(make_site(least=5), summed=True).sum() == 80
    assert not count(make_site(least=60), summed=True).any()  # a class has fewer rows


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda counts: counts[:-1], "got"),
        (lambda counts: np.where(np.arange(len(counts)) == 0, -1, counts), "below 0"),
        (lambda counts: counts * 2, "the site holds out"),
    ],
)
def test_impossible_counts_are_refused(change: Any, match: str) -> None:
    site = make_site()
    cells = count(site)
    with pytest.raises(PayloadError, match=match):
        TimeCounts(counts=change(cells.ravel())).check_rows(cells.sum(axis=(0, 2)))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Write the files of four sites, and return their node configs."""
    folder, rng = tmp_path_factory.mktemp("times"), np.random.default_rng(5)
    settings: list[dict[str, Any]] = []
    for site in range(4):
        x = rng.normal(size=(150, 2))
        months = np.minimum(rng.exponential(np.exp(2 - x[:, 0])).astype(int) + 1, 12)
        frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "months": months, "dead": rng.random(150) < 0.7})
        frame.to_csv(folder / f"{site}.csv", index=False)
        settings.append({"data-path": str(folder / f"{site}.csv"), "state-dir": str(folder / f"state-{site}")})
    return settings


CONFIG = {
    "strategy": "local-sgd", "dataset": "csv", "partition": "own", "label-column": "dead", "positive-label": "True",
    "time-column": "months", "time-borders": "1:12", "model": "linear", "num-server-rounds": 4, "learning-rate": 0.3,
    "batch-size": 0, "pictures": False, "scale": "none", "dtype": "float64",
}  # fmt: skip


def test_secure_sums_have_the_metrics_of_the_held_out_rows(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    open_nodes = [{**node, "least-cell": 1} for node in nodes]
    plain = run(CONFIG, tmp_path / "plain", node_configs=open_nodes, quiet=True)
    secure = run(
        {**CONFIG, "privacy.secure-sum": True, "pictures": True}, tmp_path / "secure", node_configs=nodes, quiet=True
    )
    assert secure.metrics == pytest.approx(plain.metrics, abs=1e-4)
    weights = [value.double().numpy().ravel() for value in load_file(plain.path / "model.safetensors").values()]
    (weight,) = [value for value in weights if len(value) == 2]
    scores, months, events = list[float](), list[float](), list[int]()
    for site, node in enumerate(nodes):
        rows = read_own(node["data-path"], parse_run_config(CONFIG).data, site)
        held = rows.samples(rows.test_rows, None)
        assert held.periods is not None
        scores += (held.features @ weight).tolist()
        months += held.periods.exits.tolist()
        events += held.labels.tolist()
    exact = concordance_index(months, -np.array(scores), events)
    assert plain.metrics["concordance"] == pytest.approx(exact, abs=0.01)  # scores in one bin count as equal
    assert {"auc_horizon", "brier_horizon", "concordance_uno"} <= plain.metrics.keys()
    curves, fine = (json.loads((each.path / "survival.json").read_text()) for each in (secure, plain))
    assert (curves["rows"], curves["events"], len(fine["all"]["times"])) == (len(events), sum(events), 13)
    at = [fine["all"]["times"].index(time) for time in curves["all"]["times"]]
    assert 3 < len(at) < 13
    assert curves["all"]["survival"] == [fine["all"]["survival"][place] for place in at]
    for group in curves["risk_groups"]:
        assert all(step == 0 or step >= 5 for step in -np.diff(group["remaining"]))
    assert curves["left_out"][0] == "sites: the server cannot assign rows to sites"


@pytest.mark.parametrize(
    ("keys", "match"),
    [({}, "privacy.secure-sum: set it to true"), ({"entry-column": "b"}, "entry-column: set data-dir to a test file")],
)
def test_other_runs_need_a_test_file(
    keys: dict[str, str], match: str, nodes: list[dict[str, Any]], tmp_path: Path
) -> None:
    frame = pd.read_csv(nodes[0]["data-path"])
    frame.assign(b=frame["months"] - 1).to_csv(tmp_path / "late.csv", index=False)
    late = [{**node, "data-path": str(tmp_path / "late.csv")} for node in nodes] if keys else nodes
    with pytest.raises(RunFailedError, match=match):
        run({**CONFIG, **keys}, tmp_path / "run", node_configs=late, quiet=True)


def test_a_horizon_that_is_no_border_is_named(
    nodes: list[dict[str, Any]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_nodes = [{**node, "least-cell": 1} for node in nodes]
    keys = {**CONFIG, "time-borders": "3:12:3"}
    moved, named = (
        run({**keys, "horizon": time}, tmp_path / f"{time}", node_configs=open_nodes) for time in (4.0, 6.0)
    )
    assert moved.metrics == named.metrics
    (said,) = [text for text in caplog.messages if text.startswith("horizon")]
    assert "horizon = 4 is not a border of time: figures are until 6, the next border" in said
    with pytest.raises(RunFailedError, match="horizon: choose an earlier time, or set time-borders .*last border, 12"):
        run({**keys, "horizon": 13.0}, tmp_path / "late", node_configs=open_nodes, quiet=True)


def test_sites_agree_on_borders_that_the_run_config_leaves_out(nodes: list[dict[str, Any]], tmp_path: Path) -> None:
    """The second run has another number of baselines in the same process."""
    open_nodes = [{**node, "least-cell": 1} for node in nodes]
    agreed, months = (
        run({**CONFIG, "time-borders": borders}, tmp_path / f"run {borders}", node_configs=open_nodes, quiet=True)
        for borders in ("", "1:11")
    )
    borders = json.loads((agreed.path / "columns.json").read_text())["time_borders"]
    assert 5 < len(borders) < 20
    assert agreed.metrics["concordance"] == pytest.approx(months.metrics["concordance"], abs=0.03)
