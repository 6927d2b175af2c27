"""Table one of all sites equals pandas on the pooled rows."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apps.config import ConfigError, Scalar, parse_run_config
from problems.data.borders import parse_borders
from simulations.python.runs import run

LEVELS = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
CONFIG: dict[str, Any] = {
    "strategy": "describe",
    "dataset": "csv",
    "partition": "own",
    "label-column": "ill",
    "positive-label": "yes",
    "feature-columns": "age,bmi,kids,sex[f|m],ward[a|b|c]",
}


def table(rows: int, seed: int, factor: float = 1.0) -> pd.DataFrame:
    """Return patients of a site, with missing cells."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": np.round(rng.normal(60 + seed, 12, rows)),
            "bmi": rng.lognormal(3.2, 0.2, rows) * factor,
            "kids": rng.poisson(1, rows).astype(float),
            "sex": rng.choice(["f", "m"], rows),
            "ward": rng.choice(["a", "b", "c"], rows, p=[0.6, 0.25, 0.15]),
        }
    )
    frame.loc[rng.random(rows) < 0.12, "bmi"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "ward"] = np.nan
    frame["ill"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-(frame["age"] - 66) / 15)), "yes", "no")
    return frame


def describe(
    folder: Path,
    frames: Sequence[pd.DataFrame],
    config: Mapping[str, Scalar] | None = None,
    nodes: Mapping[str, Scalar] | None = None,
    name: str = "run",
) -> dict[str, Any]:
    """Write a file for each site, describe the files, and return describe.json."""
    folder.mkdir(exist_ok=True)
    for site, frame in enumerate(frames):
        frame.to_csv(folder / f"{site}.csv", index=False)
    settings = [{"data-path": str(folder / f"{site}.csv"), **(nodes or {})} for site in range(len(frames))]
    run({**CONFIG, **(config or {})}, folder / name, node_configs=settings, quiet=True)
    found: dict[str, Any] = json.loads((folder / name / "describe.json").read_text("utf-8"))
    return found


def column(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the facts about a column."""
    entry: dict[str, Any] = next(one for one in found["columns"] if one["column"] == name)
    return entry


OPEN = {"least-cell": 1}


@pytest.fixture(scope="module")
def frames() -> list[pd.DataFrame]:
    """Return the rows of three sites."""
    return [table(400, 0), table(250, 1), table(130, 2)]


@pytest.fixture(scope="module")
def found(frames: list[pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Describe the three sites without a least cell."""
    return describe(tmp_path_factory.mktemp("sites"), frames, nodes=OPEN)


def parts(found: Mapping[str, Any], frames: Sequence[pd.DataFrame], name: str) -> list[tuple[Any, pd.DataFrame]]:
    """Pair the facts about a column, of all sites and of each site, with the rows."""
    entry = column(found, name)
    return list(zip([entry["all"], *entry["by_site"]], [pd.concat(frames), *frames], strict=True))


@pytest.mark.parametrize("name", ["age", "bmi", "kids"])
def test_moments_and_missing_cells_equal_pandas(found: dict[str, Any], frames: list[pd.DataFrame], name: str) -> None:
    for entry, rows in parts(found, frames, name):
        assert entry["cells"] == rows[name].count()
        assert entry["missing"] == rows[name].isna().sum()
        assert entry["mean"] == pytest.approx(rows[name].mean(), rel=1e-12)
        assert entry["deviation"] == pytest.approx(rows[name].std(), rel=1e-12)


@pytest.mark.parametrize("name", ["age", "bmi", "kids"])
def test_quantiles_are_within_the_rank_error(found: dict[str, Any], frames: list[pd.DataFrame], name: str) -> None:
    """A quantile's rank is its level to 1/64, or to ten cells of a small site. Equal cells have a range of ranks."""
    for entry, rows in parts(found, frames, name):
        cells = rows[name].dropna().to_numpy()
        error = max(1 / 64, 10 / len(cells) if len(rows) < 500 else 0)
        for key, level in LEVELS.items():
            spacing = 1.0 if name in ("age", "kids") else 0.0  # within a whole number, a quantile is interpolated
            low, high = (cells < entry[key] - spacing).mean(), (cells <= entry[key] + spacing).mean()
            assert low - error <= level <= high + error, (name, key)


@pytest.mark.parametrize("name", ["sex", "ward"])
def test_categories_equal_pandas(found: dict[str, Any], frames: list[pd.DataFrame], name: str) -> None:
    for entry, rows in parts(found, frames, name):
        counts = rows[name].value_counts()
        assert entry["missing"] == rows[name].isna().sum()
        for level in entry["levels"]:
            assert level["count"] == counts[level["level"]]
            assert level["share"] == pytest.approx(counts[level["level"]] / counts.sum())


def test_outcome_equals_pandas(found: dict[str, Any], frames: list[pd.DataFrame]) -> None:
    for entry, rows in zip([found, *found["sites"]], [pd.concat(frames), *frames], strict=True):
        assert entry["rows"] == len(rows)
        assert entry["positives"] == (rows["ill"] == "yes").sum()
        assert entry["prevalence"] == pytest.approx((rows["ill"] == "yes").mean())


def information(groups: pd.Series, ill: pd.Series) -> float:
    """Compute the information value of groups of rows, independently."""
    counts = pd.crosstab(groups, ill).astype(float)
    totals = counts.sum()
    counts[(counts == 0).any(axis=1)] += 0.5
    shares = counts / totals
    return float(((shares["yes"] - shares["no"]) * np.log(shares["yes"] / shares["no"])).sum())


@pytest.mark.parametrize("name", ["age", "bmi", "kids"])
def test_information_value_of_a_number(found: dict[str, Any], frames: list[pd.DataFrame], name: str) -> None:
    entry, rows = column(found, name), pd.concat(frames)
    borders = [one["low"] for one in entry["bins"] if one.get("low") is not None]
    assert 3 <= len(borders) + 1 <= 10
    groups = pd.cut(rows[name], [-np.inf, *borders, np.inf], right=False).astype(object).fillna("missing").astype(str)
    assert entry["information_value"] == pytest.approx(information(groups, rows["ill"]), rel=1e-12)
    sizes = groups.value_counts()
    assert sorted(sizes) == sorted(one["negatives"] + one["positives"] for one in entry["bins"])


def noise(sizes: Sequence[int]) -> list[pd.DataFrame]:
    """Return sites with columns that are independent of the outcome, one with a rare level."""
    frames = []
    for site, rows in enumerate(sizes):
        rng = np.random.default_rng(site)
        frame = pd.DataFrame(rng.normal(27, 4, (rows, 12)).round(1), columns=[*"abcdefghijkl"])
        frame["ward"] = rng.choice(["a", "b", "c"], rows, p=[0.58, 0.4, 0.02])
        frames.append(frame.assign(ill=rng.choice(["yes", "no"], rows, p=[0.4, 0.6])))
    return frames


def test_hidden_counts_give_noise_no_information(tmp_path: Path) -> None:
    """The groups of rows that sites count once gave such numbers values of 0.1 to 0.6."""
    frames = noise([300, 180, 90])
    rows, keys = pd.concat(frames), {"feature-columns": f"{','.join('abcdefghijkl')},ward[a|b|c]"}
    found = describe(tmp_path, frames, keys)
    errors = []
    for entry in found["columns"][:12]:
        borders = [one["low"] for one in entry["bins"] if one["low"] is not None]
        assert len(entry["bins"]) == min((rows["ill"] == "yes").sum(), (rows["ill"] == "no").sum()) // (4 * 3 * 5)
        groups = pd.cut(rows[entry["column"]], [-np.inf, *borders, np.inf], right=False)
        errors.append(entry["information_value"] - information(groups, rows["ill"]))
    assert abs(np.mean(errors)) < 0.02
    hidden = next(one["bin"] for one in column(found, "ward")["bins"] if "suppressed" in one["bin"]).split(", ")
    wanted = information(rows["ward"].where(~rows["ward"].isin(hidden), "hidden"), rows["ill"])
    assert column(found, "ward")["information_value"] == pytest.approx(wanted, rel=1e-12)
    text = (tmp_path / "run" / "describe.txt").read_text("utf-8")
    assert f"~{found['columns'][0]['information_value']:.3f}" in text
    smaller = describe(tmp_path, noise([60] * 6), keys, name="smaller")
    assert all(entry["information_value"] is None for entry in smaller["columns"][:12])
    needed = 2 * 4 * 6 * 5  # two bins, four times the sum of six least cells
    text = (tmp_path / "smaller" / "describe.txt").read_text("utf-8")
    assert f"No IV of numbers: a class has fewer than {needed} rows" in text


def test_information_value_of_a_category(found: dict[str, Any], frames: list[pd.DataFrame]) -> None:
    rows = pd.concat(frames)
    wanted = information(rows["ward"].fillna("missing"), rows["ill"])
    assert column(found, "ward")["information_value"] == pytest.approx(wanted, rel=1e-12)


def test_standardised_differences(found: dict[str, Any], frames: list[pd.DataFrame]) -> None:
    rows = pd.concat(frames, keys=range(3), names=["site"])["age"]
    for site, difference in enumerate(column(found, "age")["differences"]):
        inside = rows.index.get_level_values("site") == site
        spread = np.sqrt((rows[inside].var() + rows[~inside].var()) / 2)
        assert difference == pytest.approx((rows[inside].mean() - rows[~inside].mean()) / spread, rel=1e-9)


def test_secure_sums_give_the_same_table(found: dict[str, Any], frames: list[pd.DataFrame], tmp_path: Path) -> None:
    """The columns of all sites are equal to the last bit, and the server has none of a single site."""
    summed = describe(tmp_path, frames, {"privacy.secure-sum": True}, OPEN)
    assert summed["sites"] == []
    for mine, theirs in zip(summed["columns"], found["columns"], strict=True):
        for key in ("all", "information_value", "bins"):
            assert mine[key] == theirs[key]
        assert mine["by_site"] == mine["differences"] == []


def test_a_table_that_every_client_can_load(tmp_path: Path) -> None:
    """With a shared data set, clients describe their parts of it."""
    rows = table(600, 3)
    rows.to_csv(tmp_path / "all.csv", index=False)
    keys = {"partition": "iid", "data-dir": str(tmp_path / "all.csv"), "test-fraction": 0.2}
    run({**CONFIG, **keys}, tmp_path / "run", 4, quiet=True)
    found = json.loads((tmp_path / "run" / "describe.json").read_text("utf-8"))
    assert found["rows"] == 480
    assert [site["rows"] for site in found["sites"]] == [120] * 4
    assert 20 < column(found, "bmi")["all"]["missing"] < 100
    assert column(found, "bmi")["all"]["mean"] == pytest.approx(rows["bmi"].mean(), rel=0.05)


def test_warnings_name_units_codes_and_tails(tmp_path: Path) -> None:
    rows = [table(700, 0), table(700, 1), table(700, 2, factor=2.2)]
    rows[1].loc[:20, "age"] = 999
    rows[0].loc[:3, "kids"] = 1e6
    found = describe(tmp_path, rows)
    warned = {one["column"]: {warning["warning"] for warning in one["warnings"]} for one in found["columns"]}
    assert "units" in warned["bmi"]
    assert "sentinel codes" in warned["age"]
    assert "long tail" in warned["kids"]
    assert (tmp_path / "run" / "describe.txt").read_text("utf-8").count("partition 2") == 2
    assert warned["sex"] == set()


def test_learning_keys_have_no_effect() -> None:
    config = parse_run_config({**CONFIG, "num-server-rounds": 7, "local-steps": 3})
    assert "num-server-rounds=7" in config.warning
    assert "local-steps=3" in config.warning


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"dataset": "digits", "partition": "iid", "fraction-train": 0.5}, "describes the rows of all sites"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, Scalar], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_run_config({"strategy": "describe", **keys})


def test_monotone_borders_are_a_key_of_training(found: dict[str, Any], frames: list[pd.DataFrame]) -> None:
    run_config = {**CONFIG, "strategy": "local-sgd", "scale": "bins", "missing": "mean"}
    parse_run_config({**run_config, "borders": found["monotone_borders"]})
    pooled = pd.concat(frames)
    for name, borders in parse_borders(found["monotone_borders"]):
        bins = pd.cut(pooled[name], [-np.inf, *borders, np.inf])  # a bin ends with its upper border, as in training
        groups = pooled["ill"].eq("yes").groupby(bins, observed=True)
        assert (groups.sum() >= 10).all()
        assert groups.mean().is_monotonic_increasing or groups.mean().is_monotonic_decreasing
    assert len(dict(parse_borders(found["monotone_borders"]))["age"]) > 1
