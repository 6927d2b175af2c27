"""Tests of `predict --reasons` and of `scorecard`: contributions and points of a linear model's columns."""

import io
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from apps.config import Scalar
from problems.data.formats.uci import COLUMNS as HEART_COLUMNS
from tests.battery.federation import Run, federate
from tests.programs import Line
from tests.refusals import states
from tests.simulations.fabricated import refusal
from tests.simulations.pages import Page

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


def test_a_code_without_a_feature_is_the_reference_if_it_is_best(command: Line, tmp_path: Path) -> None:
    """The first code of a column of heart-disease has no feature. The file writes codes as 1.0."""
    run, _ = federate(tmp_path / "run", {"dataset": "heart-disease", "strategy": "local-sgd"}, 4)
    rng = np.random.default_rng(0)
    new = pd.DataFrame({name: rng.integers(20, 90, 30) for name in HEART_COLUMNS})
    new["cp"] = np.tile([1.0, 2.0, 3.0, 4.0, 1.0], 6)
    new.assign(restecg=0.0).to_csv(tmp_path / "new.csv", index=False)
    table = pd.read_csv(io.StringIO(command("predict", run.path, tmp_path / "new.csv", "--reasons", 10)[1]))
    reasons = table.filter(like="reason_").to_numpy()
    contributions = table.filter(like="contribution_").to_numpy()
    recipe = json.loads((run.path / "columns.json").read_text("utf-8"))["outputs"]
    weights = {one["name"]: weight for one, weight in zip(recipe, run.model["output.weight"][0].tolist(), strict=True)}
    codes = {1: 0.0, **{code: weights[f"cp={code}"] for code in (2, 3, 4)}}
    for row, code in enumerate(new.cp.astype(int)):
        (index,) = np.flatnonzero(reasons[row] == f"cp={code}")
        assert contributions[row, index] == pytest.approx(codes[code] - min(codes.values()), abs=2e-6)


def test_models_without_contributions_are_refused(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"model": "mlp", "num-server-rounds": 1})
    error = refusal(command, "predict", run.path, tmp_path / "new.csv", "--reasons", 2)
    assert states(error, "--reasons: got a run with model 'mlp', allowed: a linear model")
    (tmp_path / "offset").mkdir()
    offset = train(tmp_path / "offset", {"offset-column": "age", "num-server-rounds": 1})
    for command_and_options in (
        ("predict", offset.path, tmp_path / "new.csv", "--reasons", 2),
        ("scorecard", offset.path),
    ):
        assert "a run with offset-column='age'" in refusal(command, *command_and_options)
    arrays, _ = federate(tmp_path / "arrays", {"strategy": "local-sgd", "num-server-rounds": 1}, 2)
    np.savez(tmp_path / "new.npz", X=np.zeros((2, 64)))
    assert "a run on arrays" in refusal(command, "predict", arrays.path, tmp_path / "new.npz", "--reasons", 2)


@pytest.mark.parametrize("number", [0, 6])
def test_the_number_of_reasons_is_limited(command: Line, tmp_path: Path, number: int) -> None:
    run = train(tmp_path, {"num-server-rounds": 1})
    error = refusal(command, "predict", run.path, tmp_path / "new.csv", "--reasons", number)
    assert states(error, f"--reasons: got {number}, allowed: 1 to 5, the number of columns")


PROBABLE: dict[str, Scalar] = {"validation-fraction": 0.3, "calibration": "platt"}


def look_up(card: pd.DataFrame, new: pd.DataFrame, kind: str) -> np.ndarray:
    """Return the sum of a card's points for each row, found as a person would find them: start, and one value each."""
    total = np.full(len(new), float(card.loc[card.value == "start", kind].iloc[0]))
    for column, values in card[card.value != "start"].groupby("column"):
        cells = new[column]
        points = pd.Series(np.nan, new.index)
        for value in values.itertuples():
            number = getattr(value, kind)
            if value.value == "missing":
                points[cells.isna()] = number
            elif value.value.startswith("each"):
                days = column == "since"
                units = (pd.to_datetime(cells) - pd.Timestamp(0)).dt.days if days else cells
                points[cells.notna()] = number * units
            elif column == "since":  # the bounds of its bins are days
                days = (pd.to_datetime(cells) - pd.Timestamp(0)).dt.days
                points[~(days <= value.low) & ~(days > value.high)] = number
            elif column in ("age", "income") or value.value[0] in "<>(":
                points[cells.notna() & ~(cells * 1.0 <= value.low) & ~(cells * 1.0 > value.high)] = number
            elif value.value == "any other value":
                points[cells.notna() & ~cells.astype(str).isin(values.value)] = number
            else:
                points[cells.astype(str).str.lower() == value.value] = number
        total += points
    return total


@pytest.mark.parametrize(
    ("scale", "keys"),
    [("bins", PROBABLE), ("bins", {}), ("standard", PROBABLE), ("range", {"missing": "mean"}), ("none", UNSCALED)],
)
def test_points_are_scaled_log_odds(command: Line, tmp_path: Path, scale: str, keys: dict[str, Scalar]) -> None:
    run = train(tmp_path, {"scale": scale, "strategy": "fedx2" if scale == "standard" else "local-sgd", **keys})
    options = ("--points-to-double", 40, "--base-points", 500, "--base-odds", 20)
    code, out, err = command("scorecard", run.path, *options)
    assert (code, err) == (0, "")
    bound = float(out.rpartition("at most ")[2].split()[0])
    card = pd.read_csv(run.path / "scorecard.csv", keep_default_na=False, na_values={"low": "", "high": ""})
    numbers = card.value.str.startswith("each") | (
        card.value.eq("missing") & card.column.isin(("age", "income", "since"))
    )
    whole = card[~numbers] if scale != "bins" else card
    np.testing.assert_array_equal(whole.points, whole.exact.round(6).round())

    new = pd.read_csv(tmp_path / "new.csv")
    table = pd.read_csv(io.StringIO(command("predict", run.path, tmp_path / "new.csv", "--points", *options)[1]))
    np.testing.assert_array_equal(table.points, look_up(card, new, "points").round())
    exact = look_up(card, new, "exact")
    bias = load_file(run.path / "model.safetensors").get("output.bias", np.zeros(1))[0]
    mapped = run.result.get("calibration", {"slope": 1.0, "intercept": 0.0})
    logits = mapped["slope"] * (products(run, new).sum(axis=1) + bias) + mapped["intercept"]
    expected = 500 + 40 * (-logits - np.log(20)) / np.log(2)
    np.testing.assert_allclose(exact, expected, rtol=0, atol=1e-5 if scale == "bins" else 1e-3)
    odds = (1 - table.probability) / table.probability
    np.testing.assert_allclose(exact, 500 + 40 * np.log2(odds / 20), rtol=0, atol=1e-3)
    assert 0 < np.abs(table.points - exact).max() <= bound + 0.01


def test_the_page_adds_up(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"scale": "bins", **PROBABLE, "threshold-at": "sensitivity=0.8"})
    assert command("scorecard", run.path, "--out", tmp_path / "card")[0] == 0
    page = Page((tmp_path / "card" / "scorecard.html").read_text("utf-8"))
    assert (page.open, page.loaded) == ([], [])
    example = page.table("a made-up applicant")
    assert sum(int(row["points"]) for row in example[:-1]) == int(example[-1]["points"])
    assert len(example) == COLUMNS + 2
    bands = page.table("score")
    assert len(bands) > 4
    for row in bands:
        odds = 50 * 2 ** ((float(row["score"]) - 600) / 20)
        assert row["probability of 'yes'"] == f"{100 / (1 + odds):.2f} %"
        left, right = map(float, row["odds"].split(" : "))
        assert left / right == pytest.approx(odds, rel=1e-3)
    assert "after calibration" in page.text
    scored = pd.read_csv(
        io.StringIO(command("predict", run.path, tmp_path / "new.csv", "--points", "--threshold", "run")[1])
    )
    last = int(
        re.findall(r"With (\d+) points or fewer 'yes' is predicted: .*, chosen by sensitivity=0.8", page.text)[0]
    )
    clear = (scored.points - last - 0.5).abs() > 5  # rounding may move scores near the threshold to the other side
    assert clear.mean() > 0.5
    np.testing.assert_array_equal(scored.predicted[clear], (scored.points <= last)[clear])
    assert command("scorecard", run.path, "--out", tmp_path / "card")[0] == 0  # replaces its own files
    (tmp_path / "card" / "scorecard.csv").write_text("mine", "utf-8")
    assert "which this command did not write" in refusal(command, "scorecard", run.path, "--out", tmp_path / "card")


@pytest.mark.parametrize(
    ("keys", "options", "expected"),
    [
        ({**PROBABLE, "calibration": "isotonic"}, (), "got calibration 'isotonic', allowed: probabilities whose log"),
        ({"strategy": "fedx2"}, (), "scorecard: got model 'last' of loss"),
        ({"scale": "quantile"}, (), "column 'age', whose feature is not a multiple of the number, allowed: bins"),
        ({"scale": "log"}, (), "column 'age', whose feature is not a multiple"),
        ({"model": "mlp"}, (), "scorecard: got a run with model 'mlp', allowed: a linear model"),
        ({}, ("--points-to-double", 0), "--points-to-double: got 0.0, allowed: a finite number above 0"),
        ({}, ("--base-odds", -1), "--base-odds: got -1.0, allowed: a finite number above 0"),
        ({}, ("--base-points", "nan"), "--base-points: got nan, allowed: a finite number; set"),
    ],
)
def test_cards_without_a_meaning_are_refused(
    command: Line, tmp_path: Path, keys: dict[str, Scalar], options: tuple[object, ...], expected: str
) -> None:
    run = train(tmp_path, {"scale": "standard", "num-server-rounds": 1, **keys})
    assert states(refusal(command, "scorecard", run.path, *options), expected)


def test_a_scale_needs_points(command: Line, tmp_path: Path) -> None:
    run = train(tmp_path, {"num-server-rounds": 1})
    error = refusal(command, "predict", run.path, tmp_path / "new.csv", "--base-odds", 10)
    assert states(error, "--points: got a scale of points without --points")
