"""Tests of `predict --reasons`: the contributions of a linear model's columns."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from apps.config import Scalar
from tests.battery.federation import Run, federate
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import refusal

COLUMNS = 5
UNSCALED: dict[str, Scalar] = {"model": "linear-no-intercept", "learning-rate": 1e-9}
SCALES = ["bins", "standard", "none", "range", "log", "quantile", "auto"]


def applicants(rows: int, seed: int) -> pd.DataFrame:
    """Return a table with numbers, a text column, truths and missing cells."""
    rng = np.random.default_rng(seed)
    late = rng.random(rows) < 0.4
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 70, rows) + 10 * ~late,
            "income": np.exp(rng.normal(8 - late, 1, rows)).round(2),
            "owner": np.where(rng.random(rows) < 0.5 + 0.2 * ~late, "true", "false"),
            "since": pd.Series(np.datetime64("2020-01-01") + rng.integers(0, 900, rows)).dt.strftime("%Y-%m-%d"),
            "job": rng.choice(["baker", "nurse", "smith"], rows),
            "late": np.where(late, "yes", "no"),
        }
    )
    table.loc[rng.random(rows) < 0.1, "income"] = np.nan
    return table.mask(pd.DataFrame({"job": rng.random(rows) < 0.1}).reindex(columns=table.columns, fill_value=False))


def train(folder: Path, keys: dict[str, Scalar]) -> Run:
    """Return a run on 600 applicants at three sites; the new rows in new.csv also have an unknown job."""
    applicants(600, 0).to_csv(folder / "all.csv", index=False)
    new = applicants(80, 1)
    new.loc[3, "job"] = "poet"
    new.to_csv(folder / "new.csv", index=False)
    config: dict[str, Scalar] = {"dataset": "csv", "data-dir": str(folder / "all.csv"), "label-column": "late"}
    config |= {"positive-label": "yes", "strategy": "local-sgd", "missing": "indicator", "num-server-rounds": 6}
    run, _ = federate(folder / "run", {**config, "local-steps": 10, "learning-rate": 0.1, **keys})
    return run


def products(run: Run, new: pd.DataFrame) -> pd.DataFrame:
    """Return weight * feature of each feature and row, computed from columns.json by its documentation."""
    (weights,) = load_file(run.path / "model.safetensors")["output.weight"].astype(np.float64)
    recipe = json.loads((run.path / "columns.json").read_text("utf-8"))
    parts = {}
    for weight, feature in zip(weights, recipe["outputs"], strict=True):
        cells = new[feature["column"]]
        match feature["kind"]:
            case "category" | "missing":
                parts[feature["name"]] = weight * (
                    cells.isna() if feature["kind"] == "missing" else cells == feature["value"]
                )
                continue
            case "boolean":
                numbers = cells.astype(float)
            case "date":
                numbers = (pd.to_datetime(cells) - pd.Timestamp(0)).dt.days
            case _:
                numbers = cells
        filled = numbers.fillna(feature["fill"])
        if feature["transform"] == "bin":
            low, high = (
                bound if bound is not None else sign * np.inf
                for bound, sign in ((feature["low"], -1), (feature["high"], 1))
            )
            parts[feature["name"]] = weight * ((numbers > low) & (numbers <= high))
            continue
        if feature["transform"] == "log":
            filled = np.sign(filled) * np.log1p(np.abs(filled))
        if feature["transform"] == "quantile":
            knots = np.array(feature["quantiles"])
            levels = np.arange(1, len(knots) + 1) / (len(knots) + 1)
            filled = (np.interp(filled, knots, levels) - np.interp(-filled, -knots[::-1], -levels[::-1])) / 2
        parts[feature["name"]] = weight * (filled - feature["mean"]) / (feature["deviation"] or np.inf)
    return pd.DataFrame(parts)


def column_of(name: str) -> str:
    """Return a feature's column; no column's name is the beginning of another's."""
    return next(column for column in ("age", "income", "owner", "since", "job") if name.startswith(column))


@pytest.mark.parametrize("scale", SCALES)
def test_contributions_equal_products_and_add_up(command: Line, tmp_path: Path, scale: str) -> None:
    run = train(tmp_path, {"scale": scale, **(UNSCALED if scale == "none" else {})})
    new = pd.read_csv(tmp_path / "new.csv")
    code, out, err = command("predict", run.path, tmp_path / "new.csv", "--reasons", COLUMNS)
    assert code == 0
    table = pd.read_csv(io.StringIO(out))
    constant = float(err.rpartition("score = ")[2].partition(" + the contributions of all 5 columns")[0])
    ranked = table[[f"contribution_{rank + 1}" for rank in range(COLUMNS)]].to_numpy()
    np.testing.assert_allclose(constant + ranked.sum(axis=1), table.score, rtol=0, atol=1e-6)
    assert (np.diff(ranked, axis=1) <= 0).all()

    parts = products(run, new)
    by_column = parts.T.groupby(column_of).sum().T
    (weights,) = load_file(run.path / "model.safetensors")["output.weight"].astype(np.float64)
    best = pd.Series(weights, parts.columns).groupby(column_of).min()
    wholly = ["job", *(["age", "income", "owner", "since"] if scale == "bins" else [])]
    expected = by_column - best.reindex(by_column.columns).where(by_column.columns.isin(wholly), 0.0)
    if scale != "bins":  # truths are compared with the better of both
        expected["owner"] = by_column["owner"] - by_column["owner"].min()
    found = {column: np.full(len(new), np.nan) for column in expected}
    for rank in range(COLUMNS):
        for row, reason in enumerate(table[f"reason_{rank + 1}"]):
            found[column_of(reason)][row] = ranked[row, rank]
    np.testing.assert_allclose(pd.DataFrame(found), expected, rtol=0, atol=2e-6)


def test_reasons_name_the_values(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"scale": "bins", "bins": 4})
    new = pd.read_csv(tmp_path / "new.csv")
    names = [feature["name"] for feature in json.loads((run.path / "columns.json").read_text("utf-8"))["outputs"]]
    out = command("predict", run.path, tmp_path / "new.csv", "--reasons", COLUMNS)[1]
    reasons = pd.read_csv(io.StringIO(out)).filter(like="reason_").to_numpy()
    parts = products(run, new) != 0
    for row, row_reasons in enumerate(reasons):
        unknown = {"job=poet"} if new.job[row] == "poet" else set()
        (day,) = (reason for reason in row_reasons if reason.startswith("since"))
        bounds = re.fullmatch(r"since (?:\((\S+), (\S+)]|> (\S+)|<= (\S+))", day)
        assert bounds
        low, high = bounds[1] or bounds[3] or "", bounds[2] or bounds[4] or "9999"
        assert low < new.since[row] <= high
        active = {name for name in names if parts[name][row] and not name.startswith("since")}
        assert set(row_reasons) - {day} == active | unknown
    assert {"income missing", "job missing", "job=poet"} <= set(reasons.ravel())


def test_reasons_of_numbers_have_the_numbers(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"scale": "standard"})
    cells = pd.read_csv(tmp_path / "new.csv").loc[0]
    out = command("predict", run.path, tmp_path / "new.csv", "--reasons", COLUMNS)[1]
    row_reasons = set(pd.read_csv(io.StringIO(out)).filter(like="reason_").to_numpy()[0])
    assert {f"age={cells.age}", f"since={cells.since}", f"owner={cells.owner}".lower()} <= row_reasons


def test_models_without_contributions_are_refused(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"model": "mlp", "num-server-rounds": 1})
    error = refusal(command, "predict", run.path, tmp_path / "new.csv", "--reasons", 2)
    assert states(error, "--reasons: got a run with model 'mlp', allowed: a linear model")
    arrays, _ = federate(tmp_path / "arrays", {"strategy": "local-sgd", "num-server-rounds": 1}, 2)
    np.savez(tmp_path / "new.npz", X=np.zeros((2, 64)))
    assert "a run on arrays" in refusal(command, "predict", arrays.path, tmp_path / "new.npz", "--reasons", 2)


@pytest.mark.parametrize("number", [0, 6])
def test_the_number_of_reasons_is_limited(command: Line, tmp_path: Path, number: int) -> None:
    run = train(tmp_path, {"num-server-rounds": 1})
    error = refusal(command, "predict", run.path, tmp_path / "new.csv", "--reasons", number)
    assert states(error, f"--reasons: got {number}, allowed: 1 to 5, the number of columns")
