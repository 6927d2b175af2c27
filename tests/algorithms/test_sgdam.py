"""LocalSGDAM and FedSGDA-M: step by step against the NumPy reference, and settings for which they are CoDA."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apps.config import Scalar
from methods.sgdam import SaddleMomentum, SGDAMDown
from tests.algorithms.watched import CLOSE, DROPS, EXACT, ROUNDS, SITES, STEPS, Watched
from tests.reference import minimax
from tests.reference.minimax import Array


def reference(one: Watched) -> Iterator[tuple[Array, Array]]:
    """Yield (z, m) after each round."""
    problem, settings, z, momentum = one.saddle(), one.settings, one.models[0], None
    storm = one.flat["strategy"] == "fedsgda-m"
    for t in range(ROUNDS):
        ends = []
        for i in one.participants(t + 1):
            end = z, momentum
            for iteration in range(t * STEPS, (t + 1) * STEPS):
                drop = one.rate(iteration) / one.training.learning_rate
                gammas = settings.gamma_x * drop, settings.gamma_y * drop
                rest = (iteration, settings.eta, *gammas, settings.beta_x, settings.beta_y, storm)
                end = minimax.localsgdam_round(problem, *end, [i], one.batch, 1, *rest)
            ends.append(end)
        z, momentum = (np.mean(parts, axis=0) for parts in zip(*ends, strict=True))
        yield z, momentum


VARIANTS: dict[str, dict[str, Scalar]] = {
    "base": {},
    "blocks": {"sgdam.eta": 0.5, "sgdam.gamma-x": 0.2, "sgdam.gamma-y": 0.7, "sgdam.beta-x": 0.4, "sgdam.beta-y": 1.9},
    "sigmoid": {"score": "sigmoid", "sgdam.beta-x": 1.0},
    "half": {"fraction-train": 0.5, "sgdam.beta-x": 1.0, "sgdam.beta-y": 0.5},
    "drops": {**DROPS, "sgdam.beta-x": 1.0},
    "long-memory": {"sgdam.beta-x": 0.1, "sgdam.beta-y": 0.1},
}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "sgdam.gamma-x": 0.02, "sgdam.gamma-y": 0.03, "sgdam.beta-y": 0.7}


def assert_follows(one: Watched) -> None:
    for r, (z, momentum) in enumerate(reference(one), start=1):
        np.testing.assert_allclose(one.models[r], z, **CLOSE)
        returned = [payload.momentum for payload in one.returned(r, SaddleMomentum).values()]
        np.testing.assert_allclose(np.mean(returned, axis=0), momentum, **CLOSE)
        if r < ROUNDS:
            np.testing.assert_allclose(one.told(r + 1, SGDAMDown).momentum, momentum, **CLOSE)


STRATEGIES = ("fedsgda-m", "local-sgdam")
both = pytest.mark.parametrize("strategy", STRATEGIES)


@both
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(strategy: str, variant: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**data, "strategy": strategy, **VARIANTS[variant]})
    assert_follows(one)
    assert one.told(1, SGDAMDown).momentum is None
    assert all(one.told(r, SGDAMDown).population.tolist() == [0.3, 110 / SITES] for r in range(1, ROUNDS + 1))


@both
def test_it_follows_the_reference_on_a_problem_of_its_own(strategy: str, tmp_path: Path) -> None:
    assert_follows(Watched(tmp_path, {"strategy": strategy, **PL}, clients=3))


def test_storm_s_momentum_of_all_samples_is_the_gradient(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Without noise the corrected momentum never lags, so its weight has no effect. Plain momentum lags."""
    common = {**data, "partition": "iid", "batch-size": 0, "learning-rate": 0.2, "coda.proximal": 0.0}
    own = {"sgdam.eta": 0.4, "sgdam.gamma-x": 0.5, "sgdam.gamma-y": 0.5, "sgdam.beta-x": 0.5, "sgdam.beta-y": 0.5}
    names = ("coda", *STRATEGIES)
    runs = [{**common, "strategy": name} | ({} if name == "coda" else own) for name in names]
    coda, storm, plain = (Watched(tmp_path, keys, clients=1) for keys in runs)
    np.testing.assert_allclose(storm.models, coda.models, **EXACT)
    assert np.abs(plain.models[-1] - coda.models[-1]).max() > 1e-3


@pytest.mark.parametrize("more", [DROPS, {"lr-decay": 0.1, "lr-decay-at": "0.5,0.75", "score": "sigmoid"}])
def test_one_client_without_memory_is_coda(more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    """If beta * eta = 1, it is CoDA without a pull, with the learning rate gamma * eta."""
    eta, gamma = 0.4, 0.5
    common = {**data, "partition": "iid", **more}
    coda = {"strategy": "coda", "coda.proximal": 0.0, "learning-rate": gamma * eta}
    own = {f"sgdam.{key}": value for key, value in {"eta": eta, "gamma-x": gamma, "gamma-y": gamma}.items()}
    sgdam = {"strategy": "local-sgdam", **own, "sgdam.beta-x": 1 / eta, "sgdam.beta-y": 1 / eta}
    left, right = (Watched(tmp_path, {**common, **keys}, clients=1) for keys in (coda, sgdam))
    np.testing.assert_allclose(left.models, right.models, **EXACT)
