"""The sites' metrics and the threshold in result.json match their rows under the model file; secure sums have none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import MessageType
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score, brier_score_loss, confusion_matrix, roc_auc_score

from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation.metric_names import ROUND_FIGURES
from apps.run_directory.curves import _choose
from apps.run_directory.events import numbers_of
from apps.sites.resources import federated_data
from payloads.held_out import SCORE_COUNTS, TEST_SCORE_COUNTS
from payloads.wire import PAYLOAD
from problems.data import DataSpec, load
from problems.intervals import FIGURES, RANKING
from problems.models import build_model
from simulations.engines.launch import run_centralized
from simulations.results.compare import Comparison
from simulations.results.records import read_run
from simulations.results.report import as_html
from tests.apps.test_own_data import COLUMNS, CSV, SITES, files, own_rows
from tests.battery.federation import Run, Wiretap, federate, flat_config, patients
from tests.battery.test_resume import assert_same_run
from tests.refusals import refuses, spell

OWN: dict[str, Scalar] = {
    **CSV,
    "feature-columns": COLUMNS,
    "strategy": "local-sgd",
    "learning-rate": 1.0,
    "seed": 2,
    "site-metrics": True,
    "validation-fraction": 0.25,
}
CHOOSING: dict[str, Scalar] = {"select-by": "auc", "threshold-at": "sensitivity=0.8"}


def own(path: Path, config: dict[str, Scalar] = CHOOSING) -> tuple[Run, Wiretap, list[dict[str, Scalar]]]:
    path.mkdir(exist_ok=True)
    nodes = files(path, [patients(80 + 20 * place, place, shift=2 * place) for place in range(SITES)])
    nodes[1]["site-name"] = "St. $Anna$"
    return *federate(path / "run", {**OWN, **config}, nodes=nodes), nodes


def scored(run: Run, nodes: list[dict[str, Scalar]], kind: str, name: str = "model_best") -> list[tuple[Any, Any]]:
    """Return (n,) labels and (n,) scores for each site: its rows of a kind under a model file."""
    config = parse_run_config({key: OWN[key] for key in OWN if key != "site-metrics"})
    sites = [own_rows(config, node, place) for place, node in enumerate(nodes)]
    columns = json.loads((run.path / "columns.json").read_text("utf-8"))["outputs"]
    means, deviations = (np.array([column[key] for column in columns]) for key in ("mean", "deviation"))
    weights = load_file(run.path / f"{name}.safetensors")
    weight, bias = weights["output.weight"][0].numpy(), weights["output.bias"].numpy()
    found = []
    for rows in sites:
        chosen = getattr(rows, kind)
        found.append((rows.labels[chosen], (rows.features[chosen] - means) / deviations @ weight + bias))
    return found


def check_figures(found: dict[str, Any], labels: Any, scores: Any, within: float = 1e-6) -> None:
    """Assert that scikit-learn computes an entry of result.json from these rows."""
    assert (found["rows"], found["positives"]) == (len(labels), labels.sum())
    expected = {
        "auc": roc_auc_score(labels, scores),
        "pauc_fpr30": roc_auc_score(labels, scores, max_fpr=0.3),
        "average_precision": average_precision_score(labels, scores),
        "brier": brier_score_loss(labels, 1 / (1 + np.exp(-scores))),
    }
    assert {name: found[name][0] for name in expected} == pytest.approx(expected, abs=within)
    assert all(found[name][1] <= found[name][0] <= found[name][2] for name in ("auc", "brier", "ece"))
    assert sum(one["rows"] for one in found["reliability"]) == len(labels)


def check_confusion(found: dict[str, int], labels: Any, scores: Any, threshold: float) -> None:
    names = ("true_negatives", "false_positives", "false_negatives", "true_positives")
    assert [found[name] for name in names] == confusion_matrix(labels, scores >= threshold).ravel().tolist()


def test_each_site_has_the_figures_of_its_own_test_rows(tmp_path: Path) -> None:
    run, grid, nodes = own(tmp_path)
    result, rows = run.result, scored(run, nodes, "test_rows")
    assert result["figures_on"] == "test rows"
    assert 0 < result["selected"]["round"] < 3
    assert [site["partition"] for site in result["sites"]] == [0, 1, 2]
    assert [site["name"] for site in result["sites"]] == ["partition 0", "St. $Anna$", "partition 2"]
    assert result["site_names"] == {"1": "St. $Anna$"}
    threshold = result["threshold"]["score"]
    everyone = tuple(map(np.concatenate, zip(*rows, strict=True)))
    for entry, (labels, scores) in zip([*result["sites"], result["all"]], [*rows, everyone], strict=True):
        check_figures(entry, labels, scores, within=0.02)
        check_confusion(entry["confusion"], labels, scores, threshold)
    assert result["all"]["auc"][0] == pytest.approx(result["test_metrics"]["auc"])
    # the threshold is chosen on the validation rows, and reaches the requested value there
    labels, scores = map(np.concatenate, zip(*scored(run, nodes, "validation_rows"), strict=True))
    assert (scores >= threshold)[labels == 1].mean() == pytest.approx(result["threshold"]["sensitivity"])
    assert (scores < threshold)[labels == 0].mean() == pytest.approx(result["threshold"]["specificity"])
    assert result["threshold"]["sensitivity"] >= 0.8
    assert {(run.path / name).exists() for name in ("roc.png", "reliability.png")} == {False}
    # the threshold is an edge of the bins that the sites are asked about
    asked = [exchange.message for exchange in grid.exchanges if exchange.phase == TEST_SCORE_COUNTS]
    assert all(PAYLOAD in message.content for message in asked)


@pytest.mark.parametrize("secure", [False, True])
def test_rounds_have_the_figures_that_the_end_would_have(secure: bool, tmp_path: Path) -> None:
    """Rounds 0, 2 and the last have metrics; nothing else in the lines changes, not even the bytes."""
    more: dict[str, Scalar] = {"privacy.secure-sum": secure}
    run, _, _ = own(tmp_path / "with", {**more, "site-metrics-every": 2})
    plain, _, _ = own(tmp_path / "without", {**more, "site-metrics": False})
    lines = [json.loads(line) for line in run.untimed]
    figures = {line["round"]: line.pop(ROUND_FIGURES) for line in lines if ROUND_FIGURES in line}
    assert list(figures) == [0, 2, 3]
    assert lines == [json.loads(line) for line in plain.untimed]

    def values(entry: dict[str, Any]) -> dict[str, Any]:
        points = {name: entry[name] and entry[name][0] for name in FIGURES}
        return {name: entry[name] for name in ("partition", "rows", "positives") if name in entry} | points

    ends = run.result
    assert figures[3] == {"all": values(ends["all"]), "sites": [values(site) for site in ends["sites"]]}
    assert len(figures[0]["sites"]) == (0 if secure else SITES)
    assert {line["round"]: line["auc"] for line in run.lines if line["round"] in figures} == pytest.approx(
        {number: found["all"]["auc"] for number, found in figures.items()}
    )


def test_each_sites_figures_are_numbers_of_their_own() -> None:
    entry = dict.fromkeys(FIGURES, 0.5)
    sites = [{"partition": 2, "rows": 9, "positives": 9, **entry, "auc": None}]
    found = numbers_of({"round": 3, "loss": 0.1, ROUND_FIGURES: {"all": entry, "sites": sites}})
    assert found == {"loss": 0.1, **{f"sites/2/{name}": 0.5 for name in FIGURES if name != "auc"}}


def test_of_many_sites_the_lowest_and_the_highest_are_drawn() -> None:
    curves = {place: {0: 0.5, 4: abs(place - 5) / 20} for place in range(13)} | {13: {0: 0.0}}
    assert _choose(curves) == [5, 12]
    assert _choose({place: curves[place] for place in (4, 2)}) == [2, 4]


def test_with_secure_sums_there_are_figures_of_all_alone(tmp_path: Path) -> None:
    run, grid, nodes = own(tmp_path, {**CHOOSING, "privacy.secure-sum": True})
    assert run.result["sites"] == []
    labels, scores = map(np.concatenate, zip(*scored(run, nodes, "test_rows"), strict=True))
    check_figures(run.result["all"], labels, scores, within=0.05)
    check_confusion(run.result["all"]["confusion"], labels, scores, run.result["threshold"]["score"])
    # a site's report before round 1 is not a sum
    config = parse_run_config({key: OWN[key] for key in OWN if key != "site-metrics"})
    trained = [rows.labels[rows.train_rows] for rows in (own_rows(config, node, i) for i, node in enumerate(nodes))]
    assert run.result["training_rows"] == [
        {"partition": place, "rows": len(labels), "positives": labels.sum()} for place, labels in enumerate(trained)
    ]
    # each model is asked about once: the difference of two sums would be a site's counts
    counted = [one for one in grid.exchanges if one.message.metadata.message_type == MessageType.EVALUATE]
    asked = [(one.phase, one.server_round) for one in counted]
    assert (
        asked
        == [(SCORE_COUNTS, number) for number in range(4) for _ in range(SITES)] + [(TEST_SCORE_COUNTS, 3)] * SITES
    )


@pytest.mark.parametrize("own_files", [False, True])
def test_a_run_that_chooses_nothing_measures_no_row_again(own_files: bool, tmp_path: Path) -> None:
    """The metrics come from the last round's evaluation; if it used validation rows, no test row is read."""
    if own_files:
        run, grid, nodes = own(tmp_path, {})
        assert [exchange.phase for exchange in grid.exchanges if exchange.phase].count(TEST_SCORE_COUNTS) == 0
        assert run.result["bytes_down"] == sum(line["bytes_down"] for line in run.lines)
        for site, rows in zip(run.result["sites"], scored(run, nodes, "validation_rows", "model"), strict=True):
            check_figures(site, *rows, within=0.02)
    else:
        keys: dict[str, Scalar] = {"dataset": "breast-cancer", "validation-fraction": 0.2, "site-metrics": True}
        run, _ = federate(tmp_path / "run", {"strategy": "local-sgd", **keys})
    assert run.result["figures_on"] == "validation rows"
    assert run.result["all"]["auc"][0] == pytest.approx(run.result["metrics"]["auc"])
    assert not {"test_metrics", "threshold"} & run.result.keys()


def test_the_servers_test_rows_are_those_of_natural_sites(tmp_path: Path) -> None:
    """Three of four sites take part: their rows are reported separately, and the total includes the fourth site's."""
    tables = [patients(60, place).drop(columns=["name", "sex"]).assign(ward=place) for place in range(4)]
    pd.concat(tables).to_csv(tmp_path / "t.csv", index=False)
    config = {key: OWN[key] for key in ("label-column", "positive-label", "strategy", "site-metrics")}
    config |= {"dataset": "csv", "data-dir": str(tmp_path / "t.csv"), "site-column": "ward", "partition": "natural"}
    config |= {"partition-sites": 4, "pictures": True, "site-metrics-every": 1}
    run, _ = federate(tmp_path / "run", config)
    data = federated_data(parse_run_config(flat_config(run.path, config)).data, 3)
    module = build_model("linear", data.test.shape, seed=9)
    module.load_state_dict(load_file(run.path / "model.safetensors"))
    with torch.no_grad():
        scores = module(torch.tensor(data.test.features)).double().numpy()
    assert data.test.sites is not None
    assert [site["partition"] for site in run.result["sites"]] == [0, 1, 2]
    for site in run.result["sites"]:
        mine = data.test.sites == site["partition"]
        check_figures(site, data.test.labels[mine], scores[mine])
    check_figures(run.result["all"], data.test.labels, scores)
    assert run.result["all"]["rows"] == sum(site["rows"] for site in run.result["sites"]) + sum(data.test.sites == -1)
    assert sum(data.test.sites == -1) > 0
    assert {(run.path / name).exists() for name in ("roc.png", "reliability.png", "sites.png")} == {True}


def test_drawn_sites_are_the_clients() -> None:
    for spec, clients in ((DataSpec("synthetic-offset-sites"), 16), (DataSpec("synthetic-sparse-logistic"), 3)):
        data = load(spec, clients)
        assert data.test.sites is not None
        assert np.unique(data.test.sites).tolist() == list(range(clients))
    # here all rows of a site share an offset in the second feature
    data = load(DataSpec("synthetic-offset-sites", validation_fraction=0.2), 16)
    for client in (0, 7):
        for rows in (data.test, data.evaluated):
            assert rows.sites is not None
            second = rows.features[rows.sites == client][:, 1]
            assert second.mean() == pytest.approx(data.client(client).features[:, 1].mean(), abs=0.4)
            assert second.std() < 1


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"dataset": "breast-cancer"}, "since the server cannot assign these rows to sites"),
        ({"dataset": "synthetic-sparse-logistic", "privacy.secure-sum": True}, "with privacy.secure-sum"),
    ],
)
def test_figures_may_be_of_all_alone(config: dict[str, Scalar], told: str, tmp_path: Path, caplog: Any) -> None:
    run, _ = federate(tmp_path / "run", {"strategy": "local-sgd", "site-metrics": True, **config})
    assert run.result["sites"] == []
    assert set(FIGURES) < set(run.result["all"])
    assert f"no figures of single sites {told}" in caplog.text


def test_a_site_of_one_class_has_no_ranking(tmp_path: Path) -> None:
    tables = [patients(60, place) for place in range(SITES)]
    tables[1] = tables[1][tables[1]["ill"] == "yes"]
    run, _ = federate(tmp_path / "run", {**OWN, **CHOOSING}, nodes=files(tmp_path, tables))
    site = run.result["sites"][1]
    assert site["rows"] == site["positives"] > 0
    assert [site[name] for name in RANKING] == [None] * 4
    assert site["brier"][0] > 0
    page = as_html(Comparison.of([run.path]))
    assert "figures on test rows, with 95 % intervals" in page


@pytest.mark.parametrize("config", [CHOOSING, {"threshold-at": "specificity=0.7", "site-metrics-every": 1}, {}])
def test_a_finished_run_that_is_resumed_says_the_same(config: dict[str, Scalar], tmp_path: Path) -> None:
    config = {**config, "checkpoint-every": 2}
    run, _, nodes = own(tmp_path, config)
    federate(tmp_path / "cut", {**OWN, **config, "num-server-rounds": 2}, nodes=nodes)
    cut, _ = federate(tmp_path / "cut", {**OWN, **config, "resume": True}, nodes=nodes)
    assert_same_run(cut, run)
    before = run.result
    again, _ = federate(run.path, {**OWN, **config, "resume": True}, nodes=nodes)
    apart = ("wall_seconds", "config", *(() if config.get("threshold-at") else ("bytes_up", "bytes_down")))
    assert [key for key, value in again.result.items() if value != before[key] and key not in apart] == []


def test_a_threshold_alone_is_of_the_last_model(tmp_path: Path) -> None:
    run, _, nodes = own(tmp_path, {"threshold-at": "specificity=0.7", "site-metrics": False})
    rows = scored(run, nodes, "test_rows", "model")
    for site, (labels, scores) in zip(run.result["sites"], rows, strict=True):
        assert set(site) == {"partition", "name", "rows", "positives", "confusion"}
        check_confusion(site["confusion"], labels, scores, run.result["threshold"]["score"])
    record = read_run(run.path)
    assert record.final("auc") == run.result["test_metrics"]["auc"] != record.last("auc")
    assert not (run.path / "model_best.safetensors").exists()


REFUSED: list[tuple[dict[str, Scalar], str]] = [
    ({"threshold-at": "sensitivity=0.9"}, "threshold-at: got 'sensitivity=0.9' without validation rows"),
    ({"threshold-at": "recall=0.9"}, "threshold-at: got 'recall=0.9', allowed: sensitivity=x, specificity=x"),
    ({"threshold-at": "sensitivity=0"}, "threshold-at: got 'sensitivity=0'"),
    ({"threshold-at": "specificity=nan"}, "threshold-at: got 'specificity=nan'"),
    ({"threshold-at": "0.9"}, "threshold-at: got '0.9'"),
    ({"site-metrics": True, "strategy": "vfb2-sgd"}, "site-metrics: got True with strategy 'vfb2-sgd', allowed: false"),
    ({"site-metrics-every": 2}, "site-metrics-every: got 2, allowed: 0, since without site-metrics"),
    (
        {"site-metrics": True, "site-metrics-every": 6, "evaluate-every": 4},
        "site-metrics-every: got 6, allowed: a multiple of 4 (evaluate-every)",
    ),
    (
        {"site-metrics": True, "strategy": "fedsgda-mb", "dataset": "synthetic-pl"},
        "site-metrics: got True with loss 'synthetic-pl', allowed: false, since with this loss rows have no scores",
    ),
]


@pytest.mark.parametrize(("values", "told"), REFUSED)
def test_what_is_refused(values: dict[str, Scalar], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_run_config(values)
    assert told in spell(refused.value)


def test_a_reference_has_none(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"site-metrics": True, "strategy": "local-sgd"}
    with refuses(ConfigError, "site-metrics: got True for a centralized reference, allowed: no value"):
        run_centralized(2, flat_config(tmp_path / "run", config))
