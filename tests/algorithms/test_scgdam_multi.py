"""LocalSCGDAM with several inner levels: step by step against the NumPy reference; one level; messages."""

from pathlib import Path

import numpy as np
import pytest

from apps.config import Scalar
from methods.scgdam_multi import MultiLevelUp
from payloads.record import PayloadError
from problems.randomness import Purpose
from strategies.minimax import SCGDAMMulti
from tests.algorithms.test_scgdam import KEYS, TANH, USER
from tests.algorithms.watched import CLOSE, ROUNDS, Watched
from tests.battery.federation import model_of
from tests.reference import scgdam

MULTI: dict[str, Scalar] = {**KEYS, "strategy": "scgdam-multi", "scgdam.levels": 3}
VARIANTS: dict[str, dict[str, Scalar]] = {
    "three-levels": {},
    "two-levels": {"scgdam.levels": 2, "fraction-train": 0.5},
    "one-level": {"scgdam.levels": 1},
    "identity": {"scgdam.hessian": "identity"},
    "independent": {"scgdam.independent-batches": True, "score": "sigmoid"},
    "all-samples": {"batch-size": 0, "lr-decay": 0.5, "lr-decay-every": 4},
}


@pytest.mark.parametrize("network", ["linear", TANH], ids=["linear", "tanh"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_follows_the_reference(variant: str, network: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    one = Watched(tmp_path, {**MULTI, **data, "model": network, **VARIANTS[variant]})
    own, (features, labels) = one.settings, one.shares
    prior, net = float(np.concatenate(labels).mean()), "linear" if network == "linear" else "tanh"
    problem = scgdam.CompositionalAUC(features, labels, prior, own.rho, one.score, own.hessian, net)
    outer = (lambda i, j: one.batch(i, j, Purpose.INDEPENDENT_SAMPLES)) if own.independent_batches else None
    state, steps = scgdam.MultiLevel(one.models[0][:-1], one.models[0][-1:]), one.training.local_steps
    for r in range(1, ROUNDS + 1):
        ends = []
        for i in one.participants(r):
            end = state
            for t in range((r - 1) * steps, r * steps):
                drop = one.rate(t) / one.training.learning_rate
                rates = (own.eta, own.gamma_x * drop, own.gamma_y * drop, own.beta_x, own.beta_y, own.alpha)
                end = scgdam.multilevel_round(problem, end, own.levels, [i], one.batch, 1, t, *rates, outer)
            ends.append(end)
            up = one.returned(r, MultiLevelUp)[i]
            _, _, *expected = map(np.asarray, end)
            sent = up.inner[None] if up.levels is None else np.vstack([up.levels.reshape(own.levels - 1, -1), up.inner])
            np.testing.assert_allclose(sent, expected[0], **CLOSE)
            np.testing.assert_allclose(up.momentum, np.concatenate(expected[1:]), **CLOSE)
        state = scgdam.MultiLevel(*(np.mean(parts, axis=0) for parts in zip(*ends, strict=True)))
        np.testing.assert_allclose(one.models[r], np.concatenate([state.x, state.y]), **CLOSE)
    assert np.abs(one.models[-1] - one.models[0]).max() > 0.01


def test_one_level_sends_the_same_bytes_as_local_scgdam(data: dict[str, Scalar], tmp_path: Path) -> None:
    common = {**data, "model": USER + "normed_and_dropped"}
    multi, single = (Watched(tmp_path, {**common, **keys}) for keys in ({**MULTI, "scgdam.levels": 1}, KEYS))
    for r in range(1, ROUNDS + 1):
        for a, b in zip(multi.exchanges(r), single.exchanges(r), strict=True):
            assert a.reply.content.config_records == b.reply.content.config_records
            assert all(map(np.array_equal, model_of(a.reply), model_of(b.reply)))


def test_statistics_of_the_model_are_those_at_its_own_weights(data: dict[str, Scalar], tmp_path: Path) -> None:
    """Further levels also run the first network. Without memory and steps between levels, its statistics are equal."""
    common = {**data, **KEYS, "model": USER + "normed", "num-server-rounds": 1, "local-steps": 1}
    one, three = (
        Watched(tmp_path, {**common, "strategy": "scgdam-multi", "scgdam.levels": levels, "scgdam.gamma-x": 1e-9})
        for levels in (1, 3)
    )
    for a, b in zip(one.exchanges(1), three.exchanges(1), strict=True):
        np.testing.assert_allclose(model_of(a.reply)[1], model_of(b.reply)[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("levels", "length", "reason"),
    [
        (3, 45, "MultiLevelUp.levels: got 45 values, expected 90"),
        (3, 0, "MultiLevelUp.levels: got 0 values, expected 90"),
        (1, 45, "MultiLevelUp.levels: got 45 values, expected 0"),
    ],
)
def test_a_wrong_number_of_levels_is_refused(levels: int, length: int, reason: str) -> None:
    strategy = SCGDAMMulti(settings=SCGDAMMulti.settings_type(levels=levels))
    strategy.model = [np.zeros(46)]
    values = np.zeros(length) if length else None
    with pytest.raises(PayloadError) as refused:
        strategy.check_payload(MultiLevelUp(inner=np.zeros(45), momentum=np.zeros(46), levels=values))
    assert str(refused.value) == reason
