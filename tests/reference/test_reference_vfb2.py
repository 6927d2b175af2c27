"""The NumPy reference of VFB2 against finite differences, hand-worked steps and its own special cases."""

from collections.abc import Sequence

import numpy as np
import pytest

from . import vfb2
from .vfb2 import Array, Epoch, Event, Index, Party, Problem

ROWS, COLUMNS, STEP = 30, 7, 0.05
WEIGHTS = {"logistic": 0.05, "nonconvex-logistic": 0.05, "ridge": 0.1, "robust": 0.0}
each_problem = pytest.mark.parametrize("name", WEIGHTS)
each_algorithm = pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])


def data(name: str) -> tuple[Array, Array]:
    """Labels that cannot be fitted exactly."""
    rng = np.random.default_rng(0)
    X = rng.normal(0, 1, (ROWS, COLUMNS)) / np.sqrt(COLUMNS)
    z = X @ rng.normal(0, 2, COLUMNS) + rng.normal(0, 0.7, ROWS)
    return X, np.sign(z) if "logistic" in name else z


def vector(seed: int) -> Array:
    return np.random.default_rng(seed).normal(0, 1, COLUMNS)


def columns(sizes: Sequence[int]) -> list[Index]:
    return np.split(np.random.default_rng(1).permutation(sum(sizes)).astype(np.int64), np.cumsum(sizes)[:-1])


def plan(places: int, batch_size: int, epochs: int) -> list[Epoch]:
    return [vfb2.batches(ROWS, places, batch_size, 5, e) for e in range(epochs)]


def whole(parties: Sequence[Party], cut: Sequence[Index]) -> Array:
    w = np.zeros(COLUMNS)
    for party, c in zip(parties, cut, strict=True):
        w[c] = party.w
    return w


def far(got: Array, other: Array) -> float:
    return float(np.max(np.abs(got - other), initial=0.0))


@each_problem
def test_gradients_are_those_of_the_values(name: str) -> None:
    (X, y), problem, w = data(name), Problem(name, 0.3), 2 * vector(3)
    numeric = [(problem.value(X, y, w + h) - problem.value(X, y, w - h)) / 2e-6 for h in 1e-6 * np.eye(COLUMNS)]
    assert far(problem.gradient(X, y, w), np.array(numeric)) < 1e-8


def test_the_problems_at_one_row_by_hand() -> None:
    for name, loss, penalty in [
        ("logistic", np.log(1 + np.exp(0.5)), 2.0),
        ("nonconvex-logistic", np.log(1 + np.exp(0.5)), 0.4),
        ("ridge", 2.25, 2.0),
        ("robust", np.log(2.125), 2.0),
    ]:  # z = 0.5
        value = Problem(name, 3.0).value(np.array([[0.25, 7.0]]), np.array([-1.0]), np.array([2.0, 0.0]))
        assert value == pytest.approx(loss + 3 * penalty, rel=1e-15)


def test_two_steps_of_every_algorithm_by_hand() -> None:
    """Ridge, weight 0, x = (1, 2), y = (1, 0), gamma 0.1: theta_1 = 2 (w - 1), theta_2 = 4 w, from w = 1."""
    X, y, order = np.array([[1.0], [2.0]]), np.array([1.0, 0.0]), [np.array([0]), np.array([1]), np.array([0])]
    second = 0.6 - 0.1 * (2.4 * 2 - 8 + 4)  # mu = (0 + 8) / 2, and row 2's theta was 4
    for algorithm, points in {
        "sgd": [1.0, 0.2, 0.2 + 0.1 * 1.6],
        "svrg": [0.6, second, second - 0.1 * (2 * (second - 1) + 4)],
        "saga": [0.6, second, second - 0.1 * (2 * (second - 1) + 2.4)],  # the table is now (0, 4.8)
    }.items():
        seen: list[Array] = []
        vfb2.centralised(Problem("ridge", 0), X, y, algorithm, 0.1, [[order]], np.array([1.0]), hook=seen.append)
        assert np.concatenate(seen) == pytest.approx(points, abs=1e-15)


# The model split into blocks, replayed from logs.


def logs_of(active: Sequence[int], epochs: Sequence[Epoch]) -> list[list[Event]]:
    return vfb2.synchronous_logs(3, active, [len(own) for own in epochs[0]], len(epochs))


@each_problem
@each_algorithm
@pytest.mark.parametrize("active", [[1], [2, 0], [0, 1, 2]])
def test_replaying_the_synchronous_log_is_centralised(name: str, algorithm: str, active: list[int]) -> None:
    """A party without labels that is frozen, as in AFSVRG-VP, counts in z and never changes."""
    (X, y), problem, epochs, cut = data(name), Problem(name, 0.1), plan(len(active), 4, 3), columns((3, 2, 2))
    logs, counts = logs_of(active, epochs), [len(own) for own in epochs[0]]
    # at one point: a partial goes before the other dominators' updates
    vfb2.check_logs(logs, active, counts, 3, 1 if len(active) == 1 else 2, 1, barrier=True)
    for frozen in ([], [0]):
        parties = vfb2.make_parties(problem, X, cut, algorithm, STEP, vector(9), frozen)
        vfb2.replay(problem, parties, y, active, epochs, logs)
        still = np.concatenate([cut[0][:0], *(cut[p] for p in frozen)]).tolist()
        expected = vfb2.centralised(problem, X, y, algorithm, STEP, epochs, vector(9), frozen=still)
        assert far(whole(parties, cut), expected) < 1e-12
        assert far(expected, vector(9)) > 0.02


def test_replay_of_a_delayed_log_by_hand() -> None:
    """One dominator, two rows, window 2: both partials of party 1 are those of its start."""
    X, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -1.0])
    problem, epochs = Problem("ridge", 0.1), [[[np.array([1]), np.array([0])]]]
    logs = [
        [Event("theta", 0, 0), Event("apply", 0, 0), Event("theta", 0, 1), Event("apply", 0, 1)],
        [Event("partial", 0, 0), Event("partial", 0, 1), Event("apply", 0, 0), Event("apply", 0, 1)],
    ]
    parties = vfb2.make_parties(problem, X, [np.array([0]), np.array([1])], "sgd", 0.1, np.array([1.0, -1.0]))
    got = vfb2.replay(problem, parties, y, [0], epochs, logs)
    theta_a = 2 * (3 * 1 + 4 * -1 + 1.0)
    u = 1 - 0.1 * (3 * theta_a + 0.1 * 1)
    v = -1 - 0.1 * (4 * theta_a + 0.1 * -1)
    theta_b = 2 * (1 * u + 2 * -1 - 0.5)
    assert got.blocks[0][0] == pytest.approx(u - 0.1 * (theta_b + 0.1 * u), abs=1e-15)
    assert got.blocks[1][0] == pytest.approx(v - 0.1 * (2 * theta_b + 0.1 * v), abs=1e-15)


def test_the_check_of_logs_sees_every_offence() -> None:
    logs, ahead = logs_of([2, 0], plan(2, 4, 2)), [Event("partial", 2, t) for t in range(3)]

    def check(logs: list[list[Event]], window: int = 3, skew: int = 4, barrier: bool = False) -> None:
        vfb2.check_logs(logs, [2, 0], [4, 4], 2, window, skew, barrier)

    check(logs)
    early = [list(logs[0]), [*ahead, *(e for e in logs[1] if e not in ahead)], list(logs[2])]
    check(early)
    with pytest.raises(ValueError, match="window 2,"):
        check(early, window=2)
    with pytest.raises(ValueError, match="skew 1"):
        check(early, skew=1)
    over = Event("partial", 2, 4)
    with pytest.raises(ValueError, match="order"):
        check([logs[0], [over, *(e for e in logs[1] if e != over)], logs[2]], barrier=True)
    with pytest.raises(ValueError, match="order"):
        check([log[:-1] for log in logs])
    with pytest.raises(ValueError, match="after the last"):
        check([[*log, log[-1]] for log in logs])
