"""Exact regression equals statsmodels on the pooled rows; columns without an estimate are named."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from statsmodels.stats.meta_analysis import combine_effects

from apps.config import ConfigError, Scalar, parse_run_config
from apps.server_app import RunFailedError
from methods.newton import move
from methods.newton_records import NewtonSettings, NewtonState
from methods.newton_table import between_sites
from methods.newton_terms import Terms
from methods.server import Plan
from payloads.limbs import join, split
from payloads.settings import TrainingSettings
from problems.data import load
from simulations.results.compare import Comparison
from simulations.results.report import as_html
from tests.battery.engines import Engine
from tests.battery.federation import Run, federate
from tests.programs import REAL, needs_real
from tests.refusals import refuses

RUN: dict[str, Scalar] = {
    "strategy": "newton",
    "dataset": "csv",
    "partition": "own",
    "label-column": "died",
    "missing": "mean",
    "num-server-rounds": 25,
}
ERRORS = {"std_error_model": "nonrobust", "std_error_robust": "HC0", "std_error_clustered": "cluster"}


def tables(folder: Path, sites: int = 4, rows: int = 120) -> list[pd.DataFrame]:
    """Write a table for each site, and a test file; return the tables."""
    frames = []
    for site in range(sites):
        rng = np.random.default_rng(site)
        age, dose = rng.normal(60 + 2 * site, 10, rows), rng.exponential(3, rows)
        smoker = rng.choice(["never", "now", "past"], rows, p=[0.5, 0.3, 0.2])
        score = -6.1 + 0.09 * age + (0.02 + 0.08 * site) * dose + 0.8 * (smoker == "now") + 0.3 * (site - 1)
        died = (rng.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
        age[rng.random(rows) < 0.1] = np.nan
        frames.append(pd.DataFrame({"age": age, "smoker": smoker, "dose": dose, "died": died}))
        frames[-1].to_csv(folder / f"{site}.csv", index=False)
    frames[0].to_csv(folder / "test.csv", index=False)
    return frames


def run(
    folder: Path, name: str, frames: list[pd.DataFrame], node: Mapping[str, Scalar] | None = None, **keys: Scalar
) -> tuple[Run, dict[str, Any]]:
    """Run a regression on the sites' tables, with further keys of the node configs; return the run and its table."""
    flat = {**RUN, "data-dir": str(folder / "test.csv"), "feature-columns": "age,smoker[never|now|past],dose"}
    nodes = [{"data-path": str(folder / f"{site}.csv"), **(node or {})} for site in range(len(frames))]
    done, _ = federate(
        folder / name, {**flat, **{key.replace("_", "-"): value for key, value in keys.items()}}, nodes=nodes
    )
    return done, json.loads((done.path / "coefficients.json").read_text("utf-8"))


def pooled(frames: list[pd.DataFrame]) -> tuple[pd.DataFrame, pd.Series, np.ndarray]:
    """Return the design with filled cells and indicators, the outcomes, and each row's site."""
    rows = pd.concat(frames, ignore_index=True)
    design = pd.DataFrame({"intercept": 1.0, "age": rows.age.fillna(rows.age.mean())})
    for level in ("now", "past"):
        design[f"smoker={level}"] = (rows.smoker == level).astype(float)
    design["dose"] = rows.dose
    return design, rows.died, np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])


def column(result: Mapping[str, Any], name: str) -> np.ndarray:
    return np.array([row[name] for row in result["table"]], dtype=np.float64)


def check(
    result: Mapping[str, Any],
    design: pd.DataFrame,
    labels: Any,
    sites: np.ndarray,
    keep: int | None = None,
    family: Any = None,
    offset: Any = None,
) -> None:
    """Compare a table with statsmodels; the first ``keep`` columns of the design are in the table."""
    model = sm.GLM(labels, design, family=family or sm.families.Binomial(), offset=offset)
    for name, kind in ERRORS.items():
        options = {"cov_kwds": {"groups": sites}} if kind == "cluster" else {}
        fit = model.fit(maxiter=100, tol=1e-15, cov_type=kind, **options)
        np.testing.assert_allclose(column(result, name), fit.bse.to_numpy()[:keep], rtol=1e-8)
    fit = model.fit(maxiter=100, tol=1e-15)
    assert [row["name"] for row in result["table"]] == list(design.columns)[:keep]
    np.testing.assert_allclose(column(result, "estimate"), fit.params.to_numpy()[:keep], rtol=1e-8)
    np.testing.assert_allclose(column(result, "p"), fit.pvalues.to_numpy()[:keep], rtol=1e-6, atol=1e-12)
    limits = np.column_stack([column(result, "low"), column(result, "high")])
    np.testing.assert_allclose(limits, fit.conf_int().to_numpy()[:keep], rtol=1e-7, atol=1e-9)
    for name, value in (("log_likelihood", fit.llf), ("deviance", fit.deviance), ("aic", fit.aic)):
        assert result[name] == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("scale", ["standard", "none"])
def test_the_table_is_that_of_the_pooled_rows(scale: str, tmp_path: Path) -> None:
    frames = tables(tmp_path)
    done, result = run(tmp_path, "run", frames, scale=scale)
    check(result, *pooled(frames))
    assert len(done.lines) - 1 <= 8
    assert result["references"] == {"smoker": "smoker=never"}
    assert done.result["coefficients"] == result
    table = pd.read_csv(done.path / "coefficients.csv")
    np.testing.assert_allclose(table["ratio"].to_numpy()[1:], np.exp(column(result, "estimate")[1:]))


def test_a_missing_category_is_the_reference(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    for site, frame in enumerate(frames):
        frame.loc[frame.index % 5 == 0, "smoker"] = None
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    _, result = run(tmp_path, "run", frames)
    design, labels, sites = pooled(frames)
    never = (pd.concat(frames, ignore_index=True).smoker == "never").astype(float)
    design.insert(2, "smoker=never", never)
    check(result, design, labels, sites)
    assert result["references"] == {"smoker": "smoker of no listed category"}


def test_secure_sums_have_the_same_bytes(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    plain, _ = run(tmp_path, "plain", frames)
    masked, _ = run(tmp_path, "masked", frames, **{"privacy.secure-sum": True})
    for name in ("coefficients.csv", "model.safetensors"):
        assert (plain.path / name).read_bytes() == (masked.path / name).read_bytes()


def test_site_effects_equal_an_indicator_of_each_site(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    silent = frames[0].assign(died=0)  # a site without events contributes nothing
    silent.to_csv(tmp_path / "4.csv", index=False)
    _, result = run(tmp_path, "run", [*frames, silent], **{"newton.site-effects": True, "missing": "mean"})
    design, labels, sites = pooled([*frames, silent])
    for site in range(4):
        design[f"site {site}"] = (sites == site).astype(float)
    kept = sites < 4
    check(result, design[kept].drop(columns="intercept"), labels[kept], sites[kept], keep=4)
    assert (result["rows"], result["sites"], result["parameters"]) == (480, 4, 8)


def test_the_meta_analysis_is_that_of_the_sites_own_fits(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    done, result = run(tmp_path, "run", frames)
    page = as_html(Comparison.of([done.path]))
    assert "coefficients of the logistic regression on 480 rows at 4 sites" in page
    assert "meta-analysis of the estimates of 4 sites" in page
    design, labels, sites = pooled(frames)
    fits = [
        sm.GLM(labels[sites == site], design[sites == site], family=sm.families.Binomial()).fit(tol=1e-15, maxiter=100)
        for site in range(4)
    ]
    assert result["sites_fitted"] == 4
    assert max(row["meta_analysis"]["between_sites"] for row in result["table"][1:]) > 0
    for index, row in enumerate(result["table"][1:], start=1):
        effects = [fit.params.iloc[index] for fit in fits], [fit.bse.iloc[index] ** 2 for fit in fits]
        combined = combine_effects(*map(np.array, effects), method_re="dl")
        found = row["meta_analysis"]
        fixed, random = [
            [combined.mean_effect_fe, combined.sd_eff_w_fe],
            [combined.mean_effect_re, combined.sd_eff_w_re],
        ]
        expected = [*fixed, *(random if combined.tau2 > 0 else fixed)]  # statsmodels keeps a variance below 0
        names = ("fixed", "fixed_std_error", "random", "random_std_error")
        np.testing.assert_allclose([found[name] for name in names], expected, rtol=1e-7)
        assert found["between_sites"] == pytest.approx(max(combined.tau2, 0) ** 0.5, rel=1e-6, abs=1e-9)


def test_ridge_is_the_maximum_of_the_penalised_likelihood(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    _, result = run(tmp_path, "run", frames, scale="none", **{"newton.ridge": 2.5})
    design, labels, _ = pooled(frames)
    rows = pd.concat(frames, ignore_index=True)
    design.insert(2, "smoker=never", (rows.smoker == "never").astype(float))
    point = column(result, "estimate")
    assert [row["name"] for row in result["table"]] == list(design.columns)
    score = design.T @ (labels - 1 / (1 + np.exp(-design @ point)))
    np.testing.assert_allclose(score, 2.5 * np.r_[0, point[1:]], atol=1e-6)


def test_columns_without_an_estimate_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    frames = [frame.assign(twice=2 * frame.dose + 1, same=3.0) for frame in tables(tmp_path)]
    for site, frame in enumerate(frames):
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    frames[0].to_csv(tmp_path / "test.csv", index=False)
    columns = "age,smoker[never|now|past|often],dose,twice,same"
    _, result = run(tmp_path, "run", frames, **{"feature-columns": columns})
    assert result["left_out"] == {"twice": "a combination of 'dose'", "same": "constant"}
    check(result, *pooled(frames))


def test_a_column_that_separates_ends_the_run(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    for site, frame in enumerate(frames):
        frame["smoker"] = np.where((frame.smoker == "past") & (frame.died == 1), "now", frame.smoker)
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    with pytest.raises(RunFailedError) as failure:
        run(tmp_path, "run", frames)
    assert "column 'smoker=past'" in str(failure.value)
    assert "grows without bound" in str(failure.value)


def test_settings_without_a_unit_or_a_linear_model_are_refused() -> None:
    with refuses(ConfigError, "scale: got 'quantile', allowed: 'standard' or 'none'"):
        parse_run_config({**RUN, "scale": "quantile"})
    with refuses(ConfigError, "model: got 'mlp', allowed: 'linear' or 'linear-no-intercept'"):
        parse_run_config({**RUN, "model": "mlp"})
    config = parse_run_config(RUN)
    assert (config.run.model, config.data.scale, config.training.dtype) == ("linear", "standard", "float64")


def test_sums_of_integers_are_exact() -> None:
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(50, 30)) * 10.0 ** rng.integers(-9, 15, size=(50, 30))
    exact = [
        float(sum(int(value * 2**84) if value == 0 else _fixed(value) for value in row)) / 2**84 for row in terms.T
    ]
    assert join(sum(split(row) for row in terms)).tolist() == exact
    with pytest.raises(OverflowError):
        split(np.array([1.0, np.nan]))


def _fixed(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return round(numerator * 2**84 / denominator) if denominator > 2**84 else numerator * 2**84 // denominator


def test_the_variance_between_sites_of_equal_estimates_is_zero() -> None:
    weights = np.array([2.0, 3.0])
    sums = np.array([weights, weights * 0.5, weights * 0.25, weights**2]).sum(axis=1)[:, None]
    fixed, spread, between = between_sites(sums, 2)
    assert (fixed.tolist(), spread.tolist(), between.tolist()) == ([0.5], [0.0], [0.0])


@needs_real
def test_121_hospitals_equal_statsmodels(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"strategy": "newton", "dataset": "gusto", "data-dir": str((REAL / "gusto").resolve())}
    keys |= {"partition": "natural", "num-server-rounds": 25}
    done, _ = federate(tmp_path / "run", keys, clients=121)
    result = done.result["coefficients"]
    data = load(parse_run_config(keys).data, 121)
    assert data.columns is not None
    spread, centre = (np.array([getattr(f, name) for f in data.columns.outputs]) for name in ("deviation", "mean"))
    rows = pd.DataFrame(data.train.features * spread + centre, columns=data.columns.names)
    rows.insert(0, "intercept", 1.0)
    sites = np.repeat(np.arange(121), [len(data.client(site)) for site in range(121)])
    check(result, rows[[row["name"] for row in result["table"]]], data.train.labels, sites)
    assert len(done.lines) - 1 <= 8
    assert sorted(result["left_out"]) == ["KILLIP=four", "MILOC=Anterior"]


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_numbers_with_offsets_equal_statsmodels(loss: str, tmp_path: Path) -> None:
    frames = tables(tmp_path)
    rng = np.random.default_rng(9)
    for site, frame in enumerate(frames):
        frame["exposure"] = rng.uniform(-1, 2, len(frame))
        mean = 0.02 * frame.age.fillna(60) + 0.05 * frame.dose + frame.exposure + 0.1 * site
        frame["died"] = rng.poisson(np.exp(mean)) if loss == "poisson" else 1000 * mean + rng.normal(0, 400, len(frame))
        frame.to_csv(tmp_path / f"{site}.csv", index=False)
    frames[0].to_csv(tmp_path / "test.csv", index=False)
    keys: dict[str, Any] = {"label-type": "number", "offset-column": "exposure", "loss": loss}
    done, result = run(tmp_path, "run", frames, **keys)
    family = sm.families.Poisson() if loss == "poisson" else sm.families.Gaussian()
    design, labels, sites = pooled(frames)
    offset = pd.concat(frames, ignore_index=True).exposure
    check(result, design, labels, sites, family=family, offset=offset)
    assert len(done.lines) - 1 <= 8
    masked, _ = run(tmp_path, "masked", frames, **keys, **{"privacy.secure-sum": True})
    assert (masked.path / "coefficients.csv").read_bytes() == (done.path / "coefficients.csv").read_bytes()


def test_every_engine_has_the_same_table(engine: Engine, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"strategy": "newton", "dataset": "heart-disease", "partition": "natural"}
    config |= {"num-server-rounds": 25, "newton.site-effects": True}
    expected, _ = federate(tmp_path / "first" / "run", config, clients=4)
    other = engine.run(tmp_path / "second" / "run", config, 4)
    for name in ("coefficients.csv", "coefficients.json", "model.safetensors"):
        assert (other.path / name).read_bytes() == (expected.path / name).read_bytes()


def test_a_step_that_raises_the_deviance_is_halved() -> None:
    terms = Terms(("a", "intercept"), (), True, False, np.zeros(2))
    settings = NewtonSettings()
    plan: Any = Plan(3, TrainingSettings(), settings, "cross-entropy", np.array([[5, 5]]))
    state = NewtonState(
        free=np.ones(2, bool),
        scale=np.ones(2),
        point=np.zeros(2),
        step=np.array([4.0, 0.0]),
        objective=np.array([10.0]),
        flat=np.array([0]),
        converged=np.array([0]),
    )
    sums = {"failed": [0], "rows": [10], "deviance": [11.0], "score": np.ones(2), "information": np.array([1.0, 0, 1])}
    halved = move(state.point, terms, state, sums, plan)
    assert (halved.step.tolist(), halved.point.tolist()) == ([2.0, 0.0], [0.0, 0.0])
    assert move(state.point, terms, state, {**sums, "failed": [1], "deviance": [0.0]}, plan).step.tolist() == [2.0, 0.0]
    accepted = move(state.point, terms, state, {**sums, "deviance": [9.0]}, plan)
    assert (accepted.step.tolist(), accepted.point.tolist()) == ([1.0, 1.0], [4.0, 0.0])
