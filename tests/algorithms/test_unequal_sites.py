"""Federations of unequal sites, two of one class, with full batches and one local step, follow pooled methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from apps.config import Scalar
from methods.scgdam import SCGDAMDown
from methods.sgdam import SGDAMDown
from payloads.handshake import SiteReport
from strategies.rounds.handshake import Roster
from tests.algorithms.watched import EXACT, Watched, rows_of
from tests.battery.federation import save_npz
from tests.reference import minimax, scgdam

# rows of each site with its share of positives; all sizes divide the largest
GIVEN = "24:0.125,6:1,4:0,8:0.5"
LABELS = np.repeat([1, 0], [3 + 6 + 4, 21 + 4 + 4])
STEPS: dict[str, Scalar] = {"local-steps": 1, "batch-size": 0}
STAGES: dict[str, Scalar] = {"coda.stage-rounds": 2, "coda.proximal": 0.3}
CASES: dict[str, dict[str, Scalar]] = {
    "coda": STAGES,
    "codasca": {**STAGES, "server-learning-rate": 1.3, "model": "mlp"},
    **{f"fedsgda-{name}": {"fedsgda.rho": 0.2, "fedsgda.period": 3} for name in ("mb", "storm", "spider", "svrg")},
    "local-sgd": {"model": "mlp"},
    "scaffold": {"server-learning-rate": 1.3},
    "fedprox": {},
    "local-sgdm": {},
    "local-sgdm-rl": {},
    "composite": {"composite.weight": 0.02, "server-learning-rate": 1.3},
    "fedcanon": {"composite.weight": 0.02, "server-learning-rate": 1.3},
    "fedda": {"composite.weight": 0.02},
    "fast-fedda": {"composite.weight": 0.02},
}
# the first step of their clients uses a separate momentum
LATER: dict[str, dict[str, Scalar]] = {
    "local-sgdam": {"sgdam.beta-x": 1.1},
    "local-scgdam": {"scgdam.beta-x": 1.1, "scgdam.rho": 0.0},
}
WORDS = "examples", "equal"


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    return {**rows_of(LABELS.tolist(), tmp_path / "data.npz"), "partition": "given", "partition-rows": GIVEN, **STEPS}


def pooled(one: Watched, word: str) -> tuple[list[minimax.Array], list[minimax.Array]]:
    """Return all rows as one site's: once each, or for equal sites, repeated to equal numbers."""
    repeats = [1] * 4 if word == "examples" else [24 // size for size in one.sizes]
    features, labels = (
        [np.concatenate([np.repeat(part, times, axis=0) for part, times in zip(parts, repeats, strict=True)])]
        for parts in one.shares
    )
    return features, labels


# With "examples" the union; with "equal" the union of equally many rows of each site. The ratio loss weights classes by
# the counts of all samples in both cases.
@pytest.mark.parametrize(
    ("name", "word"), [(n, w) for n in CASES for w in WORDS if (n, w) != ("local-sgdm-rl", "equal")]
)
def test_they_follow_their_union(name: str, word: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, **CASES[name], "strategy": name, "client-weights": word})
    assert [np.bincount(labels, minlength=2).tolist() for labels in one.shares[1]] == [[21, 3], [0, 6], [4, 0], [4, 4]]
    ((features,), (labels,)) = pooled(one, word)
    rows = {**save_npz(tmp_path / "pooled.npz", features, labels), "partition-rows": ""}
    other = Watched(tmp_path, {**one.flat, **rows}, clients=1)
    for mine, theirs in zip(one.models, other.models, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.01


@pytest.mark.parametrize("word", WORDS)
def test_momentum_follows_its_union_from_the_second_round_on(
    word: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Watched(tmp_path, {**data, **LATER["local-sgdam"], "strategy": "local-sgdam", "client-weights": word})
    features, labels = pooled(one, word)
    problem, s = minimax.SaddleAUC(features, labels, float(labels[0].mean()), score=one.score), one.settings
    for r in range(2, one.rounds):
        start, steps = one.told(r, SGDAMDown).momentum, (s.eta, s.gamma_x, s.gamma_y, s.beta_x, s.beta_y)
        new = minimax.localsgdam_round(problem, one.models[r - 1], start, [0], lambda i, k: None, 1, r - 1, *steps)
        np.testing.assert_allclose(one.models[r], new[0], **EXACT)
        np.testing.assert_allclose(one.told(r + 1, SGDAMDown).momentum, new[1], **EXACT)


@pytest.mark.parametrize("word", WORDS)
def test_compositions_follow_their_union_where_the_inner_step_is_none(
    word: str, data: dict[str, Scalar], tmp_path: Path
) -> None:
    """With an inner step, f_i is evaluated at the site's h_i, and the mean of f_i(h_i) is not f at the mean of h_i."""
    one = Watched(tmp_path, {**data, **LATER["local-scgdam"], "strategy": "local-scgdam", "client-weights": word})
    features, labels = pooled(one, word)
    problem, s = scgdam.CompositionalAUC(features, labels, float(labels[0].mean()), 0.0, one.score), one.settings
    for r in range(2, one.rounds):
        z, told, after = one.models[r - 1], one.told(r, SCGDAMDown), one.told(r + 1, SCGDAMDown)
        state = z[:-1], z[-1:], told.inner, told.momentum[:-1], told.momentum[-1:]
        steps = s.eta, s.gamma_x, s.gamma_y, s.beta_x, s.beta_y, s.alpha
        new = scgdam.localscgdam_round(problem, state, [0], lambda i, k: None, 1, r - 1, *steps)
        np.testing.assert_allclose(one.models[r], np.concatenate([new.x, new.y]), **EXACT)
        np.testing.assert_allclose(after.momentum, np.concatenate([new.u, new.v]), **EXACT)
        np.testing.assert_allclose(after.inner, new.h, **EXACT)


# fedprox uses Flower's arithmetic for its sums
@pytest.mark.parametrize("name", sorted({*CASES, *LATER} - {"fedprox"}))
def test_sites_of_one_size_are_weighed_by_nothing_to_the_bit(name: str, tmp_path: Path) -> None:
    rows = rows_of(LABELS.tolist(), tmp_path / "data.npz")
    keys: dict[str, Scalar] = {**rows, "partition": "given", "partition-rows": "9:0.34,9:0.34,9:0.34"}
    keys |= {**(CASES | LATER)[name], "strategy": name, "num-server-rounds": 3}
    found = [Watched(tmp_path, {**keys, "client-weights": word}, clients=3).run.model_bytes for word in WORDS]
    assert found[0] == found[1]


@pytest.mark.parametrize("sites", [1, 3, 7, 11, 49])
@pytest.mark.parametrize("rows", [1, 3, 10, 4567])
def test_the_weight_of_sites_of_one_size_is_1(sites: int, rows: int) -> None:
    reports = (SiteReport(identity=np.array([i, sites]), class_counts=np.array([rows, 0])) for i in range(sites))
    found = Roster(tuple(range(sites)), tuple(reports))
    assert found.sample_weights.tolist() == [1.0] * sites
    assert rows / (found.class_counts.sum() / sites) == 1.0
