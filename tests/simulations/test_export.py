"""Tests of `export`: an ONNX file scores as PyTorch does, with the preprocessing inside."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import florilegium
from problems.data.preprocessing import Feature, Preprocessing
from problems.models import ModelError
from simulations.scoring import export
from simulations.scoring.check import make_rows
from simulations.scoring.table import known_texts, table_features
from tests.battery.federation import Run, federate
from tests.programs import Line
from tests.refusals import refuses, states
from tests.simulations.fabricated import refusal

EVERY_KIND = (
    Feature("age", "number", mean=50.0, deviation=10.0, fill=48.5),
    Feature("job", "category", "nurse"),
    Feature("job", "other", "*"),
    Feature("job", "category", "baker"),
    Feature("day", "date", mean=-300000.0, deviation=4000.0, fill=-299990.0),
    Feature("smoker", "boolean", mean=0.3, deviation=0.4),
    Feature("constant", "number", mean=3.3, deviation=0.0, fill=3.3),
    Feature("crp", "number", transform="log", mean=0.5, deviation=2.0, fill=0.7),
    Feature(
        "income", "number", transform="quantile", mean=0.4, deviation=0.2, fill=0.1, quantiles=(0.1, 0.1, 0.3, 9.0)
    ),
    Feature("raw", "number"),
    Feature("score", "number", mean=1e6, deviation=3.0),
    Feature("sex", "category", "1"),
    Feature("dose", "number", transform="bin", high=0.1, fill=1.0),
    Feature("dose", "number", transform="bin", low=0.1, high=16777217.0),
    Feature("dose", "number", transform="bin", low=16777217.0),
    Feature("seen", "date", transform="bin", high=12000.5),
    Feature("seen", "date", transform="bin", low=12000.5, fill=1.0),
)
MISSING = tuple(Feature(name, "missing") for name in ("income", "job"))


MARKERS = (("age", ("97", "x")), ("job", ("unknown",)), ("constant", ("4",)))


def test_a_file_makes_the_features_of_the_preprocessing() -> None:
    """It has every kind of column, with every kind of missing cell."""
    outputs = EVERY_KIND + MISSING
    table = Preprocessing(outputs, missing="indicator", missing_values=("-9", "?"), column_markers=MARKERS)
    frame, fed = make_rows(table, np.random.default_rng(0))
    assert frame["age"].isna().any()
    assert {fed[name].dtype.name for name in ("age", "job", "day", "score (column)")} == {"float64", "object"}
    file = export.translate(export.Scorer(torch.nn.Identity(), table, pixels=False), ())
    onnx.checker.check_model(file, full_check=True)
    features, _ = onnxruntime.InferenceSession(file.SerializeToString()).run(None, fed)
    np.testing.assert_allclose(features, table.features(frame), atol=2e-7)


EIGHTHS = st.integers(-400, 400).map(lambda number: number / 8)


@given(st.lists(st.sampled_from([0.1, 0.3, 7.0, 1e4]) | EIGHTHS, min_size=1).map(sorted), st.lists(EIGHTHS, min_size=1))
@settings(max_examples=40)
def test_quantiles(quantiles: list[float], numbers: list[float]) -> None:
    """At, between and beyond the quantiles, if several coincide or only one exists; and far beyond the last."""
    table = Preprocessing((Feature("x", "number", transform="quantile", quantiles=tuple(quantiles)),))
    cells = np.array([*quantiles, *numbers, 1e9, -1e9])
    features, _ = table_features(table, torch.from_numpy(cells[:, None]))
    np.testing.assert_allclose(features, table.features(pd.DataFrame({"x": cells})), atol=1e-6)


def test_missing_cells_where_there_were_none_have_no_score() -> None:
    table = Preprocessing((Feature("x", "number"), Feature("job", "category", "baker")))
    assert known_texts(table, "job") == ["", "baker"]
    cells = torch.tensor([[1.0, 1], [torch.nan, 1], [2.0, 0]], dtype=torch.float64)
    network = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 1), torch.nn.Flatten(0))
    scores, _ = export.Scorer(network, table, pixels=False)(cells)
    assert scores.isnan().tolist() == [False, True, True]


def npz(folder: Path, shape: tuple[int, ...], *, pixels: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    rows = rng.normal(size=(60, *shape)) + labels.reshape(-1, *[1] * len(shape))
    np.savez(folder / "data.npz", X=(rows * 40 + 128).clip(0, 255).astype(np.uint8) if pixels else rows, y=labels)
    return {"dataset": "npz", "data-dir": str(folder / "data.npz"), "strategy": "local-sgd", "num-server-rounds": 1}


def scored(run: Run, rows: Any) -> Any:
    """Return a written file's scores of arrays, row by row and together."""
    session = onnxruntime.InferenceSession(run.path / "model.onnx")
    together, _ = session.run(["score", "probability"], {"features": rows})
    single = [session.run(["score"], {"features": rows[place : place + 1]})[0][0] for place in range(3)]
    np.testing.assert_allclose(single, together[:3], atol=1e-5)
    return together


@pytest.mark.parametrize(
    ("model", "shape", "strategy"),
    [
        ("linear", (5,), "fedx2"),
        ("mlp", (5,), "coda"),  # its file has the scalars of a saddle too
        ("table3-cnn", (1, 8, 8), "local-sgd"),
        pytest.param("densenet121", (1, 28, 28), "local-sgd", marks=pytest.mark.slow),
        pytest.param("monai:resnet10", (2, 8, 8), "local-sgd", marks=pytest.mark.slow),
        ("tests.simulations.test_export:column", (2, 4), "local-sgd"),
    ],
)
def test_arrays_and_images(command: Line, tmp_path: Path, model: str, shape: tuple[int, ...], strategy: str) -> None:
    """The project's networks and a user's network; images as bytes."""
    pixels = len(shape) == 3
    run, _ = federate(tmp_path / "a", {**npz(tmp_path, shape, pixels=pixels), "model": model, "strategy": strategy}, 2)
    code, out, _ = command("export", run.path, "--card")
    assert code == 0
    assert "checked: its scores of 200 made-up rows differ from PyTorch's by" in out
    assert (run.path / "model.md").exists()
    with np.load(tmp_path / "data.npz") as arrays:
        rows = arrays["X"] if pixels else arrays["X"].astype(np.float32)
    np.testing.assert_allclose(scored(run, rows), florilegium.load(run.path).decision_function(rows), atol=1e-5)
    told = {one.key: one.value for one in onnx.load(run.path / "model.onnx").metadata_props}
    assert (told["run"], told["strategy"], told["round"], told["positive_labels"]) == ("a", strategy, "1", '["1"]')


def column(shape: tuple[int, ...]) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0] * shape[1], 3), torch.nn.Tanh(), Sum())


class Sum(torch.nn.Module):
    """A network with one score a row, as a column."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.sum(dim=1, keepdim=True)


def test_a_table(command: Line, tmp_path: Path) -> None:
    """Numbers, text and a column that is named like an output; a row with a missing cell has no score."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.normal(50, 9, 80), "sex": rng.choice(["f", "m"], 80), "score": rng.normal(size=80)}
    )
    table.assign(label=table["age"] > 50).to_csv(tmp_path / "table.csv", index=False)
    keys = {"dataset": "csv", "data-dir": f"{tmp_path}/table.csv", "positive-label": "True", "strategy": "local-sgd"}
    run, _ = federate(tmp_path / "a", {**keys, "model": "mlp"}, 2)
    code, out, _ = command("export", run.path, "--out", tmp_path / "new" / "model.onnx")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["age", "sex", "score"]
    session = onnxruntime.InferenceSession(tmp_path / "new" / "model.onnx")
    numbers = {name: table[[name]].to_numpy(copy=True) for name in ("age", "score")}
    inputs = {
        "age": numbers["age"],
        "sex": table[["sex"]].to_numpy(object, copy=True),
        "score (column)": numbers["score"],
    }
    model = florilegium.load(run.path)
    score, probability = session.run(["score", "probability"], inputs)
    np.testing.assert_allclose(score, model.decision_function(table), atol=1e-5)
    np.testing.assert_allclose(probability, model.predict_proba(table)[:, 1], atol=1e-5)
    inputs["sex"][3], inputs["age"][5] = "", np.nan
    assert np.flatnonzero(np.isnan(session.run(["score"], inputs)[0])).tolist() == [3, 5]


def test_what_cannot_be_exported(command: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = federate(tmp_path / "a", {"strategy": "local-sgd", "num-server-rounds": 1}, 2)
    monkeypatch.setattr(export.Scorer, "forward", lambda self, inputs: (self.network(inputs) + 1e-3,) * 2)
    with refuses(ModelError, r"differ from PyTorch's by .*, allowed: a difference of at most 1e-05"):
        export.export_onnx(florilegium.load(run.path))
    assert states(refusal(command, "export", run.path, "--pixels"), "--pixels: got --pixels, allowed: no value")
    monkeypatch.setattr("problems.errors.importable", lambda module: module != "onnxscript")
    assert 'needs onnxscript, not installed here: pip install "florilegium[export]"' in refusal(
        command, "export", run.path
    )


def test_the_server_does_not_know_what_the_sites_arrays_hold(command: Line, tmp_path: Path) -> None:
    keys = npz(tmp_path, (1, 8, 8), pixels=True)
    nodes = [{"data-path": keys.pop("data-dir")}]
    run, _ = federate(tmp_path / "a", {**keys, "partition": "own"}, nodes=nodes)
    assert states(refusal(command, "export", run.path), "--pixels: got nothing, allowed: --pixels or --no-pixels")
    assert command("export", run.path, "--pixels")[0] == 0
    with np.load(nodes[0]["data-path"]) as arrays:
        want = florilegium.load(run.path).decision_function(arrays["X"])
        np.testing.assert_allclose(scored(run, arrays["X"]), want, atol=1e-5)
