"""Tests of `predict`, `evaluate`, `card` and `florilegium.load`: uses of a run's model."""

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import get_scorer

import florilegium
from apps.config import Scalar
from problems.data import DataError, DataSpec, load
from problems.data.disturb import split
from problems.metrics import binary_metrics
from simulations.scoring.card import write_card
from simulations.scoring.rows import score_file
from tests.battery.federation import OF_ROWS, Run, federate, patients
from tests.programs import Line
from tests.refusals import refuses, states
from tests.simulations.fabricated import refusal

TABLE: dict[str, Scalar] = {"dataset": "csv", "label-column": "ill", "positive-label": "yes", "strategy": "local-sgd"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Return a run with a second model, and a file of its test rows."""
    folder = tmp_path_factory.mktemp("digits")
    run, _ = federate(folder / "a", {"strategy": "local-scgdam", "model": "mlp"})
    test = load(DataSpec("digits"), 3).test
    np.savez(folder / "test.npz", X=test.features, y=np.where(test.labels == 1, 8, 3))
    return run, folder / "test.npz"


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Return a run on a table, and the table of its test rows, whose ids begin with zeros."""
    folder = tmp_path_factory.mktemp("hospital")
    for part, seed in (("train", 0), ("test", 1)):
        table = patients(60, seed).drop(columns="name")
        table.insert(0, "id", [f"{row:03}" for row in range(60)])
        table.to_csv(folder / f"{part}.csv", index=False)
    run, _ = federate(folder / "a", {**TABLE, "data-dir": str(folder), "feature-columns": "age,sex,weight"})
    return run, folder / "test.csv"


@pytest.fixture(scope="module")
def tumours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Return a run on a named data set, and its test rows with scikit-learn's column names."""
    folder = tmp_path_factory.mktemp("tumours")
    bunch = load_breast_cancer(as_frame=True)
    diagnosis = bunch.target_names[bunch.target]
    rows = split((diagnosis == "malignant").astype(np.int8), 0.2, 0)[1]
    bunch.data.assign(diagnosis=diagnosis).iloc[rows].to_csv(folder / "test.csv", index=False)
    run, _ = federate(folder / "a", {"strategy": "local-sgd", "dataset": "breast-cancer"}, clients=3)
    return run, folder / "test.csv"


def measured(command: Line, run: Run, new: Path, *options: str) -> dict[str, Any]:
    code, out, err = command("evaluate", run.path, new, "--json", "--resamples", "50", *options)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize(
    ("kind", "model"), [("digits", "last"), ("digits", "inner"), ("hospital", "last"), ("tumours", "last")]
)
def test_evaluate_measures_what_the_run_measured(
    command: Line, request: pytest.FixtureRequest, kind: str, model: str
) -> None:
    run, new = request.getfixturevalue(kind)
    found = measured(command, run, new, "--model", model)
    suffix = "" if model == "last" else f"_{model}"
    names = [*binary_metrics([0, 1], [0, 1]), "accuracy"]
    values = {name: found["metrics"][name]["value"] for name in names}
    assert values == {name: run.result["metrics"][name + suffix] for name in names}
    assert all(one["low"] <= one["value"] <= one["high"] for one in found["metrics"].values())
    assert (found["run"], found["model"]) == ("a", model)
    assert found == measured(command, run, new, "--model", model)
    other = measured(command, run, new, "--model", model, "--seed", "1", "--confidence", "0.5")["metrics"]["auc"]
    assert found["metrics"]["auc"]["low"] < other["low"] < other["high"] < found["metrics"]["auc"]["high"]


@pytest.mark.parametrize("strategy", OF_ROWS)
def test_every_strategy_s_model_scores_as_in_the_run(command: Line, tmp_path: Path, strategy: str) -> None:
    """One strategy runs in float64."""
    spec = DataSpec("digits")
    keys: dict[str, Scalar] = {"strategy": strategy, "num-server-rounds": 1, "model": "auto"}
    if strategy == "composite":
        spec = DataSpec("synthetic-sparse-logistic", synthetic_samples=100)
        keys |= {"dataset": spec.dataset, "synthetic.samples": 100}
    run, _ = federate(tmp_path / "a", keys, clients=5)
    test, (positive, *_), (negative, *_) = (
        load(spec, 5).test,
        *(run.result["samples"][f"{sign}_labels"] for sign in ("positive", "negative")),
    )
    np.savez(tmp_path / "test.npz", X=test.features, y=np.where(test.labels == 1, positive, negative))
    found = measured(command, run, tmp_path / "test.npz")
    assert found["metrics"]["auc"]["value"] == run.result["metrics"]["auc"]


def test_predict_keeps_rows_and_ids(command: Line, hospital: tuple[Run, Path], tmp_path: Path) -> None:
    run, new = hospital
    code, out, err = command("predict", run.path, new, "--keep", "id, sex")
    scores = pd.read_csv(io.StringIO(out), dtype={"id": str})
    assert (code, list(scores)) == (0, ["id", "sex", "score", "probability"])
    assert err == f"{new}: probability of the positive label 'yes'\n"
    assert scores["id"].tolist() == [f"{row:03}" for row in range(60)]
    np.testing.assert_allclose(scores["probability"], 1 / (1 + np.exp(-scores["score"])), rtol=1e-6)
    # Another order of rows and columns, another file format, and no labels.
    shuffled = pd.read_csv(new, dtype={"id": str}).sample(frac=1, random_state=0)
    shuffled[["weight", "sex", "id", "age"]].to_parquet(tmp_path / "new.parquet")
    code, out, err = command(
        *("predict", run.path, tmp_path / "new.parquet", "--keep", "id", "--out", tmp_path / "new" / "scores.csv.gz")
    )
    assert (code, err) == (0, "")
    assert out.endswith("scores.csv.gz: 60 scores by model 'last' of run a, probability of the positive label 'yes'\n")
    again = pd.read_csv(tmp_path / "new" / "scores.csv.gz", dtype={"id": str})
    assert again["id"].tolist() == shuffled["id"].tolist()
    merged = scores.merge(again, on="id")
    np.testing.assert_allclose(merged["score_x"], merged["score_y"], rtol=1e-5, atol=1e-6)


def test_images(command: Line, tmp_path: Path) -> None:
    """Class folders, a plain folder and a single file give the scores of the same images as arrays."""
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "train" / label).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 255, (8, 8)).astype(np.uint8) // (2 if label == "cat" else 1)
            Image.fromarray(pixels).save(tmp_path / "train" / label / f"{number}.png")
    keys = {"dataset": "image-folder", "data-dir": str(tmp_path), "positive-label": "dog", "model": "table3-cnn"}
    run, _ = federate(tmp_path / "a", {**keys, "strategy": "local-sgd", "num-server-rounds": 1}, 2)
    assert measured(command, run, tmp_path)["positives"] == 20
    model = florilegium.load(run.path)
    plain = tmp_path / "train" / "dog"
    scores = pd.read_csv(io.StringIO(command("predict", run.path, plain)[1]))
    assert scores["file"].tolist() == sorted(f"{number}.png" for number in range(20))
    pixels = np.stack([np.asarray(Image.open(plain / name))[None] for name in scores["file"]])
    np.testing.assert_allclose(scores["score"], model.decision_function(pixels), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model.decision_function(pixels), model.decision_function(pixels / np.float32(255)))
    one = pd.read_csv(io.StringIO(command("predict", run.path, plain / "7.png")[1]))
    np.testing.assert_allclose(one["score"], scores.set_index("file")["score"]["7.png"], rtol=1e-5, atol=1e-6)
    with refuses(DataError, r"pixels: got int64 outside \[0, 1\], allowed: bytes"):
        model.decision_function(pixels.astype(int))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "colour.png")
    told = refusal(command, "predict", run.path, tmp_path / "colour.png")
    assert states(told, "got coloured images, allowed: grey images, as in training")


def test_scikit_learn_s_conventions(digits: tuple[Run, Path], hospital: tuple[Run, Path]) -> None:
    run, new = digits
    with np.load(new) as arrays:
        rows, labels = arrays["X"], (arrays["y"] == 8).astype(int)
    model = florilegium.load(run.path)
    proba = model.predict_proba(rows)
    assert model.classes_.tolist() == [0, 1]
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(rows), model.decision_function(rows) >= 0)
    assert model.score(rows, labels) == run.result["metrics"]["accuracy"]
    assert get_scorer("roc_auc")(model, rows, labels) == pytest.approx(run.result["metrics"]["auc"], abs=1e-12)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(rows), proba)
    assert florilegium.load(hospital[0].path).feature_names_in_.tolist() == ["age", "sex", "weight"]
    with pytest.raises(TypeError, match="TrainedModel is already fitted"):
        model.fit(rows, labels)


def test_the_best_model_is_taken_where_there_is_one(tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "a", {"strategy": "local-sgd", "num-server-rounds": 2}, 2)
    (run.path / "model_best.safetensors").write_bytes((run.path / "model.safetensors").read_bytes())
    selected, threshold = {"round": 1, "metric": "auc", "value": 0.5}, {"score": -0.25, "at": "sensitivity=0.9"}
    figures = {"rows": 9, "positives": 2, "auc": [0.7, 0.6, 0.8], "reliability": []}
    sites = [{"partition": 1, **figures, "confusion": {"true_positives": 2, "false_negatives": 0}}]
    result = {**run.result, "selected": selected, "threshold": threshold, "sites": sites, "all": figures}
    (run.path / "result.json").write_text(json.dumps(result), "utf-8")
    model = florilegium.load(run.path)
    assert (model.chosen, model.server_round, model.threshold) == ("best", 1, -0.25)
    rows = np.random.default_rng(0).random((50, 64), np.float32)
    np.testing.assert_array_equal(model.predict(rows), model.decision_function(rows) >= -0.25)
    text = write_card(model)
    assert "| partition 1 | 9 | 2 | 0.7000 (0.6000 to 0.8000) | true positives 2, false negatives 0 |" in text
    assert "Scores from -0.25 on count as positive, chosen by `sensitivity=0.9` on validation rows." in text
    last = florilegium.load(run.path, "last")
    assert (last.chosen, last.server_round, last.threshold) == ("last", 2, 0.0)
    assert "| partition 1 | 9 |" not in write_card(last)


def test_sites_files_and_the_reference(command: Line, tmp_path: Path) -> None:
    """Sites with their own files, tested on the server's file, and a run on the pooled data."""
    for name, seed in (("a", 0), ("b", 1), ("test", 2)):
        patients(60, seed).drop(columns="name").to_csv(tmp_path / f"{name}.csv", index=False)
    keys = {**TABLE, "partition": "own", "feature-columns": "age,sex[f|m],weight", "data-dir": f"{tmp_path}/test.csv"}
    run, _ = federate(tmp_path / "run", keys, nodes=[{"data-path": f"{tmp_path}/{site}.csv"} for site in "ab"])
    found = measured(command, run, tmp_path / "test.csv")["metrics"]
    assert found["auc"]["value"] == run.result["metrics"]["auc"]
    config = 'dataset="digits" strategy="fedx1" model="linear" num-server-rounds=1 local-steps=2 pictures=false'
    command("centralized", "--clients", 2, "-c", config, "--out", tmp_path / "reference", "--quiet")
    reference = florilegium.load(tmp_path / "reference")
    test = load(DataSpec("digits"), 2).test
    assert (
        binary_metrics(test.labels, reference.decision_function(test.features))["auc"]
        == reference.record.metrics["auc"]
    )


def drop(name: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda table: table.drop(columns=name)


@pytest.mark.parametrize(
    ("words", "change", "told"),
    [
        (["predict"], drop("sex"), "table: got no column 'sex', allowed: each column once"),
        (["predict"], lambda table: table.assign(age="old"), "column 'age': got 60 of 60 cells that are text"),
        (["predict"], lambda table: table.assign(age=np.nan), "column 'age': got 60 of 60 cells missing"),
        (
            ["predict", "--keep", "name"],
            pd.DataFrame.copy,
            "--keep: got no column name, allowed: columns of new.csv: id",
        ),
        (["evaluate"], drop("ill"), "got rows without labels, allowed: column 'ill', since metrics need labels"),
        (
            ["evaluate"],
            lambda table: table.assign(ill="ja"),
            "got 'ja', which did not occur in training, allowed: negative: no",
        ),
        (["evaluate"], lambda table: table.assign(ill="no"), "ranking metrics need both classes, got 0 positives"),
        (
            ["predict", "--model", "outer"],
            pd.DataFrame.copy,
            "--model: got 'outer', allowed: a model of this run: last",
        ),
    ],
)
def test_wrong_rows(
    command: Line,
    hospital: tuple[Run, Path],
    tmp_path: Path,
    words: list[str],
    change: Callable[[pd.DataFrame], pd.DataFrame],
    told: str,
) -> None:
    run, new = hospital
    change(pd.read_csv(new)).to_csv(tmp_path / "new.csv", index=False)
    assert states(refusal(command, words[0], run.path, tmp_path / "new.csv", *words[1:]), told)


def test_wrong_runs_and_kinds_of_rows(
    command: Line, digits: tuple[Run, Path], hospital: tuple[Run, Path], tmp_path: Path
) -> None:
    for run, new, told in (
        (digits[0].path, hospital[1], "got a file of another kind, allowed: a file .npz"),
        (hospital[0].path, digits[1], "got a file of another kind, allowed: a file .csv"),
        (digits[0].path, tmp_path / "none.npz", "got no such file, allowed: an existing file"),
        (tmp_path, digits[1], "got no run (there is no config.toml)"),
    ):
        assert states(refusal(command, "predict", run, new), told)
    with refuses(DataError, r"samples: got shape \(2, 63\) of float64, allowed: numbers of shape \(n, 64\)"):
        florilegium.load(digits[0].path).predict(np.zeros((2, 63)))
    for name, config, told in (
        ("vertical", {"strategy": "vfb2-sgd"}, "whose parties each have a part of the model"),
        (
            "problem",
            {"strategy": "fedsgda-mb", "dataset": "synthetic-pl"},
            "a run of the minimax problem 'synthetic-pl'",
        ),
    ):
        other, _ = federate(tmp_path / name, {**config, "num-server-rounds": 1})
        assert states(refusal(command, "predict", other.path, digits[1]), told)
    (tmp_path / "problem" / "result.json").unlink()
    assert states(
        refusal(command, "card", tmp_path / "problem"), "got a run that is unfinished, allowed: a finished run"
    )


def test_the_card_tells_what_the_run_directory_knows(command: Line, hospital: tuple[Run, Path], tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"privacy.secure-sum": True, "privacy.epsilon": 20.0, "label-noise": 0.1}
    data: dict[str, Scalar] = {"data-dir": str(hospital[1].parent), "feature-columns": "age,sex,weight"}
    run, _ = federate(tmp_path / "a|b", {**TABLE, **data, **keys})
    code, out, err = command("card", run.path, "--out", tmp_path / "card.md")
    text = (tmp_path / "card.md").read_text("utf-8")
    assert (code, out.strip(), err) == (0, str(tmp_path / "card.md"), "")
    spent = run.lines[-1]["epsilon"]
    for told in (
        "# Model Card for a|b",
        "larger for column `ill` `yes` than for `no`",
        "the 3 columns `age`, `sex`, `weight`",
        "`last`, of round 3 of 3",
        "**Secure sums:** yes",
        f"epsilon {spent:.4g} spent of 20, delta 1e-05",
        "`label-noise = 0.1`",
        f"| `auc` | {run.result['metrics']['auc']:.4f} |",
        f"flwr {run.result['versions']['flwr']}",
        *(
            f"| partition {one['partition']} | {one['rows']} | {one['positives']} |"
            for one in run.result["training_rows"]
        ),
    ):
        assert told in text
    assert str(hospital[1].parent) not in text


def test_a_row_s_score_does_not_depend_on_the_others(tmp_path: Path) -> None:
    """pandas reads a column whose cells all look like numbers, or truths, as such."""
    rng = np.random.default_rng(0)
    choices = {"ward": ["007", "012", "A1"], "smoker": ["true", "false", "unknown"]}
    table = pd.DataFrame({name: rng.choice(values, 60) for name, values in choices.items()})
    table.assign(label=rng.integers(0, 2, 60)).to_csv(tmp_path / "all.csv", index=False)
    config = {"dataset": "csv", "data-dir": str(tmp_path / "all.csv"), "strategy": "local-sgd", "num-server-rounds": 2}
    run, _ = federate(tmp_path / "run", config, clients=2)
    model = florilegium.load(run.path)
    some = table[(table.ward != "A1") & (table.smoker != "unknown")].head(5)
    some.to_csv(tmp_path / "some.csv", index=False)
    together, alone = (score_file(model, tmp_path / f"{name}.csv").score.to_numpy() for name in ("all", "some"))
    np.testing.assert_array_equal(alone, together[some.index])
