"""Tests of runs from Python: objects as data and networks, the run object, and the scikit-learn estimator."""

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import check_estimator
from torch import nn
from torch.utils.data import TensorDataset

import florilegium
from apps.server_app import RunFailedError
from problems.data import DataError, DataSpec
from problems.data.partitions import partition as divide_rows
from tests.refusals import refuses

ROWS = 240
KEYS = {"strategy": "local-sgd", "model": "linear", "num-server-rounds": 4, "pictures": False, "checkpoint-every": 0}


def make_table() -> pd.DataFrame:
    """Return rows with a number, missing cells, a category, a site and a label."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(size=ROWS), "kind": rng.choice(["a", "b"], ROWS)})
    table["label"] = (table["age"] + (table["kind"] == "b") > 0.5).astype(int)
    table["age"] = table["age"].mask(np.arange(ROWS) % 20 == 0)
    table["site"] = np.where(np.arange(ROWS) % 3, "Basel", "Bern")
    return table


TABLE = make_table()
ARRAYS = np.nan_to_num(TABLE[["age"]].to_numpy()), TABLE["label"].to_numpy()


def give_rows() -> Any:
    return ARRAYS


@pytest.mark.parametrize(
    ("dataset", "clients"),
    [
        (ARRAYS, 2),
        ((TABLE[["age", "kind"]], TABLE["label"]), 2),
        (TensorDataset(torch.tensor(ARRAYS[0]).float(), torch.tensor(ARRAYS[1])), 2),
        (give_rows, 2),
        (lambda: ARRAYS, 2),
        ({name: rows.drop(columns="site") for name, rows in TABLE.groupby("site")}, None),
    ],
)
def test_objects_are_data(dataset: Any, clients: int | None) -> None:
    keys = KEYS if callable(dataset) or isinstance(dataset, TensorDataset) else {**KEYS, "missing": "mean"}
    run = florilegium.run(keys, dataset=dataset, clients=clients, quiet=True)
    assert run.metrics["auc"] > 0.8
    assert run.result["clients"] == 2
    if isinstance(dataset, dict):
        assert run.site_names == {"0": "Basel", "1": "Bern"}


def test_a_run_object_has_history_model_and_pictures(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    config = {**KEYS, "site-column": "site", "partition": "natural", "missing": "indicator"}
    run = florilegium.run(config, tmp_path / "run", 2, dataset=TABLE, quiet=True, on_round=lines.append)
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    assert run.history["auc"].tolist() == [line["auc"] for line in lines]
    assert run.predict_proba(TABLE).shape == (ROWS, 2)
    assert run.model.output.in_features == 4  # type: ignore[union-attr]
    assert "finished" in run._repr_html_()
    pytest.importorskip("matplotlib").use("agg")
    assert run.plot("auc").get_lines()[0].get_ydata().tolist() == run.history["auc"].tolist()  # type: ignore[union-attr]
    assert florilegium.export_onnx(run.classifier).inputs == {"age": "double (n, 1)", "kind": "string (n, 1)"}


def test_a_network_begins_at_its_own_weights_and_does_not_change() -> None:
    network = nn.Linear(1, 1)
    before = network.weight.item()
    run = florilegium.run({**KEYS, "num-server-rounds": 1}, dataset=ARRAYS, clients=2, model=network, quiet=True)
    assert network.weight.item() == before != run.model.weight.item()  # type: ignore[operator, union-attr]


def test_a_temporary_run_disappears_with_its_object() -> None:
    run = florilegium.run({**KEYS, "num-server-rounds": 1}, dataset=ARRAYS, clients=2, quiet=True)
    path = run.path
    assert path.is_dir()
    del run
    assert not path.exists()


def divide(classes: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
    """Give the first client every row of class 1."""
    return np.where(classes == 1, 0, rng.integers(1, num_clients, len(classes)))


def test_a_function_divides_the_rows() -> None:
    run = florilegium.run(KEYS, dataset=ARRAYS, clients=3, partition=divide, quiet=True)
    assert run.config["partition"] == f"{__name__}:divide"
    classes = np.arange(30) % 2
    spec = DataSpec(partition=str(run.config["partition"]))
    first, *others = divide_rows(spec, classes.astype(np.int8), classes, 3)
    assert first.tolist() == list(range(1, 30, 2))
    assert sorted(np.concatenate(others)) == list(range(0, 30, 2))
    with refuses(DataError, "which divides rows of a group of group-column"):
        divide_rows(spec, classes.astype(np.int8), classes, 3, groups=np.arange(30) // 2)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda classes, num_clients, rng: classes[:5],
            "returns int64 numbers of shape .5,.; allowed: a function that",
        ),
        (lambda classes, num_clients, rng: classes + 2.5, "returns float64 numbers"),
        (lambda classes, num_clients, rng: classes * 7, "returns clients 0 to 7 of 2"),
        (lambda classes, num_clients, rng: classes * 0, "leaves client 1 without a sample"),
    ],
)
def test_a_function_with_another_result_is_refused(function: Any, words: str) -> None:
    with pytest.raises(florilegium.RunFailedError, match=words):
        florilegium.run(KEYS, dataset=ARRAYS, clients=2, partition=function, quiet=True)


def gini(labels: Any, scores: Any) -> float:
    return float(2 * roc_auc_score(labels, scores) - 1)


def dropped(labels: Any, scores: Any) -> float:
    return 0.0


def epsilon(labels: Any, scores: Any) -> float:
    return 0.0


def falls(labels: Any, scores: Any) -> float:
    raise ZeroDivisionError("no rows")


def test_metrics_of_yours_are_measured_and_select_a_round(tmp_path: Path) -> None:
    config = {**KEYS, "missing": "mean", "validation-fraction": 0.3, "select-by": "gini"}
    run = florilegium.run(config, tmp_path / "run", 2, dataset=TABLE, metrics=[gini], quiet=True)
    assert run.history["gini"].tolist() == pytest.approx((2 * run.history["auc"] - 1).tolist(), abs=1e-12)
    best = run.history["gini"]
    assert run.result["selected"] == {"round": int(best.idxmax()), "metric": "gini", "value": best.max()}


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ([falls], "got falls, which raises ZeroDivisionError: no rows; allowed: functions that return a finite number"),
        ([lambda labels, scores: 1.0], "with the name '<lambda>', which is not a new name of a metric"),
        (["builtins:max", "builtins:max"], "'builtins:max' with the name 'max', which is not a new name"),
        (
            [dropped],
            "with the name 'dropped', which is an entry of a round's line in metrics.jsonl; allowed: functions",
        ),
        ([epsilon], "with the name 'epsilon', which is an entry of a round's line"),
        (["gini"], "got 'gini'; allowed: functions package.module:function"),
        (["no_such_module:f"], "cannot import 'no_such_module'"),
    ],
)
def test_functions_that_are_no_metrics_are_refused(metrics: list[Any], words: str) -> None:
    with pytest.raises(RunFailedError, match=re.escape(words)):
        florilegium.run({**KEYS, "missing": "mean"}, None, 2, dataset=TABLE, metrics=metrics, quiet=True)


def test_metrics_need_the_server_s_test_rows(tmp_path: Path) -> None:
    for site in range(2):
        TABLE.drop(columns=["site", "kind"]).to_csv(tmp_path / f"{site}.csv", index=False)
    nodes = [{"data-path": str(tmp_path / f"{site}.csv")} for site in range(2)]
    config = {**KEYS, "dataset": "csv", "partition": "own", "missing": "mean", "label-column": "label"}
    with pytest.raises(
        RunFailedError, match=r"metrics: .*allowed: '', since the server does not have labels and scores"
    ):
        florilegium.run(config, None, 2, metrics=[gini], node_configs=nodes, quiet=True)


def test_an_error_of_on_round_ends_the_run(tmp_path: Path) -> None:
    def stop(line: dict[str, Any]) -> None:
        raise ValueError("enough")

    with pytest.raises((ValueError, florilegium.RunFailedError), match="enough"):
        florilegium.run(KEYS, tmp_path / "run", 2, dataset=ARRAYS, on_round=stop, quiet=True)


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"dataset": 3}, "dataset: got a int, allowed: a DataFrame, .X, y., a torch Dataset"),
        ({"dataset": {}}, "dataset: got another dict, allowed: one DataFrame or .X, y. with rows for each site"),
        ({"dataset": {"Basel": TABLE}}, "without a column 'site'"),
        ({"dataset": (TABLE, TABLE["label"])}, "under a name that no column of X has"),
        ({"dataset": (ARRAYS[0], ARRAYS[1][:5])}, "got 240 rows and 5 labels named 'label'"),
        ({"dataset": TABLE.assign(kind=[*["a"] * (ROWS - 1), 1])}, "allowed: columns with one type of cells"),
        ({"dataset": ARRAYS, "model": 3}, "model: got a int, allowed: a torch module, a function of the input shape"),
    ],
)
def test_other_objects_are_refused(objects: dict[str, Any], words: str) -> None:
    with refuses(florilegium.ConfigError, words):
        florilegium.run(KEYS, clients=2, quiet=True, **objects)


@pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning")  # in scikit-learn's check
def test_the_estimator_passes_scikit_learns_checks() -> None:
    results = check_estimator(florilegium.FederatedClassifier(rounds=1, sites=2), on_skip=None)
    assert {result["check_name"] for result in results if result["status"] == "skipped"} == {"check_array_api_input"}


@pytest.mark.parametrize(("strategy", "least"), [("local-sgd", 0.9), ("codasca", 0.7)])
def test_the_estimator_trains_several_classes(strategy: str, least: float) -> None:
    """By a softmax, whose probabilities stay as they are, or by one against the rest, scaled to the sum 1."""
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "aurea"])[y]  # sorted: 2, 0, 1
    classifier = florilegium.FederatedClassifier(strategy).fit(X, names, groups=np.arange(150) % 3)
    assert classifier.classes_.tolist() == ["aurea", "setosa", "versicolor"]
    own = classifier.trained_.predict_proba(pd.DataFrame(X, columns=[f"x{column}" for column in range(4)]))
    likely = classifier.predict_proba(X)
    np.testing.assert_allclose(likely, own / own.sum(axis=1, keepdims=True), rtol=1e-12)
    assert classifier.trained_.exclusive == np.allclose(own.sum(axis=1), 1, atol=1e-6) == (strategy == "local-sgd")
    assert classifier.decision_function(X).shape == likely.shape == (150, 3)
    assert (classifier.predict(X) == classifier.classes_[likely.argmax(axis=1)]).all()
    assert classifier.score(X, names) > least
    assert {"auc_0", "auc_1", "auc_2"} <= set(classifier.history_)
    with pytest.raises(ValueError, match="Class 'a' has one row"):
        classifier.fit(X, np.array(["a", *["b", "c"] * 75])[:150])


def test_the_estimator_takes_categories_missing_cells_and_sites() -> None:
    X, y = TABLE[["age", "kind"]], TABLE["label"].map({0: "healthy", 1: "ill"})
    classifier = florilegium.FederatedClassifier("fedx2", rounds=4).fit(X, y, groups=TABLE["site"])
    assert classifier.score(X, y) > 0.8
    assert set(classifier.predict(X)) == {"healthy", "ill"}
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert florilegium.export_onnx(classifier.trained_).inputs["kind"] == "string (n, 1)"
    with pytest.raises(ValueError, match="X must have no column label or site: rename it"):
        classifier.fit(TABLE, y)
