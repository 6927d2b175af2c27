"""Runs whose labels are numbers: training, offsets, metrics at the server and at the sites, and wrong uses."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from sklearn.metrics import mean_absolute_error, mean_poisson_deviance, mean_squared_error, r2_score

from apps.config import ConfigError, Scalar, parse_run_config
from apps.run_directory.curves import draw_curves
from apps.server_app import RunFailedError
from apps.sites.resources import dtype_of
from apps.sites.rows import own_rows
from payloads.held_out import ErrorDigits
from payloads.wire import PAYLOAD
from problems.number_metrics import ErrorSums
from problems.site import Site
from tests.battery.federation import federate
from tests.refusals import refuses, spell

COST: dict[str, Scalar] = {
    "strategy": "local-sgd",
    "dataset": "csv",
    "partition": "own",
    "label-type": "number",
    "label-column": "cost",
    "drop-columns": "falls,exposure",
    "model": "linear",
    "dtype": "float64",
    "learning-rate": 0.05,
    "num-server-rounds": 5,
    "local-steps": 50,
}
FALLS = COST | {
    "label-column": "falls",
    "drop-columns": "cost",
    "offset-column": "exposure",
    "loss": "poisson",
    "learning-rate": 0.02,
}


def stays(rows: int, seed: int) -> pd.DataFrame:
    """Return a site's table of hospital stays: a cost, and falls in proportion to the days."""
    rng = np.random.default_rng(seed)
    age, days = rng.normal(60, 10, rows), rng.uniform(10, 100, rows)
    falls = rng.poisson(days * np.exp(0.03 * age - 5))
    cost = 5 + 0.1 * age + rng.normal(0, 1, rows)
    return pd.DataFrame({"age": age, "exposure": np.log(days), "falls": falls, "cost": cost})


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Scalar]]:
    paths = [tmp_path / f"{seed}.csv" for seed in range(3)]
    for seed, path in enumerate(paths):
        stays(30 + 10 * seed, seed).to_csv(path, index=False)
    return [{"data-path": str(path)} for path in paths]


def expected_metrics(loss: str, labels: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Return the metrics of pooled rows by scikit-learn."""
    means = np.exp(scores) if loss == "poisson" else scores
    deviance = (mean_poisson_deviance if loss == "poisson" else mean_squared_error)(labels, means)
    losses = means - labels * scores if loss == "poisson" else (labels - scores) ** 2 / 2
    return {
        "rmse": mean_squared_error(labels, means) ** 0.5,
        "mae": mean_absolute_error(labels, means),
        "r2": r2_score(labels, means),
        "deviance": deviance,
        "loss": losses.mean(),
    }


@pytest.mark.parametrize("config", [COST, FALLS, FALLS | {"privacy.secure-sum": True}, FALLS | {"dtype": "float32"}])
def test_metrics_of_held_out_rows_equal_scikit_learn(
    config: dict[str, Scalar], nodes: list[dict[str, Scalar]], tmp_path: Path
) -> None:
    run, grid = federate(tmp_path / "run", config, nodes=nodes)
    parsed, loss = parse_run_config(config), str(config.get("loss", "squared"))
    weights = {name: value.double().numpy() for name, value in load_file(tmp_path / "run/model.safetensors").items()}
    columns = pd.read_json(tmp_path / "run/columns.json", typ="series")["outputs"]
    labels, scores = list[np.ndarray](), list[np.ndarray]()
    for partition, node in enumerate(nodes):
        rows = own_rows(parsed, node, partition)
        tested = rows.test_rows
        features = (rows.features[tested] - columns[0]["mean"]) / columns[0]["deviation"]
        score = features.astype(np.float32) @ weights["output.weight"].ravel() + weights["output.bias"]
        scores.append(score + (0 if rows.offsets is None else rows.offsets[tested]))
        labels.append(rows.labels[tested])
    expected = expected_metrics(loss, np.concatenate(labels), np.concatenate(scores))
    tolerance = 1e-5 if config["dtype"] == "float32" else 1e-9
    assert run.result["metrics"] == pytest.approx(expected, rel=tolerance)
    assert run.result["metrics"]["r2"] > 0.1
    if "privacy.secure-sum" not in config:
        plain = [e.reply.content.config_records[PAYLOAD] for e in grid.exchanges if e.phase == "score-counts"]
        assert {tuple(record) for record in plain} == {("digits",)}


def test_a_site_with_few_rows_sends_zeros(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    nodes[0]["least-cell"] = 7  # of 6 held-out rows
    run, grid = federate(tmp_path / "run", COST, nodes=nodes)
    records = [e.reply.content.config_records[PAYLOAD] for e in grid.exchanges if e.phase == "score-counts"]
    last = [ErrorDigits.from_record(record) for record in records[-3:]]
    assert sorted(int(each.sums[0]) for each in last) == [0, 8, 10]
    assert [not each.digits.any() for each in last].count(True) == 1
    sums = ErrorSums.of([sum(column) for column in zip(*(each.sums for each in last), strict=True)])
    assert run.result["metrics"] == sums.metrics()
    assert run.result["left_out"] == {"sites": 1, "fewer_than": 5}


@pytest.mark.parametrize("partition", ["natural", "iid", "linear", "consecutive"])
@pytest.mark.parametrize("base", [COST, FALLS])
def test_one_table_trains_in_every_partition(base: dict[str, Scalar], partition: str, tmp_path: Path) -> None:
    table = pd.concat([stays(40, seed).assign(site=f"site {seed}") for seed in range(3)])
    table.to_csv(tmp_path / "all.csv", index=False)
    config = base | {"partition": partition, "data-dir": str(tmp_path / "all.csv"), "validation-fraction": 0.2}
    config |= {"site-column": "site"} if partition == "natural" else {"drop-columns": f"{base['drop-columns']},site"}
    config |= {"select-by": "deviance", "patience": 3}
    run, _ = federate(tmp_path / "run", config)
    assert run.result["test_metrics"].keys() >= {"rmse", "mae", "r2", "deviance", "loss"}
    assert run.result["metrics"]["r2"] > 0.1
    assert run.result["selected"]["metric"] == "deviance"


@pytest.mark.parametrize("strategy", ["scaffold", "fedprox", "local-sgdm"])
def test_strategies_fit_counts(strategy: str, nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", FALLS | {"strategy": strategy}, nodes=nodes)
    assert run.result["metrics"]["r2"] > 0.1


def test_a_penalty_takes_numbers(tmp_path: Path) -> None:
    stays(90, 0).to_csv(tmp_path / "all.csv", index=False)
    config = COST | {"strategy": "composite", "partition": "iid", "data-dir": str(tmp_path / "all.csv")}
    run, _ = federate(tmp_path / "run", config | {"composite.penalty": "l1", "composite.weight": 0.01})
    assert run.result["metrics"]["optimality"] < 0.5
    assert "auc" not in run.result["metrics"]


def test_labels_keep_double_precision(nodes: list[dict[str, Scalar]]) -> None:
    config = parse_run_config(COST | {"scale": "none"})
    rows = own_rows(config, nodes[0], 0)
    assert rows.class_counts(rows.train_rows) == (24, 0)
    site = Site.of_samples(0, rows.samples(rows.train_rows, None), dtype_of(config.training))
    cells = pd.read_csv(str(nodes[0]["data-path"]))["cost"].to_numpy()[rows.train_rows]
    assert torch.equal(site.labels, torch.tensor(cells))
    assert site.class_counts == (24, 0)


def test_offsets_of_classes_shift_the_loss(tmp_path: Path) -> None:
    table = stays(60, 0).assign(label=lambda frame: (frame["falls"] > 2).astype(int))
    table.to_csv(tmp_path / "all.csv", index=False)
    config = {"strategy": "local-sgd", "dataset": "csv", "data-dir": str(tmp_path / "all.csv"), "model": "linear"}
    config |= {"num-server-rounds": 1, "learning-rate": 1e-9, "drop-columns": "falls,cost"}
    with_offset, _ = federate(tmp_path / "run", config | {"offset-column": "exposure"})
    without, _ = federate(tmp_path / "other", config | {"drop-columns": "falls,cost,exposure"})
    assert with_offset.result["metrics"]["auc"] > without.result["metrics"]["auc"]


WRONG: list[tuple[Mapping[str, Scalar], str]] = [
    ({"label-type": "numbers"}, "label-type: got 'numbers', allowed: class, number"),
    (
        {"dataset": "digits", "label-column": "", "drop-columns": ""},
        "label-type: got 'number', allowed: 'class' with dataset 'digits'",
    ),
    ({"partition": "dirichlet", "data-dir": "/srv"}, "partition: got 'dirichlet', allowed: iid, linear, natural"),
    ({"positive-label": "1"}, "positive-label: got '1', allowed: '', since with label-type 'number'"),
    ({"partition": "iid", "data-dir": "/srv", "imbalance": 0.1}, "imbalance: got 0.1, allowed: 0.0, since"),
    ({"strategy": "fedx2"}, "label-type: got 'number' with strategy 'fedx2', allowed: 'class', since"),
    ({"strategy": "vfb2-sgd", "partition": "iid"}, "label-type: got 'number' with strategy 'vfb2-sgd'"),
    ({"loss": "cross-entropy"}, "loss: got 'cross-entropy' with label-type 'number', allowed: 'squared' or 'poisson'"),
    (
        {"label-type": "class", "loss": "poisson"},
        "loss: got 'poisson' with label-type 'class', allowed: 'cross-entropy'",
    ),
    ({"offset-column": "cost"}, "offset-column: got 'cost', allowed: a column that is neither the label"),
    ({"offset-column": "age", "strategy": "composite"}, "offset-column: got 'age' with strategy 'composite'"),
    ({"site-metrics": True}, "site-metrics: got True, allowed: false, since with label-type 'number'"),
]


@pytest.mark.parametrize(("changes", "fields"), WRONG)
def test_wrong_keys_are_refused(changes: Mapping[str, Scalar], fields: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config({**COST, **changes})
    assert fields in spell(refused.value)


CELLS: list[tuple[str, object, str]] = [
    ("cost", "high", "column 'cost': got 1 of 30 cells that are text, the first in row 4"),
    ("cost", None, "column 'cost': got 1 of 30 cells missing, the first in row 4"),
    ("exposure", None, "column 'exposure': got 1 of 30 cells missing, the first in row 4"),
    ("exposure", "inf", "column 'exposure': got 1 of 30 cells that are not finite, the first in row 4"),
]


@pytest.mark.parametrize(("column", "cell", "fields"), CELLS)
def test_unusable_cells_are_named(
    column: str, cell: object, fields: str, nodes: list[dict[str, Scalar]], tmp_path: Path
) -> None:
    table = stays(30, 0).astype({column: object})
    table.loc[3, column] = cell
    table.to_csv(str(nodes[0]["data-path"]), index=False)
    config = COST | {"offset-column": "exposure", "drop-columns": "falls"}
    with refuses(Exception, fields):
        own_rows(parse_run_config(config), nodes[0], 0)


def test_negative_counts_are_refused(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    stays(30, 0).assign(falls=lambda frame: frame["falls"] - 3).to_csv(str(nodes[1]["data-path"]), index=False)
    with refuses(RunFailedError, "column 'falls': got .* cells below 0, .*, allowed: numbers of 0 or more"):
        federate(tmp_path / "run", FALLS, nodes=nodes)


def test_curves_show_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = list[Figure]()
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **options: figures.append(self))
    lines = [{"round": number, "rmse": 2.0, "mae": 1.0, "loss": 3.0} for number in range(3)]
    draw_curves(lines, tmp_path / "curves.png", "a run", "the test set")
    labels = [line.get_label() for line in figures[0].axes[0].lines]
    assert labels == ["root mean squared error", "mean absolute error"]
