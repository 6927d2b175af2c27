"""The NumPy reference of VFB2 against finite differences, closed forms, its own special cases and exhaustive search."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems.randomness import stream

from . import vfb2
from .vfb2 import Array, Epoch, Event, Index, Party, Problem

ROWS, COLUMNS = 30, 7
NAMES = ("logistic", "nonconvex-logistic", "ridge", "robust")
WEIGHTS = {"logistic": 0.05, "nonconvex-logistic": 0.05, "ridge": 0.1, "robust": 0.0}
NAME = pytest.mark.parametrize("name", NAMES)
ALGORITHM = pytest.mark.parametrize("algorithm", ["sgd", "svrg", "saga"])
SPLITS = pytest.mark.parametrize("sizes", [(7,), (3, 4), (1, 2, 3, 1)])
STEP = 0.05


def frozen(x: Array) -> Array:
    x.flags.writeable = False
    return x


def data(name: str, seed: int = 0) -> tuple[Array, Array]:
    """Read-only, so that a change in place fails; the labels cannot be fitted exactly."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0, 1, (ROWS, COLUMNS)) / np.sqrt(COLUMNS)
    z = X @ rng.normal(0, 2, COLUMNS) + rng.normal(0, 0.7, ROWS)
    return frozen(X), frozen(np.sign(z) if "logistic" in name else z)


def vector(seed: int, size: int = COLUMNS) -> Array:
    return frozen(np.random.default_rng(seed).normal(0, 1, size))


def columns(sizes: Sequence[int], seed: int = 1) -> list[Index]:
    order = np.random.default_rng(seed).permutation(sum(sizes)).astype(np.int64)
    return np.split(order, np.cumsum(sizes)[:-1])


def plan(places: int, batch_size: int, epochs: int) -> list[Epoch]:
    return [vfb2.batches(ROWS, places, batch_size, 5, e) for e in range(epochs)]


def minimiser(problem: Problem, X: Array, y: Array) -> Array:
    """By Newton with the Hessian of the gradient's differences: needs the gradient alone."""
    w = np.zeros(COLUMNS)
    for _ in range(30):
        hessian = np.array([slope(lambda v: problem.gradient(X, y, v), w, e, 1e-6) for e in np.eye(COLUMNS)])
        w = w - np.linalg.solve(hessian, problem.gradient(X, y, w))
    assert np.linalg.norm(problem.gradient(X, y, w)) < 1e-13
    return w


def slope(f: Callable[[Array], Array], w: Array, e: Array, h: float) -> Array:
    return (f(w + h * e) - f(w - h * e)) / (2 * h)


def far(got: Array, other: Array) -> float:
    assert got.shape == other.shape
    return float(np.max(np.abs(got - other), initial=0.0))


# The four problems.


def test_the_problems_at_one_row_by_hand() -> None:
    z, y, w = np.array([0.5]), np.array([-1.0]), np.array([2.0, 0.0])
    for name, loss, theta, penalty in [
        ("logistic", np.log(1 + np.exp(0.5)), 1 / (1 + np.exp(-0.5)), 2.0),
        ("nonconvex-logistic", np.log(1 + np.exp(0.5)), 1 / (1 + np.exp(-0.5)), 0.4),
        ("ridge", 2.25, 3.0, 2.0),
        ("robust", np.log(2.125), 1.5 / 2.125, 2.0),
    ]:
        problem = Problem(name, 3.0)
        assert problem.losses(z, y)[0] == pytest.approx(loss, rel=1e-15)
        assert problem.thetas(z, y)[0] == pytest.approx(theta, rel=1e-15)
        assert problem.penalty(w) == pytest.approx(3 * penalty, rel=1e-15)
        X = np.array([[0.25, 7.0]])
        assert problem.value(X, y, w) == pytest.approx(loss + 3 * penalty, rel=1e-15)


@NAME
def test_gradients_are_those_of_the_values(name: str) -> None:
    (X, y), problem = data(name), Problem(name, 0.3)
    w = 2 * vector(3)
    for e in np.eye(COLUMNS):
        expected = (problem.value(X, y, w + 1e-6 * e) - problem.value(X, y, w - 1e-6 * e)) / 2e-6
        assert problem.gradient(X, y, w) @ e == pytest.approx(expected, abs=1e-8)
    assert (
        far(problem.sample_gradients(X, y, w).mean(axis=0) + problem.penalty_slope(w), problem.gradient(X, y, w)) == 0
    )


def test_large_margins_stay_finite() -> None:
    z, y = np.array([1e4, -1e4]), np.array([1.0, 1.0])
    assert Problem("logistic", 0).losses(z, y).tolist() == [0, 1e4]
    assert Problem("logistic", 0).thetas(z, y).tolist() == [0, -1]


@given(rows=st.integers(1, 40), places=st.integers(1, 5), batch_size=st.integers(0, 9), epoch=st.integers(0, 3))
def test_an_epoch_visits_every_row_once(rows: int, places: int, batch_size: int, epoch: int) -> None:
    drawn = vfb2.batches(rows, places, batch_size, 7, epoch)
    flat = np.concatenate([np.zeros(0, dtype=np.int64), *(B for own in drawn for B in own)])
    assert flat.tolist() == stream(7, "vertical batches", epoch).permutation(rows).tolist()
    sizes = [sum(len(B) for B in own) for own in drawn]
    assert len(drawn) == places
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    for own in drawn:
        assert all(len(B) == (batch_size or sum(map(len, own))) for B in own[:-1])
        assert all(0 < len(B) <= (batch_size or rows) for B in own)


def test_rounds_drop_the_places_that_have_run_out() -> None:
    batches = [[np.array([k, t]) for t in range(count)] for k, count in enumerate((3, 1, 2))]
    order = [[(k, int(B[0]), int(B[1])) for k, B in turn] for turn in vfb2.rounds(batches)]
    assert order == [[(0, 0, 0), (1, 1, 0), (2, 2, 0)], [(0, 0, 1), (2, 2, 1)], [(0, 0, 2)]]


# One place against one's own hand, the boxes, and the split.


def test_two_steps_of_every_algorithm_by_hand() -> None:
    """Ridge, weight 0, x = (1, 2), y = (1, 0), gamma 0.1: theta_1 = 2 (w - 1), theta_2 = 4 w, from w = 1."""
    X, y, epoch = np.array([[1.0], [2.0]]), np.array([1.0, 0.0]), [[np.array([0]), np.array([1])]]
    expected = {
        "sgd": [1.0, 1 - 0.1 * 8],  # theta_1 = 0, then 4 * 2
        "svrg": [1 - 0.1 * 4, 0.6 - 0.1 * (2.4 * 2 - 8 + 4)],  # mu = (0 + 8) / 2
        "saga": [1 - 0.1 * 4, 0.6 - 0.1 * (2.4 * 2 - 8 + 4)],  # row 1's entry stays 0
    }
    expected["saga"] += [0.6 - 0.08 - 0.1 * (2 * -0.48 - 0 + 2.4)]  # the table is now (0, 4.8); row 1 again
    for algorithm, points in expected.items():
        seen: list[Array] = []
        batches = [[*epoch[0], np.array([0])]] if algorithm == "saga" else epoch
        vfb2.centralised(Problem("ridge", 0), X, y, algorithm, 0.1, [batches], np.array([1.0]), hook=seen.append)
        assert np.concatenate(seen) == pytest.approx(points, abs=1e-15)


@NAME
def test_one_full_batch_is_gradient_descent(name: str) -> None:
    (X, y), problem = data(name), Problem(name, 0.2)
    w = vector(2)
    for algorithm in ("sgd", "svrg", "saga"):
        seen: list[Array] = []
        vfb2.centralised(problem, X, y, algorithm, STEP, plan(1, 0, 3), w, hook=seen.append)
        point = w
        for got in seen:
            point = point - STEP * problem.gradient(X, y, point)
            assert far(got, point) < 1e-14
        assert len(seen) == 3


@NAME
@ALGORITHM
@SPLITS
@pytest.mark.parametrize("places", [1, 2])
def test_split_equals_centralised(name: str, algorithm: str, sizes: tuple[int, ...], places: int) -> None:
    if places > len(sizes):
        return
    (X, y), problem = data(name), Problem(name, 0.1)
    cut, epochs, start = columns(sizes), plan(places, 4, 3), vector(2)
    parties = vfb2.make_parties(problem, X, cut, algorithm, STEP, start)
    expected: list[Array] = []
    got: list[Array] = []
    final = vfb2.centralised(problem, X, y, algorithm, STEP, epochs, start, hook=expected.append)
    vfb2.split(problem, parties, y, epochs, hook=lambda: got.append(vfb2.whole(parties, cut)))
    assert len(got) == len(expected) == sum(len(own) for epoch in epochs for own in epoch)
    assert max(far(a, b) for a, b in zip(got, expected, strict=True)) < 1e-12
    assert far(got[-1], final) < 1e-12
    assert far(start, final) > 0.05


@ALGORITHM
def test_places_read_one_point_and_apply_in_turn(algorithm: str) -> None:
    """Two places with one batch each: the second one's loss gradient is that of the start, its regulariser is not."""
    (X, y), problem = data("ridge"), Problem("ridge", 0.5)
    w, (a, b) = vector(4), np.array_split(np.arange(ROWS), 2)
    got = vfb2.centralised(problem, X, y, algorithm, STEP, [[[a], [b]]], w)

    def loss(rows: Index) -> Array:
        return np.asarray(problem.sample_gradients(X[rows], y[rows], w).mean(axis=0))

    def correction(rows: Index, table: Array) -> Array:
        return np.asarray(0 * w if algorithm == "sgd" else table.mean(axis=0) - table[rows].mean(axis=0))

    table = problem.sample_gradients(X, y, w)
    first = w - STEP * (loss(a) + correction(a, table) + problem.penalty_slope(w))
    second = first - STEP * (loss(b) + correction(b, table) + problem.penalty_slope(first))
    assert far(got, second) < 1e-14


def test_the_papers_table_is_saga_on_whole_gradients() -> None:
    """Algorithm 6 word for word: v = grad f_i(w) - alpha_i + mean of alpha, alpha_i <- grad f_i(w)."""
    (X, y), problem, w = data("logistic"), Problem("logistic", 0.3), vector(1)
    order = np.array([3, 8, 3, 0, 8, 8])
    got = vfb2.centralised(problem, X, y, "saga", 0.3, [[[np.array([i]) for i in order]]], w, paper_table=True)
    table = [problem.gradient(X[[i]], y[[i]], w) for i in range(ROWS)]
    for i in order:
        gradient = problem.gradient(X[[i]], y[[i]], w)
        w = w - 0.3 * (gradient - table[i] + np.mean(table, axis=0))
        table[i] = gradient
    assert far(got, w) < 1e-14


def test_the_papers_table_has_other_iterates_and_the_same_limit() -> None:
    """Algorithms 6 and 7 put the regulariser into SAGA's table: equal at weight 0 only, and in the limit."""
    X, y = data("logistic")
    for weight in (0.0, 0.3):
        problem = Problem("logistic", weight)
        ours, boxes = (
            vfb2.centralised(problem, X, y, "saga", 0.3, plan(1, 2, 3), vector(1), paper_table=paper)
            for paper in (False, True)
        )
        assert (far(ours, boxes) < 1e-14) == (weight == 0)
    best = minimiser(problem, X, y)
    for paper in (False, True):
        assert far(vfb2.centralised(problem, X, y, "saga", 0.3, plan(1, 2, 60), paper_table=paper), best) < 1e-9


@pytest.mark.parametrize("name", ["logistic", "ridge"])
def test_reduced_variance_reaches_the_optimum_and_sgd_stalls(name: str) -> None:
    (X, y), problem = data(name), Problem(name, WEIGHTS[name])
    best = minimiser(problem, X, y)
    gaps = {}
    for algorithm in ("sgd", "svrg", "saga"):
        w = vfb2.centralised(problem, X, y, algorithm, 0.5, plan(1, 2, 150))
        gaps[algorithm] = problem.value(X, y, w) - problem.value(X, y, best)
    assert gaps["svrg"] < 1e-14
    assert gaps["saga"] < 1e-14
    assert gaps["sgd"] > 1e-5


@ALGORITHM
def test_parties_without_labels_stay_frozen(algorithm: str) -> None:
    """AFSVRG-VP: their columns count in z, and never change."""
    (X, y), problem = data("logistic"), Problem("logistic", 0.1)
    cut, start, epochs = columns((3, 2, 2)), vector(5), plan(2, 5, 3)
    parties = vfb2.make_parties(problem, X, cut, algorithm, STEP, start, frozen=[1])
    vfb2.split(problem, parties, y, epochs)
    got = vfb2.whole(parties, cut)
    assert far(got[cut[1]], start[cut[1]]) == 0
    expected = vfb2.centralised(problem, X, y, algorithm, STEP, epochs, start, frozen=cut[1].tolist())
    assert far(got, expected) < 1e-12
    free = np.concatenate([cut[0], cut[2]])
    assert np.min(np.abs(got[free] - start[free])) > 1e-4


@pytest.mark.parametrize("places", [1, 2, 3])
def test_a_full_pass_by_chunks_is_the_full_pass(places: int) -> None:
    (X, y), problem = data("robust"), Problem("robust", 0.1)
    cut, w = columns((3, 4, 0)), vector(6)
    for algorithm in ("svrg", "saga"):
        parties = vfb2.make_parties(problem, X, cut, algorithm, STEP, w)
        theta = vfb2.full_pass(problem, parties, y, places)
        assert far(theta, problem.thetas(X @ w, y)) < 1e-14
        for party, c in zip(parties, cut, strict=True):
            assert far(party.theta0, theta) == far(party.alpha, theta) == 0
            assert far(party.mean, problem.sample_gradients(X, y, w).mean(axis=0)[c]) < 1e-14


def test_a_second_segment_goes_on_with_the_table() -> None:
    (X, y), problem, cut = data("ridge"), Problem("ridge", 0.1), columns((3, 4))
    for start, same in ((False, True), (True, False)):
        parties = vfb2.make_parties(problem, X, cut, "saga", STEP)
        vfb2.split(problem, parties, y, plan(2, 4, 2))
        vfb2.split(problem, parties, y, plan(2, 4, 4)[2:], start=start)
        whole = vfb2.centralised(problem, X, y, "saga", STEP, plan(2, 4, 4))
        assert (far(vfb2.whole(parties, cut), whole) < 1e-12) == same


def test_unknown_words_are_refused() -> None:
    (X, y), problem = data("ridge"), Problem("ridge", 0.1)
    with pytest.raises(ValueError, match="'hinge'"):
        Problem("hinge", 0.1)
    with pytest.raises(ValueError, match="'adam'"):
        vfb2.centralised(problem, X, y, "adam", STEP, plan(1, 4, 1))
    with pytest.raises(ValueError, match="'adam'"):
        Party(X, problem, "adam", STEP).apply(np.arange(2), np.zeros(2))


# Asynchronous runs.

ACTIVE = [2, 0]  # not in the order of the parties


def blocks(problem: Problem, X: Array, algorithm: str, step: float = STEP) -> list[Party]:
    return vfb2.make_parties(problem, X, columns((3, 2, 2)), algorithm, step, vector(9))


def counts(epochs: Sequence[Epoch]) -> list[int]:
    return [len(own) for own in epochs[0]]


@ALGORITHM
@pytest.mark.parametrize("active", [[0], [1], [2, 0], [0, 1, 2]])
def test_replaying_the_synchronous_log_is_centralised(algorithm: str, active: list[int]) -> None:
    (X, y), problem, epochs = data("ridge"), Problem("ridge", 0.1), plan(len(active), 4, 3)
    parties = blocks(problem, X, algorithm)
    logs = vfb2.synchronous_logs(3, active, counts(epochs), 3)
    window = 1 if len(active) == 1 else 2  # at one point: a partial goes before the other dominators' updates
    vfb2.check_logs(logs, active, counts(epochs), 3, window, 1, barrier=True)
    got = vfb2.replay(problem, parties, y, active, epochs, logs)
    points: list[Array] = []
    expected = vfb2.centralised(problem, X, y, algorithm, STEP, epochs, vector(9), hook=points.append)
    assert far(vfb2.whole(parties, columns((3, 2, 2))), expected) < 1e-12
    assert [far(block, party.w) for block, party in zip(got.blocks, parties, strict=True)] == [0, 0, 0]
    assert len(got.thetas) == sum(len(own) for epoch in epochs for own in epoch)
    second = problem.thetas(X[epochs[0][0][1]] @ points[len(active) - 1], y[epochs[0][0][1]])
    assert far(got.thetas[active[0], 1], second) < 1e-12


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
    assert got.thetas[0, 0][0] == pytest.approx(theta_a, abs=1e-15)
    assert got.thetas[0, 1][0] == pytest.approx(theta_b, abs=1e-15)
    assert got.blocks[0][0] == pytest.approx(u - 0.1 * (theta_b + 0.1 * u), abs=1e-15)
    assert got.blocks[1][0] == pytest.approx(v - 0.1 * (2 * theta_b + 0.1 * v), abs=1e-15)


@given(
    seed=st.integers(0, 999),
    parties=st.integers(1, 4),
    window=st.integers(1, 4),
    skew=st.integers(0, 5),
    barrier=st.booleans(),
    data=st.data(),
)
def test_random_logs_are_legal_and_complete(
    seed: int, parties: int, window: int, skew: int, barrier: bool, data: st.DataObject
) -> None:
    active = data.draw(st.permutations(range(parties)))[: data.draw(st.integers(1, parties))]
    updates = [data.draw(st.integers(2, 4))]
    updates += [updates[0] - data.draw(st.integers(0, 1)) for _ in active[1:]]
    logs = vfb2.random_logs(np.random.default_rng(seed), parties, active, updates, 3, window, skew, barrier)
    vfb2.check_logs(logs, active, updates, 3, window, skew, barrier)
    for p, log in enumerate(logs):
        kinds = Counter((event.kind, event.active) for event in log)
        for a, number in zip(active, updates, strict=True):
            assert kinds["apply", a] == kinds["theta" if p == a else "partial", a] == 3 * number


def test_the_check_of_logs_sees_every_offence() -> None:
    logs = vfb2.random_logs(np.random.default_rng(0), 3, ACTIVE, [4, 4], 2, 3, 2, barrier=False)
    check = vfb2.check_logs
    check(logs, ACTIVE, [4, 4], 2, 3, 2, False)
    with pytest.raises(ValueError, match="window 1,"):
        check(logs, ACTIVE, [4, 4], 2, 1, 2, False)
    with pytest.raises(ValueError, match="skew 0"):
        check(logs, ACTIVE, [4, 4], 2, 3, 0, False)
    with pytest.raises(ValueError, match=r"update=4\).*epoch"):
        check(logs, ACTIVE, [4, 4], 2, 3, 2, True)
    swapped = [list(log) for log in logs]
    i, j = (swapped[1].index(Event("apply", 0, t)) for t in (0, 1))
    swapped[1][i], swapped[1][j] = swapped[1][j], swapped[1][i]
    with pytest.raises(ValueError, match=r"party 1: .*order"):
        check(swapped, ACTIVE, [4, 4], 2, 3, 2, False)
    with pytest.raises(ValueError, match="order"):
        check([log[:-1] for log in logs], ACTIVE, [4, 4], 2, 3, 2, False)
    with pytest.raises(ValueError, match="after the last"):
        check([[*log, log[-1]] for log in logs], ACTIVE, [4, 4], 2, 3, 2, False)


@pytest.mark.parametrize("barrier", [False, True])
def test_random_logs_reach_their_bounds(barrier: bool) -> None:
    """The generator finds runs as late as the window and the skew allow, and does not go past them."""
    late, skewed = 0, 0
    for seed in range(20):
        logs = vfb2.random_logs(np.random.default_rng(seed), 3, ACTIVE, [6, 6], 1, 3, 4, barrier)
        for p, log in enumerate(logs):
            applied = dict.fromkeys(ACTIVE, 0)
            for kind, a, t in log:
                applied[a] += kind == "apply"
                if kind == "partial":
                    late = max(late, t - applied[a])
                    skewed = max([skewed, *(t - applied[b] for b in ACTIVE if applied[b] < 6)])
            assert applied == dict.fromkeys(ACTIVE, 6), p
    assert (late, skewed) == (2, 4)


@ALGORITHM
@pytest.mark.parametrize("seed", range(4))
def test_random_logs_converge(algorithm: str, seed: int) -> None:
    (X, y), problem, epochs = data("logistic"), Problem("logistic", 0.1), plan(2, 5, 100)
    parties = blocks(problem, X, algorithm, 0.6)
    rng = np.random.default_rng(seed)
    logs = vfb2.random_logs(rng, 3, ACTIVE, counts(epochs), 100, 3, 4, barrier=algorithm == "svrg")
    late = vfb2.replay(problem, parties, y, ACTIVE, epochs, logs)
    w, best = vfb2.whole(parties, columns((3, 2, 2))), minimiser(problem, X, y)
    assert far(w, best) < (0.1 if algorithm == "sgd" else 1e-12)
    assert problem.value(X, y, w) - problem.value(X, y, best) < (1e-3 if algorithm == "sgd" else 1e-15)
    logs = vfb2.synchronous_logs(3, ACTIVE, counts(epochs), 100)
    prompt = vfb2.replay(problem, blocks(problem, X, algorithm, 0.6), y, ACTIVE, epochs, logs)
    assert max(far(late.thetas[0, t], prompt.thetas[0, t]) for t in range(3)) > 1e-2


def test_only_the_order_within_a_party_matters() -> None:
    """A global order drawn anew gives the same bits: the parties are renamed so that replay visits them otherwise."""
    (X, y), problem, epochs, cut = data("ridge"), Problem("ridge", 0.1), plan(2, 4, 3), columns((3, 2, 2))
    logs = vfb2.random_logs(np.random.default_rng(3), 3, [2, 0], counts(epochs), 3, 3, 4, barrier=False)
    got = vfb2.replay(problem, vfb2.make_parties(problem, X, cut, "saga", STEP), y, [2, 0], epochs, logs)
    name = [1, 2, 0]  # old -> new
    renamed = [[event._replace(active=name[event.active]) for event in logs[p]] for p in (2, 0, 1)]
    parties = vfb2.make_parties(problem, X, [cut[p] for p in (2, 0, 1)], "saga", STEP)
    again = vfb2.replay(problem, parties, y, [0, 1], epochs, renamed)
    for p in range(3):
        assert far(again.blocks[name[p]], got.blocks[p]) < 1e-13


def test_rounded_replay_differs_by_the_ring_alone() -> None:
    (X, y), problem, epochs = data("ridge"), Problem("ridge", 0.1), plan(2, 4, 3)
    logs = vfb2.random_logs(np.random.default_rng(3), 3, ACTIVE, counts(epochs), 3, 3, 4, barrier=False)
    exact, rounded = (
        vfb2.replay(problem, blocks(problem, X, "saga"), y, ACTIVE, epochs, logs, rounded=r) for r in (False, True)
    )
    assert 1e-14 < max(far(a, b) for a, b in zip(exact.blocks, rounded.blocks, strict=True)) < 1e-11


def test_logs_that_no_run_can_write_are_refused() -> None:
    X, y = data("ridge")
    problem, epochs = Problem("ridge", 0.1), plan(1, 10, 2)
    good = vfb2.synchronous_logs(3, [1], [3], 2)

    def change(p: int, log: list[Event]) -> list[list[Event]]:
        return [log if r == p else list(own) for r, own in enumerate(good)]

    for logs, words in [
        (change(0, [Event("theta", 1, 0), *good[0]]), "another than the dominator"),
        (change(1, [Event("partial", 1, 0), *good[1]]), "by the dominator"),
        (change(0, [good[0][0], *good[0]]), "second time"),
        (change(1, [good[1][0], *good[1]]), "second time"),
        (change(0, [*good[0], good[0][-1]]), "second time"),
        (change(0, [good[0][1], good[0][0], *good[0][2:]]), "wait for one another"),
        (change(0, good[0][:-1]), "never applied"),
        (change(2, [Event("partial", 1, 6), *good[2]]), "not an update"),
    ]:
        for algorithm in ("sgd", "saga"):
            with pytest.raises(ValueError, match=words):
                vfb2.replay(problem, blocks(problem, X, algorithm), y, [1], epochs, logs)
    with pytest.raises(ValueError, match="not an update"):
        vfb2.replay(problem, blocks(problem, X, "svrg"), y, [1], epochs, change(2, [Event("partial", 1, 6), *good[2]]))
    late = [Event("partial", 1, 3), Event("apply", 1, 2)]
    mixed = change(0, [*good[0][:5], *late, *good[0][7:]])
    vfb2.replay(problem, blocks(problem, X, "saga"), y, [1], epochs, mixed)
    with pytest.raises(ValueError, match="after the snapshot"):
        vfb2.replay(problem, blocks(problem, X, "svrg"), y, [1], epochs, mixed)
    missing = change(0, [event for event in good[0] if event != ("apply", 1, 2)])
    with pytest.raises(ValueError, match=r"never applied: \[\(0, 1, 2\)\]"):
        vfb2.replay(problem, blocks(problem, X, "svrg"), y, [1], epochs, missing)


# Masked sums.


@given(st.floats(-(2**22), 2**22, exclude_min=True, exclude_max=True))
def test_the_ring_holds_a_number_to_half_a_unit(value: float) -> None:
    element = vfb2.encode(value)
    assert 0 <= element < 2**64
    assert abs(vfb2.decode(element) - value) <= 2**-41
    assert vfb2.decode(-element % 2**64) == -vfb2.decode(element)


def test_the_ring_by_hand() -> None:
    assert vfb2.encode(1.5) == 3 * 2**39
    assert vfb2.encode(-(2.0**-40)) == 2**64 - 1
    assert [vfb2.encode(k * 2.0**-41) for k in (1, 3, -1, 5)] == [0, 2, 0, 2]
    assert vfb2.decode(2**63) == -(2.0**23)
    assert vfb2.decode(2**63 - 2**10) == 2.0**23 - 2.0**-30
    for value in (2.0**22, -(2.0**22), float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not within"):
            vfb2.encode(value)
    assert vfb2.ring_sum([np.array([0.5, 1.0]), np.array([-0.75, 2.0]), np.array([1.0, -4.0])]).tolist() == [0.75, -1]


@given(parties=st.integers(3, 7), seed=st.integers(0, 99), data=st.data())
def test_pairwise_masks_cancel_exactly(parties: int, seed: int, data: st.DataObject) -> None:
    dominator = data.draw(st.integers(0, parties - 1))
    rng = np.random.default_rng(seed)
    others = [p for p in range(parties) if p != dominator]
    pads = {(i, j): int(rng.integers(2**64, dtype=np.uint64)) for i in others for j in others if i < j}
    masks = vfb2.pairwise_masks(parties, dominator, pads)
    assert sorted(masks) == others
    assert sum(masks.values()) % 2**64 == 0
    values = {p: int(rng.integers(2**64, dtype=np.uint64)) for p in others}
    assert sum(values[p] + masks[p] for p in others) % 2**64 == sum(values.values()) % 2**64
    i, j = others[0], others[1]
    moved = vfb2.pairwise_masks(parties, dominator, pads | {(i, j): pads[i, j] + 5})
    assert [(moved[p] - masks[p]) % 2**64 for p in (i, j)] == [5, 2**64 - 5]


# Two trees. Figure 5, counted from 0: the aggregator is party 0.

FIGURE_5A = (-1, 0, 0, 2)
FIGURE_5B = (-1, 0, 0, 1)


def rooted_trees(parties: int) -> list[tuple[int, ...]]:
    """All trees on `parties` rooted at 0."""
    trees = []
    for tail in product(range(parties), repeat=parties - 1):
        try:
            if len(vfb2.subtree((-1, *tail), 0)) == parties:
                trees.append((-1, *tail))
        except RecursionError:
            continue
    return trees


@given(st.lists(st.integers(0, 2**64 - 1), min_size=8, max_size=8))
def test_the_two_trees_of_figure_5_give_the_sum(numbers: list[int]) -> None:
    values, masks = numbers[:4], numbers[4:]
    assert vfb2.two_trees_sum(FIGURE_5A, FIGURE_5B, values, masks) == sum(values) % 2**64
    assert vfb2.two_trees_sum((1, 2, 3, -1), FIGURE_5B, values, masks) == sum(values) % 2**64
    sent = vfb2.tree_messages(FIGURE_5A, values)
    assert sent == {0: sum(values) % 2**64, 1: values[1], 2: (values[2] + values[3]) % 2**64, 3: values[3]}


def test_figure_5_is_significantly_different_and_sound() -> None:
    assert vfb2.significantly_different(FIGURE_5A, FIGURE_5B)
    assert vfb2.leaks(FIGURE_5A, FIGURE_5B, 0) == {}
    assert not vfb2.significantly_different(FIGURE_5A, FIGURE_5A)
    assert vfb2.leaks(FIGURE_5A, FIGURE_5A, 0).keys() == {0, 2}
    assert vfb2.exposed(FIGURE_5A, FIGURE_5A, 0, {2}) == [[0, 0, 0, 1]]


def test_the_papers_collusion_at_figure_5() -> None:
    """Appendix B: parties 3 and 2 (here 2 and 1) together have party 4's (here 3's) masked value and its mask."""
    assert vfb2.exposed(FIGURE_5A, FIGURE_5B, 0, {2, 1}) == [[0, 0, 0, 1]]
    assert vfb2.exposed(FIGURE_5A, FIGURE_5B, 0, {0, 3}) == [[0, 1, 0, 0]]
    assert vfb2.exposed(FIGURE_5A, FIGURE_5B, 0, {0, 1}) == []
    assert vfb2.exposed(FIGURE_5A, FIGURE_5B, 0, {1, 3}) == []


def test_definition_4_passes_pairs_that_leak() -> None:
    """It ignores subtrees of one party. Two stars: the dominator gets every value masked, and every mask."""
    star = (-1, 0, 0)
    assert vfb2.significantly_different(star, star)
    assert vfb2.leaks(star, star, 0) == {0: [[0, 1, 0]]}  # and with the total, party 2's
    # Party 1 gets party 3's masked value and its mask. Here the sums that a party forms while it waits differ as well:
    # {0, 2} {1, 3} in one tree, {1, 2} {1, 2, 3} in the other.
    first, second = (-1, 0, 0, 1), (-1, 0, 1, 1)
    assert vfb2.significantly_different(first, second)
    assert vfb2.leaks(first, second, 0) == {1: [[0, 0, 0, 1]]}


def test_definition_4_refuses_pairs_that_are_sound() -> None:
    """What matters is who receives both sums, not that both exist. Two chains; and {2, 3} sent to party 1 and to 0."""
    for first, second in [((-1, 0, 1), (-1, 2, 0)), ((-1, 0, 1, 2), (-1, 0, 3, 0))]:
        assert not vfb2.significantly_different(first, second)
        assert vfb2.leaks(first, second, 0) == {}


def test_neither_check_implies_the_other() -> None:
    """Pairs of trees rooted at the dominator, by (Definition 4, sound). For three parties: see the chains and stars."""
    for parties, expected in ((3, (4, 1, 2, 2)), (4, (114, 25, 54, 63))):
        found = Counter(
            (vfb2.significantly_different(a, b), not vfb2.leaks(a, b, 0))
            for a, b in product(rooted_trees(parties), repeat=2)
        )
        assert (found[True, True], found[True, False], found[False, True], found[False, False]) == expected


@pytest.mark.parametrize(("parties", "base"), [(3, 3), (4, 2)])
def test_the_check_is_perfect_hiding(parties: int, base: int) -> None:
    """Over all masks mod `base`: a party's view has one distribution for all values that agree in what it may know."""
    trees = rooted_trees(parties)
    if parties == 3:  # and all other roots
        trees += [tuple(rename(tree, root)) for tree in trees for root in (1, 2)]
    vectors = list(product(range(base), repeat=parties))
    sent = {(tree, v): {p: x % base for p, x in vfb2.tree_messages(tree, v).items()} for tree in trees for v in vectors}
    for first, second in product(trees, repeat=2):
        sound = [not vfb2.exposed(first, second, 0, {p}) for p in range(parties)]
        assert [hides(first, second, p, vectors, base, sent) for p in range(parties)] == sound, (first, second)


def rename(tree: Sequence[int], root: int) -> list[int]:
    """The tree with 0 and `root` exchanged."""
    swap = {0: root, root: 0}
    renamed = [0] * len(tree)
    for p, above in enumerate(tree):
        renamed[swap.get(p, p)] = swap.get(above, above)
    return renamed


def hides(
    first: tuple[int, ...],
    second: tuple[int, ...],
    party: int,
    vectors: Sequence[tuple[int, ...]],
    base: int,
    sent: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[int, int]],
) -> bool:
    def heard(tree: tuple[int, ...], numbers: tuple[int, ...]) -> tuple[int, ...]:
        whole = (sent[tree, numbers][tree.index(-1)],) if party == 0 else ()
        return whole + tuple(sent[tree, numbers][p] for p in range(len(tree)) if tree[p] == party)

    views: dict[tuple[int, ...], Counter[tuple[int, ...]]] = {}
    for values in vectors:
        view: Counter[tuple[int, ...]] = Counter()
        for masks in vectors:
            masked = tuple((v + mask) % base for v, mask in zip(values, masks, strict=True))
            view[(masks[party], *heard(first, masked), *heard(second, masks))] += 1
        known = (values[party], sum(values) % base) if party == 0 else (values[party],)
        if views.setdefault(known, view) != view:
            return False
    return True


@given(st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=4))
def test_row_reduction_keeps_the_space(rows: list[list[int]]) -> None:
    reduced = vfb2.row_reduce(rows)
    assert len(reduced) == np.linalg.matrix_rank(np.array(rows))
    assert len(vfb2.row_reduce([*rows, *reduced])) == len(reduced)
    pivots = [next(j for j, x in enumerate(row) if x) for row in reduced]
    assert pivots == sorted(set(pivots))
    for i, row in enumerate(reduced):
        assert [row[j] for j in pivots] == [Fraction(int(k == i)) for k in range(len(pivots))]


# Label privacy.


@given(st.fractions(0, Fraction(49, 100)))
def test_the_corrected_loss_is_unbiased_exactly(rate: Fraction) -> None:
    """Kept with 1 - r, flipped with r: l(z, y) comes back with weight 1, l(z, -y) with weight 0."""
    at_label, at_other = vfb2.correction(rate)
    assert (1 - rate) * at_label + rate * at_other == 1
    assert (1 - rate) * at_other + rate * at_label == 0


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_the_corrected_problem_is_the_mean_over_the_flips(name: str, epsilon: float) -> None:
    X, y = data(name)
    problem, rate, w = Problem(name, 0.2), vfb2.flip_rate(epsilon), vector(3)
    noisy = vfb2.Corrected(name, 0.2, rate)
    for attribute in ("value", "gradient"):
        kept, flipped = (getattr(noisy, attribute)(X, labels, w) for labels in (y, -y))
        expected = getattr(problem, attribute)(X, y, w)
        assert np.max(np.abs((1 - rate) * kept + rate * flipped - expected)) < 1e-14
        assert np.max(np.abs(kept - expected)) > 1e-2
    for e in np.eye(COLUMNS):
        numeric = (noisy.value(X, y, w + 1e-6 * e) - noisy.value(X, y, w - 1e-6 * e)) / 2e-6
        assert noisy.gradient(X, y, w) @ e == pytest.approx(numeric, abs=1e-8)
    assert far(vfb2.Corrected(name, 0.2, 0.0).gradient(X, y, w), problem.gradient(X, y, w)) == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_labels_flip_at_the_rate_of_epsilon(epsilon: float) -> None:
    rate = vfb2.flip_rate(epsilon)
    assert (1 - rate) / rate == pytest.approx(np.exp(epsilon), rel=1e-14)
    grid = (np.arange(1000) + 0.5) / 1000
    for y in (np.ones(1000), -np.ones(1000)):
        assert np.mean(vfb2.randomised_response(y, epsilon, grid) != y) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize(("name", "rate"), [("ridge", 0.1), ("robust", 0.1), ("logistic", 0.5), ("logistic", -0.1)])
def test_what_cannot_be_corrected_is_refused(name: str, rate: float) -> None:
    with pytest.raises(ValueError, match=name):
        vfb2.Corrected(name, 0.1, rate)
