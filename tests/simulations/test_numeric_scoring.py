"""The commands on a finished run whose labels are numbers: predict, evaluate, export, card, report and baselines."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import is_regressor
from sklearn.metrics import mean_absolute_error, mean_poisson_deviance, r2_score
from typer.testing import CliRunner

from apps.config import ConfigError, Scalar
from problems.data import DataError
from simulations.__main__ import cli
from simulations.scoring.model import TrainedModel, load
from tests.apps.test_numeric_outcomes import COST, FALLS, stays
from tests.battery.federation import federate
from tests.refusals import refuses


@pytest.fixture(scope="module", params=[COST, FALLS], ids=["squared", "poisson"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    stays(120, 0).to_csv(folder / "all.csv", index=False)
    stays(50, 1).to_csv(folder / "new.csv", index=False)
    config: dict[str, Scalar] = {"partition": "iid", "data-dir": str(folder / "all.csv"), "scale": "standard"}
    federate(folder / "run", request.param | config)
    return folder / "run"


def main(words: list[str]) -> str:
    """Run a command, and return its output."""
    return CliRunner().invoke(cli, words, catch_exceptions=False).output


def expected_scores(model: TrainedModel, table: pd.DataFrame) -> np.ndarray:
    """Return the scores of rows by the weights and the scaling of age, the only feature."""
    bias, weight = (value.detach().numpy().ravel() for value in reversed(list(model.network.module.parameters())))
    assert model.preprocessing is not None
    age = model.preprocessing.outputs[0]
    scores = ((table["age"] - age.mean) / age.deviation).to_numpy() * weight + bias
    return scores + (table["exposure"].to_numpy() if model.preprocessing.offset_column else 0)


def test_predict_writes_means(run: Path, tmp_path: Path) -> None:
    new, out = run.parent / "new.csv", tmp_path / "scores.csv"
    for _ in range(2):  # an earlier output is replaced
        main(["predict", str(run), str(new), "--out", str(out), "--keep", "age"])
    model, table, written = load(run), pd.read_csv(new), pd.read_csv(out)
    assert written.columns.tolist() == ["age", "score", "mean"]
    scores = expected_scores(model, table)
    means = np.exp(scores) if model.config.training.loss == "poisson" else scores
    np.testing.assert_allclose(written["mean"], means, rtol=1e-5)
    np.testing.assert_allclose(model.predict(table), means, rtol=1e-5)
    assert is_regressor(model)
    label = table[model.label_column]
    assert model.score(table, label) == pytest.approx(r2_score(label, means), rel=1e-4)
    with refuses(ConfigError, "predict_proba: got a run with label-type 'number'"):
        model.predict_proba(table)


def test_evaluate_measures_numbers(run: Path) -> None:
    new = run.parent / "new.csv"
    measured = json.loads(main(["evaluate", str(run), str(new), "--json", "--resamples", "50"]))
    model, table = load(run), pd.read_csv(new)
    label, means = table[model.label_column], model.predict(table)
    assert measured["rows"] == 50
    assert measured["positives"] is None
    assert measured["metrics"]["mae"]["value"] == pytest.approx(mean_absolute_error(label, means))
    if model.config.training.loss == "poisson":
        assert measured["metrics"]["deviance"]["value"] == pytest.approx(mean_poisson_deviance(label, means))
    assert "positive" not in main(["evaluate", str(run), str(new)])


def test_export_has_means(run: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime

    main(["export", str(run)])
    session = onnxruntime.InferenceSession(run / "model.onnx")
    assert [output.name for output in session.get_outputs()] == ["score", "mean"]
    table = stays(20, 3)
    fed = {part.name: table[part.name].to_numpy()[:, None] for part in session.get_inputs()}
    np.testing.assert_allclose(session.run(["mean"], fed)[0], load(run).predict(table), rtol=1e-4)


def test_card_and_report_describe_numbers(run: Path) -> None:
    main(["card", str(run)])
    main(["report", str(run)])
    card, page = (run / "card.md").read_text(), (run / "report.html").read_text()
    assert "regression" in card
    assert "of them positive" not in card
    assert f"the mean of column `{load(run).label_column}`" in card
    assert "mean absolute error" in page
    assert "ROC" not in page


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (["predict", "--threshold", "0.5"], "--threshold: got '0.5', allowed: '', since the labels of this run"),
        (["predict", "--keep", "mean"], "--keep: got no column mean"),
    ],
)
def test_options_of_classes_are_refused(run: Path, command: list[str], fields: str) -> None:
    name, *options = command
    with refuses((ConfigError, DataError), fields):
        main([name, str(run), str(run.parent / "new.csv"), *options])


def test_new_rows_need_the_offset(run: Path) -> None:
    model, table = load(run), stays(9, 0)
    if not model.config.data.offset_column:
        model.predict(table.drop(columns="exposure"))
        return
    with refuses(DataError, "table: got no column 'exposure', allowed: the offset-column of the training"):
        model.predict(table.drop(columns="exposure"))
    table.loc[4, "exposure"] = np.nan
    with refuses(DataError, "column 'exposure': got 1 of 9 cells missing, the first in row 5"):
        model.predict(table)


def test_baselines_are_refused(tmp_path: Path) -> None:
    config = ["-c", "strategy='local-sgd' dataset='csv' data-dir='/srv' label-type='number'"]
    with refuses(ConfigError, "--baselines: got a run with label-type"):
        main(["run", "--out", str(tmp_path / "run"), *config, "--baselines"])
