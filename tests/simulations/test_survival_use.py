"""Models of times to an event in use: baselines, curves, new rows, cards and exports."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lifelines import CoxPHFitter, KaplanMeierFitter
from lifelines.utils import concordance_index
from safetensors.numpy import load_file
from scipy.special import expit
from typer.testing import CliRunner

from apps.config import ConfigError, Scalar, parse_run_config
from apps.sites import resources
from problems.data import DataError, Samples
from problems.survival.baseline import Baseline
from problems.survival.paired import compare_concordances
from problems.survival.summary import CountedRows, summarise
from simulations.__main__ import cli
from simulations.arguments import add_directory
from simulations.baselines import Baselines, train_baselines
from simulations.engines.launch import run_federation
from simulations.results.output import log_off
from simulations.results.records import read_run
from simulations.results.report import write_report
from simulations.results.row_differences import compare_rows
from simulations.scoring import export
from simulations.scoring.card import write_card
from simulations.scoring.export import export_onnx
from simulations.scoring.model import load
from simulations.scoring.rows import evaluate_file, score_file
from tests.refusals import refuses

ROWS, SITES = 300, 3


def draw(rows: int = ROWS) -> pd.DataFrame:
    """Draw rows whose months are tied, so 20 quantiles are fewer borders."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 2))
    ends, until = rng.exponential(8 * np.exp(-x[:, 0]), rows), rng.exponential(15, rows)
    months = np.ceil(np.minimum(ends, until)).clip(1, 12)
    dead = (ends <= until) & (months < 12)
    site = np.array(["a", "b", "c"])[rng.integers(0, SITES, rows)]
    columns = {"x": x[:, 0], "y": x[:, 1], "kind": np.where(x[:, 1] > 0, "p", "q"), "months": months}
    return pd.DataFrame({**columns, "dead": dead.astype(int), "site": site})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("survival") / "rows.csv"
    draw().to_csv(path, index=False)
    return path


def federate(table: Path, out: Path, clients: int = SITES, **keys: Any) -> dict[str, Scalar]:
    """Run a federation, and return its flat config."""
    flat: dict[str, Any] = {"strategy": "local-sgd", "dataset": "csv", "data-dir": str(table), "label-column": "dead"}
    flat |= {"time-column": "months", "site-column": "site", "partition": "natural" if clients > 1 else "iid"}
    flat |= {
        "model": "linear-no-intercept",
        "dtype": "float64",
        "batch-size": 0,
        "local-steps": 3,
        "num-server-rounds": 6,
    }
    flat |= {"learning-rate": 0.5, "pictures": False} | {key.replace("_", "-"): value for key, value in keys.items()}
    if clients == 1:
        flat |= {"site-column": "", "drop-columns": "site, kind"}
    found = add_directory(flat, out)
    with log_off(True):
        run_federation(clients, found)
    return found


def read_test_rows(flat: dict[str, Scalar], clients: int = SITES) -> Samples:
    return resources.federated_data(parse_run_config(flat).data, clients).test


def read_survival(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "survival.json").read_text())
    return found


def compared(table: Path, out: Path, clients: int = SITES, **keys: Any) -> Baselines:
    return train_baselines(out, clients, federate(table, out, clients, **keys))


@pytest.fixture
def no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sites alone the run's penalty, without a grid search."""
    monkeypatch.setattr("simulations.baselines.trainer.DECAYS", ())
    monkeypatch.setattr("simulations.baselines.trainer.RIDGES", ())
    monkeypatch.setattr("simulations.baselines.trainer.minimise_cross_entropy", dict)


@pytest.mark.usefixtures("no_grid")
@pytest.mark.parametrize("strategy", ["local-sgd", "newton"])
def test_of_one_site_all_references_equal_the_run(strategy: str, table: Path, tmp_path: Path) -> None:
    keys = {"time_borders": "2, 5, 9", "dtype": "auto"} if strategy == "newton" else {}
    found = compared(table, tmp_path / "run", 1, strategy=strategy, **keys)
    assert found.metric == "concordance"
    for other in (found.pooled, *found.alone):
        assert (other.reason, other.standing, other.metrics.keys()) == (
            "",
            "level with",
            found.federated.metrics.keys(),
        )
        assert other.metrics == {
            name: pytest.approx(value, abs=1e-6) for name, value in found.federated.metrics.items()
        }


@pytest.mark.usefixtures("no_grid")
def test_sites_whose_rows_determine_no_model_are_named(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame.loc[frame["site"] == "c", "dead"] = 0
    frame.to_csv(tmp_path / "rows.csv", index=False)
    found = compared(tmp_path / "rows.csv", tmp_path / "run")
    count = found.alone[2].rows
    assert f"c alone: no event in {count} rows" in found.text()
    assert "1 site cannot be trained alone" in found.verdict()
    assert "concordance: federated" in found.verdict()
    assert found.interval is not None
    assert found.interval[0] < found.federated.metrics["concordance"] < found.interval[1]


def test_paired_difference_has_the_deviation_of_the_jackknife() -> None:
    rng = np.random.default_rng(0)
    frame, rows = draw(120), np.arange(120)
    exits, labels = frame["months"].to_numpy(int) - 1, frame["dead"].to_numpy()
    scores = [frame["x"].to_numpy() + rng.normal(size=120), frame["x"].to_numpy() * 0.5 + rng.normal(size=120)]

    def gap(chosen: np.ndarray) -> float:
        first, second = (concordance_index(exits[chosen], -each[chosen], labels[chosen]) for each in scores)
        return float(first - second)

    found = compare_concordances(exits, labels, *scores)
    assert found.value == pytest.approx(gap(rows), abs=1e-12)
    left_out = np.array([gap(np.delete(rows, row)) for row in rows])
    deviation = np.sqrt(119 / 120 * ((left_out - left_out.mean()) ** 2).sum())
    assert found.low is not None
    assert (found.value - found.low) / 1.99 == pytest.approx(deviation, rel=0.05)
    few = compare_concordances(exits[:9], (np.arange(9) < 3).astype(int), *(each[:9] for each in scores))
    assert few.low is None


def check_curve(curve: dict[str, list[float]], exits: np.ndarray, labels: np.ndarray, entries: np.ndarray) -> None:
    """Compare a curve with lifelines; its entry is before the grid time at which the row is at risk."""
    grid = np.arange(len(curve["times"]) - 1)
    with np.errstate():
        fitted = KaplanMeierFitter().fit(exits, labels, entry=entries - 0.5, timeline=grid)
    known = grid <= exits.max()
    expected = np.column_stack((fitted.survival_function_, fitted.confidence_interval_))[known]
    columns = [np.array(curve[name][1:], float)[known] for name in ("survival", "low", "high")]
    np.testing.assert_allclose(np.column_stack(columns)[expected[:, 0] > 0], expected[expected[:, 0] > 0], atol=2e-6)
    assert curve["remaining"][1:] == [int(((exits > time) & (entries <= time)).sum()) for time in grid]


@pytest.mark.parametrize("late", [False, True])
def test_curves_of_the_test_rows_equal_lifelines(late: bool, table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame["from"] = np.where(np.arange(len(frame)) % 3 == 0, np.maximum(frame["months"] - 2, 0), 0)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    keys: dict[str, Any] = {"entry_column": "from"} if late else {"drop_columns": "from"}
    flat = federate(tmp_path / "rows.csv", tmp_path / "run", time_borders="1:12", pictures=late, **keys)
    found, rows = read_survival(tmp_path / "run"), read_test_rows(flat)
    assert rows.periods is not None
    periods = rows.periods
    check_curve(found["all"], periods.exits, rows.labels, periods.entries)
    assert (tmp_path / "run" / "survival.png").exists() == late
    assert [one["rows"] for one in found["risk_groups"]] == [20] * 3
    assert ("sites" in found) != late
    for site in found.get("sites", []):
        assert rows.sites is not None
        own = rows.sites == site["partition"]
        check_curve(site, periods.exits[own], rows.labels[own], periods.entries[own])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_curves_reveal_no_small_count(seed: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    rows = CountedRows(rng.poisson(rng.choice([0.2, 1.0, 3.0]), (9, 2, 12)), np.arange(12.0))
    found = summarise(rows, range(1, 9), 4, rng.random((12, 8)), least)
    for curve in (*found.get("risk_groups", []), *([found["all"]] if "all" in found else [])):
        steps, drops = -np.diff(curve["remaining"]), -np.diff(np.array(curve["survival"], float))
        assert all(step == 0 or step >= least for step in [*steps, curve["remaining"][-1]])
        assert all(step >= least for step in steps[drops > 1e-12])
    assert len(found.get("calibration", {}).get("groups", [])) <= 3


@pytest.mark.filterwarnings("ignore::pandas.errors.Pandas4Warning")
def test_survival_of_a_cox_model_equals_lifelines(table: Path, tmp_path: Path) -> None:
    flat = federate(table, tmp_path / "run", 1, strategy="newton", dtype="auto", time_borders="1:11", test_fraction=0.2)
    data = resources.federated_data(parse_run_config(flat).data, 1)
    rows, test = data.client(0), data.test
    assert rows.periods is not None
    names = [str(place) for place in range(rows.features.shape[1])]
    frame = pd.DataFrame(rows.features.astype(float), columns=names)
    with np.errstate():
        fitted = CoxPHFitter().fit(frame.assign(exit=rows.periods.exits, event=rows.labels), "exit", "event")
    model, new = load(tmp_path / "run"), draw(40)
    times = [1.0, 4.0, 7.5, 11.0]
    features = pd.DataFrame(model.features(new).astype(float), columns=names)
    expected = fitted.predict_survival_function(features, times=[0, 3, 6, 10]).to_numpy().T
    np.testing.assert_allclose(model.predict_survival(new, times), expected, atol=1e-4)
    calibration = read_survival(tmp_path / "run")["calibration"]
    own = fitted.predict_survival_function(pd.DataFrame(test.features, columns=names), times=[calibration["time"] - 1])
    assert calibration["all"]["predicted"] == pytest.approx(1 - own.to_numpy().mean(), abs=1e-4)


@pytest.fixture(scope="module")
def hazards(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train hazards between quantiles, of which 20 tied ones are fewer borders."""
    out = tmp_path_factory.mktemp("hazards") / "run"
    federate(table, out)
    return out


def test_survival_of_hazards_is_the_product_of_their_complements(hazards: Path, table: Path, tmp_path: Path) -> None:
    model, new = load(hazards), pd.read_csv(table)
    scores, alpha = model.predict(new), load_file(hazards / "model.safetensors")["hazard.baseline"]
    assert model.preprocessing is not None
    borders = model.preprocessing.time_borders
    assert len(borders) < 20 == len(alpha) - 1
    shares = [
        np.prod([scores**0, *(1 - expit(scores + each) for each in alpha[:count])], axis=0)
        for count in (0, 1, 4, len(borders))
    ]
    times = [borders[0] - 0.5, borders[0], borders[4] - 0.25, borders[-1]]
    np.testing.assert_allclose(model.predict_survival(new, times), np.transpose(shares), rtol=1e-9)
    with refuses(DataError, f"--times: got {borders[-1] + 1:g}"):
        model.predict_survival(new, [borders[-1] + 1])
    out = tmp_path / "scores.csv"
    for _ in range(2):  # the second call replaces the first call's file
        arguments = ["predict", str(hazards), str(table), "--times", "1, 2.5", "--out", str(out)]
        assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert list(pd.read_csv(out).columns) == ["risk_score", "survival_1", "survival_2.5"]


def test_stratified_cox_models_have_no_survival(table: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"strategy": "newton", "dtype": "auto", "newton.site-effects": True}
    federate(table, tmp_path / "run", time_borders="1:11", **keys)
    assert "calibration: the model predicts scores, not probabilities" in read_survival(tmp_path / "run")["left_out"]
    scores = score_file(load(tmp_path / "run"), table)
    assert list(scores.columns) == ["risk_score"]
    with refuses(ConfigError, "--times: got a Cox model"):
        load(tmp_path / "run").predict_survival(pd.read_csv(table), [1.0])


def test_new_rows_have_the_metrics_of_their_scores(hazards: Path, table: Path, tmp_path: Path) -> None:
    model, frame = load(hazards), pd.read_csv(table)
    assert model.preprocessing is not None
    found = evaluate_file(model, table, resamples=50)
    assert list(found.metrics) == ["concordance", "concordance_uno", "auc_horizon", "brier_horizon"]
    assert (found.rows, found.positives, found.threshold) == (ROWS, int(frame["dead"].sum()), None)
    exits = np.searchsorted(model.preprocessing.time_borders, frame["months"])
    expected = concordance_index(exits, -model.predict(frame), frame["dead"])
    assert found.metrics["concordance"].value == pytest.approx(expected, abs=1e-12)
    for interval in found.metrics.values():
        assert interval.low < interval.value < interval.high
    output = CliRunner().invoke(cli, ["evaluate", str(hazards), str(table), "--resamples", "3"]).output
    assert f"{found.positives} of them with an event" in output
    assert "accuracy" not in output
    frame.drop(columns="months").to_csv(tmp_path / "new.csv", index=False)
    with refuses(DataError, "columns: got no column months"):
        evaluate_file(model, tmp_path / "new.csv")


def test_an_exported_file_has_the_survival_of_predict(hazards: Path) -> None:
    model, new = load(hazards), draw(50)
    assert model.baseline is not None
    exported = export_onnx(model)
    assert exported.difference is not None
    session = onnxruntime.InferenceSession(exported.content)
    kinds = {"x": np.float64, "y": np.float64, "kind": object}
    fed = {item.name: new[[item.name]].to_numpy(kinds[item.name]) for item in session.get_inputs()}
    scores, survival = session.run(["risk_score", "survival"], fed)
    times = json.loads(session.get_modelmeta().custom_metadata_map["times"])
    np.testing.assert_allclose(scores, model.predict(new), atol=1e-5)
    np.testing.assert_allclose(survival, model.predict_survival(new, times), atol=1e-5)


@pytest.mark.parametrize("loss", ["hazard", "cox"])
def test_exported_operators_equal_the_formula_for_extreme_scores(loss: str) -> None:
    baseline = Baseline(loss, np.arange(1.0, 5.0), np.array([0.0, 0.1, 0.4, 2.0]))
    scores = np.array([-800.0, -2.0, 0.0, 3.0, 800.0])
    found = export.survive_all(torch.tensor(scores), baseline)
    np.testing.assert_allclose(found.numpy(), baseline.survive(scores), atol=1e-6)
    assert found[-1, 0] == (1 if loss == "cox" else 0)


def test_report_and_card_have_the_parts_of_times(hazards: Path) -> None:
    page, card = write_report([hazards]).read_text(), write_card(load(hazards))
    titles = re.findall("<h3>(.*?)</h3>", page)
    assert titles == ["Survival", "Calibration"]
    for text in (page, card):
        assert "a concordance of" in text
        assert "share of comparable pairs of rows" in text
        assert "the mean predicted risk of an event is" in text
        for binary in ("ROC", "net benefit", "Acting on a score", "calibrated probability", "positive label"):
            assert binary not in text
    assert "survival-analysis" in card
    assert "lowest third of risk" in card


def test_two_runs_are_compared_on_their_rows(hazards: Path, table: Path, tmp_path: Path) -> None:
    for name, keys in (("a", {"num_server_rounds": 1}), ("b", {"time_borders": "1:11"})):
        federate(table, tmp_path / name, **keys)
    (found,) = compare_rows([read_run(hazards), read_run(tmp_path / "a")], "concordance")
    assert found.method == "paired, jackknife"
    assert found.low is not None
    assert found.low < found.value < found.high
    other = compare_rows([read_run(hazards), read_run(tmp_path / "b")], "concordance")[0]
    assert other.method == "not paired, too wide"  # other intervals of time
    output = CliRunner().invoke(cli, ["compare", str(hazards), str(tmp_path / "a")]).output
    assert "concordance minus concordance of run, with an interval over test rows" in output
