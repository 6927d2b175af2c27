"""Tests of the NumPy reference of VFB2 against steps that are worked out by hand."""

import numpy as np
import pytest

from . import split_network, vfb2
from .vfb2 import Array, Event, Problem


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


def test_replay_of_a_delayed_log_by_hand() -> None:
    """One dominator, two rows, window 2: both partials of party 1 come from its start."""
    X, y = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -1.0])
    problem, epochs = Problem("ridge", 0.1), [[[np.array([1]), np.array([0])]]]
    logs = [
        [Event("theta", 0, 0), Event("apply", 0, 0), Event("theta", 0, 1), Event("apply", 0, 1)],
        [Event("partial", 0, 0), Event("partial", 0, 1), Event("apply", 0, 0), Event("apply", 0, 1)],
    ]
    parties = vfb2.make_parties(problem, X, [np.array([0]), np.array([1])], "sgd", 0.1, np.array([1.0, -1.0]))
    blocks = vfb2.replay(problem, parties, y, [0], epochs, logs)
    theta_a = 2 * (3 * 1 + 4 * -1 + 1.0)
    u = 1 - 0.1 * (3 * theta_a + 0.1 * 1)
    v = -1 - 0.1 * (4 * theta_a + 0.1 * -1)
    theta_b = 2 * (1 * u + 2 * -1 - 0.5)
    assert blocks[0][0] == pytest.approx(u - 0.1 * (theta_b + 0.1 * u), abs=1e-15)
    assert blocks[1][0] == pytest.approx(v - 0.1 * (2 * theta_b + 0.1 * v), abs=1e-15)


@pytest.mark.parametrize("softmax", [False, True])
def test_a_step_of_the_split_network_is_along_the_gradient(softmax: bool) -> None:
    """By central differences of the objective in every weight of two parties and the head, away from the kinks."""
    rng = np.random.default_rng(0)
    X, y, B = rng.standard_normal((6, 5)), np.sign(rng.standard_normal(6)), np.array([4, 0, 3])
    sizes = [(2, 4, 3), (3, 3)]
    y = rng.integers(0, 3, 6).astype(float) if softmax else y
    starts = [rng.standard_normal(2 * 4 + 4 + 4 * 3 + 3), rng.standard_normal(3 * 3 + 3), rng.standard_normal(4)]

    def at(weights: list[Array]) -> tuple[split_network.Headed, list[split_network.Part]]:
        problem = split_network.Headed("nonconvex-logistic", 0.1, 0.01, weights[2])
        if softmax:
            problem = split_network.Softmax(0.1, 0.01)
        columns = (X[:, :2], X[:, 2:])
        return problem, [split_network.Part(columns[p], problem, sizes[p], 0.01, weights[p]) for p in range(2)]

    problem, parts = at(starts)
    split_network.central(problem, parts, y, [[[B]]])
    for place, after in enumerate([part.w for part in parts] + [problem.v] * (not softmax)):
        slopes = []
        for j in range(len(starts[place])):
            ends = []
            for way in (1e-6, -1e-6):
                moved = [start.copy() for start in starts]
                moved[place][j] += way
                ends.append(at(moved)[0].objective(at(moved)[1], B, y))
            slopes.append((ends[0] - ends[1]) / 2e-6)
        assert (starts[place] - after) / 0.01 == pytest.approx(slopes, abs=1e-8)
