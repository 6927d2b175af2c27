"""Several binary labels of each row: reading, the objective, the metrics, and models in use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from apps.config import ConfigError, Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from methods.finding_records import join_records, split_records
from methods.local_sgd import LOCAL_SGD
from methods.predictions import FedXPredictions
from methods.samples import FindingsObjective
from payloads.record import PayloadError
from payloads.settings import Settings, TrainingSettings
from problems.data import DataError, DataSpec, load
from problems.data.disturb import split
from problems.data.findings import Findings, make_findings, read_findings
from problems.data.own import read_own
from problems.finding_metrics import finding_intervals, finding_metrics
from problems.minimax import FindingsAUCOracle, FindingsCompositionalOracle
from problems.minimax.auc import saddle_value
from problems.models import FlatModel, build_model
from problems.models.networks import SaddleNetwork
from problems.objectives.scores import SCORES
from problems.site import Site
from simulations.engines.checking import check_run
from simulations.python.runs import run
from simulations.results.board import describe_findings
from simulations.results.row_differences import compare_rows
from simulations.scoring.export import export_onnx
from simulations.scoring.model import load as load_model
from simulations.scoring.rows import evaluate_file, score_file
from tests.refusals import refuses

NAMES = ("oedema", "mass", "scar")
SPEC = DataSpec(dataset="csv", label_columns=", ".join(NAMES))


def make_table(rows: int, seed: int = 0) -> pd.DataFrame:
    """Return rows with four features and three findings, of which a fifth are unknown."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4))
    values = (x @ np.random.default_rng(9).normal(size=(4, 3)) + rng.normal(size=(rows, 3)) > 0.4).astype(float)
    values[rng.random(values.shape) < 0.2] = np.nan
    return pd.DataFrame(np.hstack([x, values]), columns=[*"abcd", *NAMES])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    make_table(120).to_csv(data / "train.csv", index=False)
    make_table(80, seed=1).to_csv(data / "test.csv", index=False)
    return data


def config_of(folder: Path, **more: Scalar) -> dict[str, Scalar]:
    keys: dict[str, Scalar] = {"dataset": "csv", "data-dir": str(folder), "label-columns": ", ".join(NAMES)}
    keys |= {"strategy": "local-sgd", "model": "linear-no-intercept", "num-server-rounds": 3, "pictures": False}
    return keys | {key.replace("_", "-"): value for key, value in more.items()}


# The data.


@pytest.mark.parametrize(("uncertain", "expected"), [("ignore", -1), ("zero", 0), ("one", 1)])
def test_cells_are_0_1_uncertain_or_unknown(uncertain: str, expected: int) -> None:
    columns = [pd.Series([0, 1, -1], name="mass"), pd.Series(["1.0", None, "0"], name="scar")]
    spec = DataSpec(dataset="csv", label_columns="mass, scar", uncertain=uncertain)
    found = read_findings(columns, spec)
    assert found.values.tolist() == [[0, 1], [1, -1], [expected, 0]]
    assert found.names == ("mass", "scar")


@pytest.mark.parametrize("cell", ["yes", 2, 0.5])
def test_other_cells_are_refused_without_a_quote(cell: object) -> None:
    columns = [pd.Series([0, 1, cell], name="mass", dtype=object), pd.Series([1, 0, 1], name="scar")]
    with refuses(DataError, "mass.*allowed: 0, 1, -1 for uncertain, or nothing for unknown") as error:
        read_findings(columns, DataSpec(dataset="csv", label_columns="mass, scar"))
    assert str(cell) not in error.value.got.replace("1 other", "").replace("column", "")


def test_a_cell_may_list_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cells = ["mass|scar", "scar", "No Finding", None, "oedema | mass", "scarring|oedema"] * 10
    pd.DataFrame({"a": np.sin(np.arange(60)), "Labels": cells}).to_csv(tmp_path / "train.csv", index=False)
    spec = DataSpec(dataset="csv", data_dir=str(tmp_path), label_column="Labels", label_columns=SPEC.label_columns)
    data = load(replace(spec, label_separator="|", test_fraction=0.5), 1)
    assert data.input_shape == (1,)
    assert data.test.findings is not None
    rows = {tuple(row) for row in data.test.findings.values.tolist()}
    assert rows == {(0, 1, 1), (0, 0, 1), (0, 0, 0), (-1, -1, -1), (1, 1, 0), (1, 0, 0)}
    assert "Labels: label-columns does not list No Finding in 10 cells, scarring in 10 cells" in caplog.text


def test_shares_are_of_the_training_rows(folder: Path) -> None:
    data = load(DataSpec(dataset="csv", data_dir=str(folder), label_columns=SPEC.label_columns), 3)
    known = pd.read_csv(folder / "train.csv")[list(NAMES)].notna().to_numpy()
    for samples in (data.client(0), data.client(2)):
        assert samples.findings is not None
        np.testing.assert_allclose(samples.findings.shares, known.mean(axis=0))


def test_a_finding_with_one_value_is_named(folder: Path) -> None:
    make_table(80).assign(mass=0).to_csv(folder / "test.csv", index=False)
    with refuses(DataError, r"the test rows: .*one value only of mass \(80 zeros, 0 ones\)"):
        load(DataSpec(dataset="csv", data_dir=str(folder), label_columns=SPEC.label_columns), 3)


@pytest.mark.parametrize(
    ("labels", "columns", "match"),
    [
        (np.zeros((6, 3)), "", "3 labels for each row, .*set label-columns|set label-columns to their names"),
        (np.zeros((6, 3)), "a, b", r"labels of shape \(6, 3\)"),
        (np.arange(6) % 2, "0, 2", "2, which no row has; allowed: classes: 0, 1|label-columns: .*2, which no row has"),
    ],
)
def test_arrays_have_a_column_for_each_name(labels: Any, columns: str, match: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", X=np.ones((6, 2)), y=labels)
    with refuses(DataError, match):
        load(DataSpec(dataset="npz", data_dir=str(tmp_path), label_columns=columns), 2)


def test_a_table_names_the_findings_of_images(tmp_path: Path) -> None:
    table, rng = make_table(150)[list(NAMES)], np.random.default_rng(0)
    for row in range(150):
        pixels = (40 * table.fillna(0).iloc[row].to_numpy() + 20 * rng.random((8, 3)).mean(1, keepdims=True)).repeat(
            4, 1
        )
        Image.fromarray(pixels[:, :8].astype(np.uint8)).save(tmp_path / f"{row}.png")
    table = table.assign(file=[f"{row}.png" for row in range(150)], ward=np.arange(150) % 2)
    table.to_csv(tmp_path / "list.csv", index=False)
    keys = config_of(tmp_path, dataset="image-folder", image_column="file", site_column="ward", partition="natural")
    record = run(keys | {"model": "linear"}, tmp_path / "run", clients=2, quiet=True)
    trained = load_model(record.path)
    assert trained.classes_.tolist() == list(NAMES)
    measured = evaluate_file(trained, tmp_path / "list.csv", resamples=5)
    assert measured.rows == 150
    assert score_file(trained, tmp_path / "list.csv")["file"].tolist() == table.file.tolist()


def test_classes_are_told_from_all_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A column of classes, and an array of classes, give a finding for each listed class."""
    frame = make_table(150)[[*"abcd"]]
    kinds = np.array(["none", "mass", "scar", "oedema"])[np.argmax(frame.to_numpy(), axis=1)]
    frame.assign(kind=kinds).to_csv(tmp_path / "train.csv", index=False)
    keys = config_of(tmp_path, label_column="kind", model="linear", learning_rate=0.5, num_server_rounds=10)
    record = run(keys, tmp_path / "run", clients=3, quiet=True)
    assert record.metrics["auc"] > 0.9
    trained, others = load_model(record.path), (kinds == "none").sum()
    assert f"label-columns does not list the class none of {others} rows" in caplog.text
    scores = trained.decision_function(frame)
    measured = evaluate_file(trained, tmp_path / "train.csv", resamples=2)
    for index, name in enumerate(NAMES):
        assert measured.metrics[f"auc_{name}"].value == pytest.approx(roc_auc_score(kinds == name, scores[:, index]))
    np.savez(tmp_path / "train.npz", X=frame.to_numpy(), y=kinds)
    arrays = load(replace(SPEC, dataset="npz", data_dir=str(tmp_path / "train.npz")), 2)
    table = load(replace(SPEC, data_dir=str(tmp_path / "train.csv"), label_column="kind"), 2)
    assert arrays.train.findings is not None
    assert table.train.findings is not None
    np.testing.assert_array_equal(arrays.train.findings.values, table.train.findings.values)


@pytest.mark.parametrize("grouped", [False, True])
def test_exclusive_findings_are_divided_by_class(grouped: bool, tmp_path: Path) -> None:
    """Of 6, 12 and 30 rows a third are test rows, and a quarter of the others validation rows."""
    codes = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [6, 12, 30]))
    frame = pd.DataFrame({"a": np.sin(np.arange(48.0)), **{name: codes == k for k, name in enumerate(NAMES)}})
    frame.assign(who=[f"p{row}" for row in range(48)]).to_csv(tmp_path / "rows.csv", index=False)
    keys = {"data_dir": str(tmp_path / "rows.csv"), "test_fraction": 1 / 3, "validation_fraction": 0.25, "seed": 1}
    keys |= {"group_column": "who"} if grouped else {"drop_columns": "who"}
    data = load(replace(SPEC, **keys), 3)  # type: ignore[arg-type]
    parts = (data.test, data.validation, data.train)
    counts = [part.findings.counts[:, 1].tolist() for part in parts if part is not None and part.findings is not None]
    assert counts == [[2, 4, 10], [1, 2, 5], [3, 6, 15]]
    site = read_own(str(tmp_path / "rows.csv"), replace(SPEC, **{**keys, "data_dir": "", "partition": "own"}), 0)  # type: ignore[arg-type]
    assert site.findings is not None
    assert site.findings[site.test_rows].counts[:, 1].tolist() == [2, 4, 10]
    assert site.findings[site.evaluated_rows].counts[:, 1].tolist() == [1, 2, 5]


def test_other_findings_are_divided_as_rows_of_one_class(tmp_path: Path) -> None:
    values = np.eye(3)[np.arange(60) % 3]
    values[0] = 1  # all findings of the first row
    np.savez(tmp_path / "train.npz", X=np.arange(60.0)[:, None], y=values)
    data = load(replace(SPEC, dataset="npz", data_dir=str(tmp_path)), 3)
    assert data.test.features.ravel().tolist() == split(np.zeros(60, dtype=np.int8), 0.2, 0, classes=(0,))[1].tolist()


@pytest.mark.parametrize("strategy", ["fedx1", "codasca"])
def test_digits_are_told_apart(strategy: str, tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"dataset": "digits", "label-columns": "0, 1, 8", "strategy": strategy}
    record = run(keys | {"num-server-rounds": 5, "pictures": False}, tmp_path / "run", clients=3, quiet=True)
    assert record.metrics["auc_8"] > 0.8


# The objective.


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(2, 5))
def test_the_mean_over_sites_is_the_mean_over_findings(seed: int, sites: int, count: int) -> None:
    """The gradient equals autograd's of mean_l (mean loss over the rows of all sites in which finding l is known)."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 9, size=sites)
    features, values = rng.normal(size=(rows.sum(), 3)), rng.integers(-1, 2, size=(rows.sum(), count)).astype(np.int8)
    values[0] = 1  # each finding is known somewhere
    everything = Findings.of(values, tuple(map(str, range(count))))
    module = build_model("mlp", (3,), seed=0, outputs=count).double()
    model, total, start = FlatModel(module, dtype=torch.float64, outputs=count), 0.0, 0
    w = model.parameters.clone()
    for site_id, size in enumerate(rows.tolist()):
        part = slice(start, start + size)
        site = Site.from_arrays(site_id, features[part], np.zeros(size), dtype=torch.float64)
        site = replace(site, findings=everything[part])
        f = LOCAL_SGD.client.objective(model, site, "cross-entropy", TrainingSettings(), Settings())
        assert type(f) is FindingsObjective
        total = total + size / rows.sum() * f.gradient(w, site.batch).clone()
        start += size
    known, labels = torch.tensor(values >= 0), torch.tensor(values, dtype=torch.float64)
    scores = build_model("mlp", (3,), seed=0, outputs=count).double()
    logits = scores(torch.tensor(features))
    each = [
        functional.binary_cross_entropy_with_logits(logits[known[:, i], i], labels[known[:, i], i])
        for i in range(count)
    ]
    torch.stack(each).mean().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in scores.parameters()])  # type: ignore[union-attr]
    np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_saddle_functions_mean_over_sites_is_the_mean_over_findings(seed: int, sites: int) -> None:
    rng, count = np.random.default_rng(seed), 3
    rows = rng.integers(2, 9, size=sites)
    features, values = rng.normal(size=(rows.sum(), 3)), rng.integers(-1, 2, size=(rows.sum(), count)).astype(np.int8)
    values[:2] = [[0] * count, [1] * count]
    everything = Findings.of(values, NAMES)

    def make_model() -> FlatModel:
        module = SaddleNetwork(build_model("mlp", (3,), seed=0, outputs=count), count)
        return FlatModel(module, dtype=torch.float64, outputs=count)

    model = make_model()
    model.parameters[-9:] = torch.tensor(rng.normal(size=9))
    gradient, value, start = torch.zeros_like(model.parameters), 0.0, 0
    for size in rows.tolist():
        part = slice(start, start + size)
        f = FindingsAUCOracle(model, torch.tensor(features[part]), everything[part], score=SCORES["tanh"])
        f = f.weigh(float("nan"), sites * size / rows.sum())
        gradient += f.gradient(model.parameters.clone(), None) / sites
        value += f.value() / sites
        start += size
    assert f.primal_dim == model.dim - count
    plain = make_model()
    plain.parameters.copy_(model.parameters)
    scores, saddle = torch.tanh(plain.scores(torch.tensor(features))), plain.module.saddle
    each = []
    for j in range(count):
        known = values[:, j] >= 0
        own = torch.stack([saddle[name][j] for name in ("a", "b", "dual")])  # type: ignore[index]
        labels = torch.tensor(values[known, j], dtype=torch.float64)
        each.append(saddle_value(scores[known, j], labels, own, float(labels.mean())))
    expected = torch.stack(each).mean()
    assert value == pytest.approx(expected.item())
    expected.backward()
    wanted = torch.cat([parameter.grad.flatten() for parameter in plain.module.parameters()])  # type: ignore[union-attr]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-9, atol=1e-12)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_the_inner_descents_mean_over_sites_is_on_the_mean_over_findings(seed: int, sites: int) -> None:
    """The mean of g, and of its Jacobian's products, is w - rho grad CE, and q - rho H q, of autograd."""
    rng, count, rho = np.random.default_rng(seed), 3, 0.3
    rows = rng.integers(2, 9, size=sites)
    features, values = rng.normal(size=(rows.sum(), 3)), rng.integers(-1, 2, size=(rows.sum(), count)).astype(np.int8)
    values[:2] = [[0] * count, [1] * count]
    everything = Findings.of(values, NAMES)

    def make_model() -> FlatModel:
        module = SaddleNetwork(build_model("mlp", (3,), seed=0, outputs=count), count)
        return FlatModel(module, dtype=torch.float64, outputs=count)

    model, inner = make_model(), make_model()
    z, q = model.parameters.clone(), torch.tensor(rng.normal(size=model.dim))
    point, product, start = torch.zeros_like(z), torch.zeros_like(z), 0
    for size in rows.tolist():
        part = slice(start, start + size)
        f = FindingsCompositionalOracle(model, inner, torch.tensor(features[part]), everything[part])
        own, pull = f.weigh(float("nan"), sites * size / rows.sum()).descend(z, np.arange(size), rho)
        point += own / sites
        product += pull(q.clone()) / sites
        start += size
    module = make_model().module
    weights = [parameter for name, parameter in module.named_parameters() if "saddle" not in name]
    known, labels, logits = (
        torch.tensor(values >= 0),
        torch.tensor(values, dtype=torch.float64),
        module(torch.tensor(features)),
    )
    each = [
        functional.binary_cross_entropy_with_logits(logits[known[:, j], j], labels[known[:, j], j])
        for j in range(count)
    ]
    slopes = torch.autograd.grad(torch.stack(each).mean(), weights, create_graph=True)
    flat, end = torch.cat([slope.flatten() for slope in slopes]), len(z) - 3 * count
    np.testing.assert_allclose(z[:end] - point[:end], rho * flat.detach(), atol=1e-12)
    curved = torch.cat([part.flatten() for part in torch.autograd.grad(flat @ q[:end], weights)])
    np.testing.assert_allclose(q[:end] - product[:end], rho * curved, atol=1e-12)
    np.testing.assert_allclose(product[end:], q[end:])


def test_heads_trained_at_once_are_those_trained_alone(folder: Path, tmp_path: Path) -> None:
    """With separate heads, a step of size 3 eta on three findings is a step of size eta on each finding."""
    full = config_of(folder, batch_size=0, dtype="float64", learning_rate=0.6)
    together = load_model(run(full, tmp_path / "together", clients=1, quiet=True).path)
    for index, name in enumerate(NAMES):
        alone = tmp_path / name
        alone.mkdir()
        for file in ("train.csv", "test.csv"):
            frame = pd.read_csv(folder / file)[[*"abcd", name]].dropna()
            frame.assign(**{name: frame[name].astype(int)}).to_csv(alone / file, index=False)
        single = {**full, "data-dir": str(alone), "label-columns": "", "label-column": name, "learning-rate": 0.2}
        expected = load_model(run({**single, "scale": "none"}, tmp_path / f"run-{name}", clients=1, quiet=True).path)
        again = load_model(run({**full, "scale": "none"}, tmp_path / f"all-{name}", clients=1, quiet=True).path)
        np.testing.assert_allclose(
            again.network.parameters.view(3, 4)[index], expected.network.parameters, rtol=1e-9, atol=1e-12
        )
    assert together.network.parameters.shape == (12,)


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("local-pair", {"loss": "psm", "local-steps": 1}),
        ("local-pair", {"loss": "kl-opauc", "local-steps": 1}),
        ("fedx1", {"loss": "squared-hinge"}),
        ("fedx1", {"loss": "psm", "fedx.tau": 2, "fedx.history-size": 9}),
        ("fedx2", {"loss": "kl-opauc"}),
        ("fedx2", {"loss": "auprc", "fedx.independent-history": True}),
        ("fedx1", {"loss": "psm", "score": "sigmoid", "fedx.pool": "histogram", "fedx.tau": 2}),
        ("fedx2", {"loss": "auprc", "fedx.pool": "histogram", "fedx.bins": 16}),
    ],
)
def test_pairs_of_findings_are_those_of_separate_runs(
    strategy: str, keys: dict[str, Scalar], folder: Path, tmp_path: Path
) -> None:
    """Each head draws the batches and predictions of a run on its known rows alone, at every site.

    With local pairs, sites count by their known rows, so their steps differ in size: one step is compared.
    """
    for file in ("train.csv", "test.csv"):
        frame = pd.read_csv(folder / file)
        frame.assign(ward=np.arange(len(frame)) % 3).to_csv(folder / file, index=False)
    full = config_of(folder, strategy=strategy, site_column="ward", partition="natural", dtype="float64", scale="none")
    full |= {
        "learning-rate": 0.3,
        "fedx.positive-batch-size": 4,
        "fedx.negative-batch-size": 5,
        "local-steps": 4,
        **keys,
    }
    together = load_model(run(full, tmp_path / "together", clients=3, quiet=True).path)
    for index, name in enumerate(NAMES):
        alone = tmp_path / name
        alone.mkdir()
        for file in ("train.csv", "test.csv"):
            frame = pd.read_csv(folder / file)[[*"abcd", "ward", name]].dropna()
            frame.assign(**{name: frame[name].astype(int)}).to_csv(alone / file, index=False)
        single = {**full, "data-dir": str(alone), "label-columns": "", "label-column": name, "learning-rate": 0.1}
        expected = load_model(run(single, tmp_path / f"run-{name}", clients=3, quiet=True).path)
        np.testing.assert_allclose(
            together.network.parameters.view(3, 4)[index], expected.network.parameters, rtol=1e-9, atol=1e-12
        )


def test_joined_records_split_into_the_same() -> None:
    records = [
        FedXPredictions(positive_scores=np.ones(p), partner_scores=np.zeros(q), momentum=np.arange(2.0))
        for p, q in ((2, 3), (0, 1), (4, 0))
    ]
    parts = split_records(FedXPredictions.from_record(join_records(records).to_record()), 3)
    for part, record in zip(parts, records, strict=True):
        assert {k: v.tolist() for k, v in part.arrays().items()} == {k: v.tolist() for k, v in record.arrays().items()}
    joined = join_records(records)
    with refuses(PayloadError, "cuts: .*do not add up"):
        split_records(replace(joined, cuts=joined.cuts + 1), 3)
    with refuses(PayloadError, "cuts: got none"):
        split_records(records[0], 3)


TRAINED = [name for name, row in ALGORITHMS.items() if row.traits.findings and name != "local-sgd"]


@pytest.mark.parametrize("strategy", TRAINED)
def test_these_strategies_train_them(strategy: str, folder: Path, tmp_path: Path) -> None:
    config = {**config_of(folder, strategy=strategy, model="mlp"), "num-server-rounds": 8}
    record = run(config, tmp_path / "run", clients=3, quiet=True)
    assert record.metrics["auc"] > 0.75
    assert {f"auc_{name}" for name in NAMES} <= {*record.metrics}


def test_the_log_counts_them(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train = pd.read_csv(folder / "train.csv")
    with caplog.at_level("INFO"):
        run({**config_of(folder), "num-server-rounds": 1}, tmp_path / "run", clients=3)
    texts = [f"{name} {int(train[name].sum())} of {train[name].count()} known" for name in NAMES]
    assert f"labels: {', '.join(texts)}; 120 training rows" in caplog.text


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"strategy": "coda", "client-weights": "equal"}, "client-weights: .*'examples' with label-columns"),
        ({"strategy": "composite"}, "label-columns: .*strategies for several labels: .*local-sgd"),
        ({"label-columns": "mass"}, "two or more names"),
        ({"label-column": "mass", "uncertain": "one"}, "uncertain: .*since label-columns names several labels"),
        ({"dataset": "synthetic-pl", "data-dir": ""}, "label-columns: .*whose labels are not several classes"),
        ({"partition": "dirichlet"}, "partition: .*iid"),
        ({"privacy.epsilon": 1.0}, "privacy.epsilon: .*0 with several labels"),
        ({"site-metrics": True, "importance": 2}, "importance: .*of a single label"),
        ({"label-columns": "", "uncertain": "one"}, "'ignore' without label-columns"),
    ],
)
def test_what_needs_one_label_is_refused(keys: dict[str, Scalar], match: str) -> None:
    with refuses((ConfigError, DataError), match):
        parse_run_config({**config_of(Path("data")), **keys})


def test_noise_is_for_one_label(folder: Path, tmp_path: Path) -> None:
    keys = {"strategy": "fedx1", "score": "sigmoid", "fedx.pool": "histogram", "fedx.pool-epsilon": 1.0}
    with refuses(RunFailedError, "fedx.pool-epsilon: .*0 with label-columns"):
        run(config_of(folder) | keys, tmp_path / "run", clients=2, quiet=True)


def test_a_stage_cannot_restart_the_dual(folder: Path, tmp_path: Path) -> None:
    with refuses(RunFailedError, "coda.restart-dual: .*false with label-columns"):
        run({**config_of(folder, strategy="coda"), "coda.stage-rounds": 1}, tmp_path / "run", clients=3, quiet=True)


def test_a_check_names_findings_that_a_site_lacks(folder: Path) -> None:
    frame = make_table(120)
    frame.loc[:59, "scar"] = 0
    frame.assign(ward=np.arange(120) // 60).to_csv(folder / "train.csv", index=False)
    make_table(80, seed=1).assign(ward=0).to_csv(folder / "test.csv", index=False)
    lines = check_run(2, config_of(folder, site_column="ward", partition="natural"))
    assert lines[-2:] == ["ward 0: 60 rows; without zeros or ones of scar", "ward 1: 60 rows"]


# The metrics, and models in use.


def test_metrics_are_scikit_learns_on_known_rows() -> None:
    rng = np.random.default_rng(0)
    findings = make_findings(rng.choice([0, 1, np.nan], size=(60, 3)), NAMES, SPEC)
    scores = rng.normal(size=(60, 3))
    metrics = finding_metrics(findings, scores)
    known = findings.values >= 0
    expected = [roc_auc_score(findings.values[known[:, i], i], scores[known[:, i], i]) for i in range(3)]
    assert [metrics[f"auc_{name}"] for name in NAMES] == pytest.approx(expected)
    assert metrics["auc"] == pytest.approx(np.mean(expected))
    intervals = finding_intervals(findings, scores, resamples=50)
    assert all(found.low <= metrics[name] <= found.high for name, found in intervals.items() if name.startswith("auc"))


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_model_scores_measures_and_exports(model: str, folder: Path, tmp_path: Path) -> None:
    record = run(config_of(folder, model=model), tmp_path / "run", clients=3, quiet=True)
    trained = load_model(record.path)
    test = pd.read_csv(folder / "test.csv")
    scores = score_file(trained, folder / "test.csv")
    assert scores.columns.tolist() == [f"{kind}_{name}" for name in NAMES for kind in ("score", "probability")]
    likely = trained.predict_proba(test)
    np.testing.assert_allclose(likely, 1 / (1 + np.exp(-trained.decision_function(test))), rtol=1e-6)
    np.testing.assert_array_equal(scores[[f"probability_{name}" for name in NAMES]], likely)
    measured = evaluate_file(trained, folder / "test.csv", resamples=20).metrics
    assert measured["auc"].value == pytest.approx(record.metrics["auc"])
    assert [len(site["findings"]) for site in record.result["training_rows"]] == [3, 3, 3]
    assert describe_findings(record).startswith("The model scores 3 labels. On the test set its mean AUC is ")
    assert compare_rows([record, record]) == []
    exported = export_onnx(trained)
    assert exported.difference is not None
    assert exported.difference <= 1e-5
