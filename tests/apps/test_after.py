"""Subgroups and importance at the end of a run equal scikit-learn's figures of the pooled scores, within the bins."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import florilegium
from apps.config import ConfigError, Scalar, parse_run_config
from apps.sites.rows import own_rows
from problems.data import DataSpec, load
from simulations.results.compare import Comparison
from simulations.results.report import as_html
from tests.apps.test_own_data import CSV, files
from tests.battery.federation import OF_ROWS, Run, federate, patients
from tests.simulations.pages import Page

GROUPS = {"subgroups": "sex, age(40, 60)", "importance": 3, "site-metrics": True}
OWN: dict[str, Scalar] = {
    **CSV,
    "feature-columns": "weight,sex[f|m],age",
    "strategy": "local-sgd",
    "learning-rate": 1.0,
}
OWN |= {**GROUPS, "test-fraction": 0.5, "validation-fraction": 0.25, "threshold-at": "sensitivity=0.8"}
SEX, AGE = ("f", "m"), ("< 40", "40 to < 60", ">= 60")


def own(path: Path, least: int = 1, **config: Scalar) -> tuple[Run, pd.DataFrame]:
    """Run three sites with their own files; return the test rows of all sites with their scores."""
    path.mkdir(exist_ok=True)
    tables = [patients(200 + 40 * place, place, shift=2 * place) for place in range(3)]
    nodes = [{**node, "least-cell": least} for node in files(path, tables)]
    run, _ = federate(path / "run", {**OWN, **config}, nodes=nodes)
    parsed, rows = parse_run_config(OWN), []
    for place, (node, table) in enumerate(zip(nodes, tables, strict=True)):
        rows.append(table.iloc[own_rows(parsed, node, place).test_rows])
    pooled = pd.concat(rows, ignore_index=True)
    model = florilegium.load(run.path, "last")
    pooled["score"] = model.decision_function(pooled)
    pooled["ill"] = (pooled["ill"] == "yes").astype(int)
    pooled["part"] = pd.cut(pooled["age"], [-np.inf, 40, 60, np.inf], right=False, labels=AGE)
    return run, pooled


def by_name(result: dict[str, Any], column: str) -> dict[str, Any]:
    (groups,) = [each["groups"] for each in result["subgroups"] if each["column"] == column]
    return {group["group"]: group for group in groups}


def check(group: dict[str, Any], rows: pd.DataFrame, threshold: float, within: float) -> None:
    labels, scores = rows["ill"].to_numpy(), rows["score"].to_numpy()
    assert (group["rows"], group["positives"]) == (len(labels), labels.sum())
    assert group["auc"][0] == pytest.approx(roc_auc_score(labels, scores), abs=group["auc_error"] + within)
    assert group["auc"][1] < group["auc"][0] < group["auc"][2]
    hits = scores >= threshold
    assert group["sensitivity"][0] == pytest.approx(hits[labels == 1].mean(), abs=within)
    assert group["specificity"][0] == pytest.approx((~hits)[labels == 0].mean(), abs=within)
    fit = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(scores[:, None], labels)
    found = group["recalibration"]
    assert found["slope"][0] == pytest.approx(fit.coef_[0, 0], rel=20 * within + 0.02)
    assert found["intercept"][0] == pytest.approx(fit.intercept_[0], abs=20 * within + 0.02)
    expected = (1 / (1 + np.exp(-scores))).sum()
    assert found["observed_expected"][0] == pytest.approx(labels.sum() / expected, rel=within + 0.01)


@pytest.mark.parametrize("secure", [False, True])
def test_subgroups_of_sites_equal_the_pooled_rows(secure: bool, tmp_path: Path) -> None:
    run, rows = own(tmp_path, **{"privacy.secure-sum": secure})
    threshold = run.result["threshold"]["score"]
    for column, key, names in (("sex", "sex", SEX), ("age", "part", AGE)):
        groups = by_name(run.result, column)
        assert list(groups) == list(names)
        for name in names:
            check(groups[name], rows[rows[key] == name], threshold, 1e-6)
    lines = list(csv.DictReader((run.path / "subgroups.csv").read_text("utf-8").splitlines()))
    assert [line["group"] for line in lines if line["column"] != "site"] == [*SEX, *AGE]
    assert ("site" in {line["column"] for line in lines}) == (not secure)
    page = Page(as_html(Comparison.of([run.path])))
    assert [row["group"] for row in page.table("group")][:2] == ["sex: f", "sex: m"]


def test_least_cells_change_figures_little(tmp_path: Path) -> None:
    run, rows = own(tmp_path, least=5)
    for name, group in by_name(run.result, "sex").items():
        labels, scores = (rows.loc[rows["sex"] == name, key] for key in ("ill", "score"))
        assert group["rows"] == len(labels)
        assert group["auc"][0] == pytest.approx(roc_auc_score(labels, scores), abs=0.02)


@pytest.mark.parametrize("secure", [False, True])
def test_importance_of_sites(secure: bool, tmp_path: Path) -> None:
    run, rows = own(tmp_path, **{"privacy.secure-sum": secure, "importance": 8})
    found = {each["column"]: each for each in run.result["importance"]["columns"]}
    assert set(found) == {"weight", "sex", "age"}
    model, labels, rng = florilegium.load(run.path, "last"), rows["ill"], np.random.default_rng(0)
    whole = roc_auc_score(labels, rows["score"])
    for column, entry in found.items():
        drops = []
        for _ in range(20):
            changed = rows.assign(**{column: rng.permutation(rows[column])})
            drops.append(whole - roc_auc_score(labels, model.decision_function(changed)))
        spread = np.std(drops, ddof=1)
        assert entry["drop"] == pytest.approx(np.mean(drops), abs=4 * spread / np.sqrt(8) + 0.02)
        assert entry["deviation"] == pytest.approx(spread, rel=1.5, abs=0.005)


def test_rows_of_the_server(tmp_path: Path) -> None:
    config = {"dataset": "heart-disease", "partition": "natural", "strategy": "local-sgd", **GROUPS}
    run, _ = federate(tmp_path / "run", {**config, "subgroups": "sex, age(50, 60)"}, 4)
    spec = DataSpec(dataset="heart-disease", partition="natural", subgroups="sex, age(50, 60)")
    data = load(spec, 4)
    model = florilegium.load(run.path).network
    scores = model.predict(torch.tensor(data.test.features)).numpy()
    for place, column in enumerate(data.subgroups):
        groups = by_name(run.result, column.column)
        for code, name in enumerate(column.names):
            assert data.test.subgroups is not None
            mask = data.test.subgroups[:, place] == code
            assert (name in groups) == bool(mask.any())
            if mask.any():
                expected = roc_auc_score(data.test.labels[mask], scores[mask])
                assert groups[name]["auc"][0] == pytest.approx(expected, abs=1e-9)
    again, _ = federate(tmp_path / "again", {**config, "subgroups": "sex, age(50, 60)"}, 4)
    assert again.result["importance"] == run.result["importance"]
    assert data.columns is not None
    assert {each["column"] for each in run.result["importance"]["columns"]} == set(data.columns.columns)


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({"importance": 2}, "importance: set site-metrics to true"),
        ({"dataset": "csv", "data-dir": "/a", "subgroups": "sex"}, "subgroups: set site-metrics to true"),
        ({"importance": -1}, "importance"),
        ({"strategy": "fedsgda-mb", "dataset": "synthetic-pl", "importance": 2}, "importance"),
        ({"strategy": "vfb2-sgd", "dataset": "heart-disease", "subgroups": "sex"}, "subgroups"),
    ],
)
def test_wrong_keys_are_refused(config: dict[str, Scalar], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse_run_config(config)


def test_true_means_five_repeats() -> None:
    for value, repeats in ((True, 5), (False, 0), (7, 7)):
        assert parse_run_config({"importance": value, "site-metrics": True}).evaluation.importance == repeats


@pytest.mark.parametrize("name", OF_ROWS)
def test_every_strategy_has_subgroups_and_importance(name: str, tmp_path: Path) -> None:
    nodes = files(tmp_path, [patients(100, place) for place in range(3)])
    keys: dict[str, Scalar] = {"strategy": name, "test-fraction": 0.5, "num-server-rounds": 1}
    run, _ = federate(
        tmp_path / "run", {**CSV, "feature-columns": "weight,sex[f|m],age", **GROUPS, **keys}, nodes=nodes
    )
    result = run.result
    groups = by_name(result, "sex")
    assert sum(group["rows"] for group in groups.values()) == result["all"]["rows"] == 150
    assert {each["column"] for each in result["importance"]["columns"]} == {"weight", "sex", "age"}
