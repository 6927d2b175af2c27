"""Runs whose sites read their own files: training, evaluation by the sites, and errors before round 1."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Error, Message
from safetensors.torch import load_file

from apps.config import ConfigError, Scalar, parse_run_config
from apps.sites import resources
from apps.sites.rows import own_rows, with_dialect
from payloads.held_out import BINS, SCORE_COUNTS, ScoreCounts, ScoreEdges
from payloads.record import PayloadError
from payloads.wire import METRICS, NUM_EXAMPLES, PAYLOAD, SCALING
from problems.data import DataSpec, Preprocessing
from problems.metrics import binary_metrics
from strategies.score_counts import EXCHANGES
from tests.battery.federation import OF_ROWS, Exchange, Run, Wiretap, federate, patients
from tests.refusals import refuses, states

SITES = 3
CSV: dict[str, Scalar] = {"dataset": "csv", "partition": "own", "label-column": "ill", "positive-label": "yes"}
# not in the files' order, and without the column "name"
COLUMNS = "weight,sex[f|m],age"


def files(folder: Path, tables: Sequence[pd.DataFrame]) -> list[dict[str, Scalar]]:
    """Write the tables of some sites, too small for the default least cell, and return the node configs."""
    paths = [folder / f"site-{place}.csv" for place in range(len(tables))]
    for path, table in zip(paths, tables, strict=True):
        table.to_csv(path, index=False)
    return [{"data-path": str(path), "least-cell": 1} for path in paths]


ROUGH: dict[str, Scalar] = {"missing": "indicator", "missing-values": "-9"}


def with_gaps(table: pd.DataFrame) -> pd.DataFrame:
    """Add gaps, a number as a truth value, and a date to a table."""
    place = np.arange(len(table))
    return table.assign(
        age=table["age"].where(place % 7 != 2),
        weight=np.where(place % 11 == 3, -9, table["weight"]),
        sex=table["sex"].where(place % 9 != 4),
        smoker=[None if n % 8 == 5 else bool(n % 3) for n in place],
        seen=[f"2001-0{n % 3 + 1}-11" for n in place],
    )


@pytest.fixture
def nodes(tmp_path: Path) -> list[dict[str, Scalar]]:
    return files(tmp_path, [patients(60 + 20 * place, place, shift=10 * place) for place in range(SITES)])


def play(
    path: Path,
    nodes: Sequence[Mapping[str, Scalar]],
    config: Mapping[str, Scalar] = {},
    tamper: Callable[[Exchange], Message] | None = None,
) -> tuple[Run, Wiretap]:
    return federate(path, {**CSV, "feature-columns": COLUMNS, **config}, tamper=tamper, nodes=nodes)


def refused(path: Path, nodes: Sequence[Mapping[str, Scalar]], config: Mapping[str, Scalar] = {}) -> str:
    """Return why a run ended before its first round."""
    with pytest.raises(RuntimeError):
        play(path, nodes, config)
    assert not (path / "metrics.jsonl").exists()
    reason: str = json.loads((path / "failure.json").read_text("utf-8"))["reason"]
    return reason


def rows_and_scores(run: Run, nodes: Sequence[Mapping[str, Scalar]]) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) labels and scores of all held-out rows under a run's model, scaled by all sites' training rows."""
    config = parse_run_config({**CSV, "feature-columns": COLUMNS, "model": "linear"})
    sites = [own_rows(config, node, place) for place, node in enumerate(nodes)]
    training = np.concatenate([rows.features[rows.train_rows] for rows in sites])
    features = np.concatenate([rows.features[rows.test_rows] for rows in sites])
    assert sites[0].preprocessing is not None
    text = np.array(["=" in name for name in sites[0].preprocessing.names])
    scaled = np.where(text, features, (features - training.mean(axis=0)) / training.std(axis=0))
    model = resources.new_model(config, (len(text),)).module
    model.load_state_dict(load_file(run.path / "model.safetensors"))
    with torch.no_grad():
        scores = model(torch.tensor(scaled, dtype=torch.float32)).double().numpy()
    return np.concatenate([rows.labels[rows.test_rows] for rows in sites]), scores


# Training.


@pytest.mark.parametrize("strategy", OF_ROWS)
def test_every_algorithm_trains_on_own_files(strategy: str, nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, grid = play(tmp_path / "run", nodes, {"strategy": strategy})
    assert all(math.isfinite(number) for number in run.numbers())
    assert [line["round"] for line in run.lines] == [0, 1, 2, 3]
    assert not any(line["dropped"] for line in run.lines)
    assert run.result["metrics"]["auc"] > 0.5
    assert run.model["output.weight"].shape == (1, 4)
    phases = [exchange.phase for exchange in grid.exchanges]
    # rounds 0 to 3, and from round 1 on a second view of some models
    evaluations = 4 + 3 * any(name.startswith("auc_") for name in run.lines[3])
    assert evaluations * SITES <= phases.count(SCORE_COUNTS) <= EXCHANGES * evaluations * SITES


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [("fedx2", {}), ("local-sgd", {**ROUGH, "scale": "log"}), ("scaffold", {}), ("fedsgda-storm", {})],
)
def test_own_files_are_trained_with_as_one_table_in_parts(
    strategy: str, keys: dict[str, Scalar], tmp_path: Path
) -> None:
    """A data set whose consecutive thirds the clients get, tested on the same file, gives the same model."""
    change = with_gaps if keys else lambda table: table
    tables, test = [change(patients(60, place)) for place in range(SITES)], change(patients(50, 9))
    nodes = files(tmp_path, tables)
    pd.concat(tables).to_csv(tmp_path / "train.csv", index=False)
    test.to_csv(tmp_path / "test.csv", index=False)
    config: dict[str, Scalar] = {"strategy": strategy, **keys}
    own, _ = play(tmp_path / "own", nodes, {**config, "data-dir": str(tmp_path / "test.csv")})
    whole = {**CSV, **config, "partition": "consecutive", "feature-columns": COLUMNS, "data-dir": str(tmp_path)}
    for node in nodes:
        Path(str(node["data-path"])).unlink()
    pooled, _ = federate(tmp_path / "pooled", whole)
    for name, value in pooled.model.items():
        np.testing.assert_allclose(own.model[name], value, rtol=1e-4, atol=1e-6)
    for name, value in pooled.result["metrics"].items():
        assert own.result["metrics"][name] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("scale", ["standard", "log", "quantile", "bins", "none"])
@pytest.mark.parametrize("missing", ["error", "median", "indicator"])
def test_a_run_leaves_what_scores_new_rows(pooled: bool, scale: str, missing: str, tmp_path: Path) -> None:
    """The raw rows of the test file, scored with columns.json and the model file alone, have the run's AUC."""
    change = (lambda table: table) if missing == "error" else with_gaps
    tables, test = [change(patients(60, place)) for place in range(SITES)], change(patients(50, 9))
    nodes = files(tmp_path, tables)
    test.to_csv(tmp_path / "test.csv", index=False)
    pd.concat(tables).to_csv(tmp_path / "train.csv", index=False)
    keys: dict[str, Scalar] = {} if missing == "error" else {"missing-values": "-9"}
    columns = COLUMNS if missing == "error" else f"{COLUMNS},smoker,seen"
    config: dict[str, Scalar] = {"strategy": "local-sgd", "scale": scale, "missing": missing, **keys}
    config |= {"feature-columns": columns, "learning-rate": 1e-4 if scale == "none" else 0.1}
    if pooled:
        data: dict[str, Scalar] = {"partition": "consecutive", "data-dir": str(tmp_path)}
        run, _ = federate(tmp_path / "run", {**CSV, **config, **data})
    else:
        run, _ = play(tmp_path / "run", nodes, {**config, "data-dir": str(tmp_path / "test.csv")})
    kept = Preprocessing.from_json(json.loads((run.path / "columns.json").read_text("utf-8")))
    whole = ("weight", "sex=f", "sex=m", "age", *(("smoker", "seen") if keys else ()))
    gaps = [f"{name} missing" for name in ("weight", "sex", "age", "smoker")] if missing == "indicator" else []
    assert tuple(dict.fromkeys(feature.raw.name for feature in kept.outputs)) == (*whole, *gaps)
    assert (len(kept.outputs) > len(whole) + len(gaps)) == (scale == "bins")
    assert (kept.label_column, kept.positive_labels, kept.scale) == ("ill", ("yes",), scale)
    scores = kept.features(test) @ run.model["output.weight"][0] + run.model["output.bias"][0]
    metrics = binary_metrics((test["ill"] == "yes").to_numpy().astype(np.int8), scores.astype(np.float32))
    assert metrics["auc"] == pytest.approx(run.result["metrics"]["auc"], abs=1e-6)
    if scale == "standard":
        weights = pd.concat(tables)["weight"].where(lambda cells: cells != -9)
        assert (kept.outputs[0].mean, kept.outputs[0].deviation) == pytest.approx((weights.mean(), np.std(weights)))


def test_a_site_without_any_cell_of_a_column(tmp_path: Path) -> None:
    tables = [with_gaps(patients(60, place)) for place in range(SITES)]
    tables[0] = tables[0].assign(seen=None, smoker=None)
    tables[1] = tables[1].assign(smoker=tables[1]["smoker"].map({True: 1, False: 0}))
    keys: dict[str, Scalar] = {**ROUGH, "feature-columns": f"{COLUMNS},smoker,seen", "strategy": "local-sgd"}
    run, _ = play(tmp_path / "run", files(tmp_path, tables), keys)
    kept = Preprocessing.from_json(json.loads((run.path / "columns.json").read_text("utf-8")))
    assert [(feature.column, feature.kind) for feature in kept.inputs[4:]] == [("smoker", "number"), ("seen", "date")]
    seen = pd.concat([pd.to_datetime(table["seen"]) for table in tables[1:]])
    assert kept.inputs[5].fill == pytest.approx((seen.mean() - pd.Timestamp(0)).days, abs=5)
    for table in tables:
        table["seen"] = None
    told = refused(tmp_path / "none", files(tmp_path, tables), keys)
    assert states(
        told, "handshake: columns: got 'seen' with fewer than 10 cells that are not missing, allowed: 10 cells"
    )
    tables[1]["seen"] = 3.5
    tables[2]["seen"] = "1970-01-01"
    told = refused(tmp_path / "clash", files(tmp_path, tables), keys)
    assert states(
        told, "partition 2: column 'seen': got cells of kind 'date', allowed: cells of kind 'number', as at other"
    )


def test_scales_travel_with_every_message_and_are_counted(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, grid = play(tmp_path / "run", nodes, {"strategy": "local-sgd", "evaluate-every": 3})
    assert all(SCALING in exchange.message.content for exchange in grid.exchanges)
    # round 1: 3 clients, 4 weights and a bias in float32, means and deviations of 4 columns in float64
    assert run.lines[1]["bytes_down"] == SITES * (5 * 4 + 2 * 4 * 8)
    # round 3 evaluates too: each exchange sends the model and the scales, later exchanges also the edges of the bins
    asked = sum(exchange.phase == SCORE_COUNTS and exchange.server_round == 3 for exchange in grid.exchanges)
    assert asked > SITES
    edges = (asked - SITES) * 4 * (BINS - 1)
    assert run.lines[3]["bytes_down"] == (1 + asked // SITES) * run.lines[1]["bytes_down"] + edges


def test_a_resumed_run_ends_as_the_uninterrupted_one(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"strategy": "fedx2", "checkpoint-every": 2}
    whole, _ = play(tmp_path / "whole", nodes, {**config, "num-server-rounds": 4})
    play(tmp_path / "part", nodes, {**config, "num-server-rounds": 2})
    part, _ = play(tmp_path / "part", nodes, {**config, "num-server-rounds": 4, "resume": True})
    assert part.untimed == whole.untimed
    assert part.model_bytes == whole.model_bytes


def test_a_file_that_changed_is_read_again(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    before, _ = play(tmp_path / "before", nodes)
    patients(90, 17).to_csv(str(nodes[0]["data-path"]), index=False)
    after, _ = play(tmp_path / "after", nodes)
    assert before.model_bytes != after.model_bytes


# Evaluation by the sites.


def test_sites_metrics_are_those_of_all_held_out_rows(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    run, grid = play(tmp_path / "run", nodes, {"num-server-rounds": 1, "strategy": "local-sgd"})
    labels, scores = rows_and_scores(run, nodes)
    assert len(labels) == 12 + 16 + 20
    trained = [exchange for exchange in grid.exchanges if not exchange.phase]
    examples = [exchange.reply.content.metric_records[METRICS][NUM_EXAMPLES] for exchange in trained]
    assert examples == [48, 64, 80]
    exact = binary_metrics(labels, scores)
    for name, value in exact.items():
        assert run.result["metrics"][name] == pytest.approx(value, abs=2e-3 if name == "auc" else 1e-2)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(torch.tensor(scores), torch.tensor(labels).double())
    assert run.result["metrics"]["loss"] == pytest.approx(float(entropy), abs=2e-3)


@pytest.mark.parametrize(
    ("negatives", "positives", "told"),
    [
        ([5], [0], "ScoreCounts.negatives: counts of 5 rows, but the site holds out 3"),
        ([1, 1, 1], [1], "ScoreCounts.positives: counts of 1 rows, but the site holds out 2"),
        ([4, -1], [2], "ScoreCounts.negatives"),
    ],
)
def test_what_cannot_be_is_no_score(negatives: list[int], positives: list[int], told: str) -> None:
    first, second = (np.array(counts + [0] * (BINS - len(counts))) for counts in (negatives, positives))
    with pytest.raises(PayloadError) as caught:
        ScoreCounts(negatives=first, positives=second).check_rows(np.array([3, 2]))
    assert told in str(caught.value)


def test_edges_that_descend_are_refused() -> None:
    edges = np.arange(BINS - 1)
    assert ScoreEdges(edges=edges).check_order().edges is edges
    with pytest.raises(PayloadError, match=r"ScoreEdges\.edges: got edges that descend"):
        ScoreEdges(edges=edges[::-1]).check_order()


def test_a_site_that_tells_wrong_scores_is_left_out(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    one = ScoreCounts.of(np.zeros(1, int), np.zeros(1, bool))

    def tamper(exchange: Exchange) -> Message:
        if exchange.phase == SCORE_COUNTS and exchange.partition == 1 and exchange.server_round == 2:
            exchange.reply.content[PAYLOAD] = one.to_record()
        return exchange.reply

    run, _ = play(tmp_path / "run", nodes, {"strategy": "local-sgd"}, tamper)
    assert [list(line["dropped"]) for line in run.lines] == [[], [], ["1"], []]
    assert run.lines[2]["dropped"]["1"].startswith("score-counts phase: ScoreCounts.negatives: counts of 1 rows")
    assert run.lines[2]["clients_answered"] == SITES
    assert 0 < run.lines[2]["auc"] <= 1


def test_nobody_to_evaluate_ends_the_run(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    def tamper(exchange: Exchange) -> Message:
        failing = exchange.phase == SCORE_COUNTS and exchange.server_round == 2
        return Message(Error(2, "out of order"), reply_to=exchange.message) if failing else exchange.reply

    with pytest.raises(RuntimeError, match=r"round 2: 0 of 3 clients sent a valid reply.*out of order"):
        play(tmp_path / "run", nodes, {"strategy": "local-sgd"}, tamper)


def test_held_out_rows_of_one_class_end_the_run(tmp_path: Path) -> None:
    tables = [patients(30, place) for place in range(SITES)]
    nodes = files(tmp_path, [table.drop(table.index[table["ill"] == "yes"][1:]) for table in tables])
    with refuses(RuntimeError, "round 0: the sites' held-out rows: got 0 positives and"):
        play(tmp_path / "run", nodes, {"strategy": "local-sgd"})


# Errors before round 1.


def test_labels_written_otherwise_at_one_site(nodes: list[dict[str, Scalar]], tmp_path: Path) -> None:
    path = str(nodes[1]["data-path"])
    table = pd.read_csv(path)
    table.assign(ill=table["ill"].map({"yes": "Y", "no": "N"})).to_csv(path, index=False)
    reason = refused(tmp_path / "run", nodes)
    assert states(reason, "partition 1: labels: got 'N', 'Y', none of them in positive-label or at another site")
    table.assign(ill=table["name"]).to_csv(path, index=False)
    nodes[1]["site-name"] = "Bern"
    reason = refused(tmp_path / "again", nodes)
    assert states(reason, "Bern: labels: got 80 different values, the longest of 12 characters")
    assert "patient" not in reason


@pytest.mark.parametrize(
    ("columns", "ill", "told"),
    [
        ({"age": "length"}, ["yes", "no"], "got no column 'age' of feature-columns"),
        ({}, ["no", "no"], "has no positive row, allowed: rows of both classes, which the metrics"),
    ],
)
def test_a_test_file_that_does_not_fit(
    columns: dict[str, str], ill: list[str], told: str, nodes: list[dict[str, Scalar]], tmp_path: Path
) -> None:
    test = patients(40, 9).rename(columns=columns).assign(ill=ill * 20)
    test.to_csv(tmp_path / "test.csv", index=False)
    assert states(refused(tmp_path / "run", nodes, {"data-dir": str(tmp_path / "test.csv")}), told)


def test_each_site_has_its_own_form_of_csv(tmp_path: Path, nodes: list[dict[str, Scalar]]) -> None:
    """Semicolons, decimal commas and MacRoman do not change the run."""
    plain, _ = play(tmp_path / "plain", nodes)
    marks = [(";", ",", "utf-16"), ("^", ".", "utf-8"), ("\t", ".", "mac-roman")]
    keys: list[dict[str, Scalar]] = [{}, {"separator": "^"}, {"separator": "tab", "encoding": "mac-roman"}]
    for node, (separator, decimal, encoding) in zip(nodes, marks, strict=True):
        pd.read_csv(str(node["data-path"])).to_csv(
            str(node["data-path"]), index=False, sep=separator, decimal=decimal, encoding=encoding
        )
    told = [node | own for node, own in zip(nodes, keys, strict=True)]
    # the run's separator applies to sites without a separator
    again, _ = play(tmp_path / "again", told, {"separator": "semicolon"})
    assert again.untimed == plain.untimed
    with refuses(ConfigError, "separator: got a run with separator='bar', allowed: 'auto', since this site"):
        with_dialect(DataSpec("csv", separator="bar"), {"split-seed": 1})
    with refuses(ConfigError, "node config: separator: got 'ab'"):
        with_dialect(DataSpec("csv"), {"separator": "ab"})
