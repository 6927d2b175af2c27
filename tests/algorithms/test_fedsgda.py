"""FedSGDA with its four estimators: message by message against the NumPy reference.

Further tests: special cases that must coincide, lost replies, messages, networks with batch norm and dropout, and wrong
input.
"""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message

from apps.config import Scalar, parse_run_config
from apps.server_app import RunFailedError
from apps.sites import resources
from methods.fedsgda import GRADIENTS, FedSGDADown, LocalGradient
from payloads.wire import PAYLOAD
from problems.randomness import stream
from strategies.minimax import FedSGDA
from tests.algorithms import minimax_problems
from tests.algorithms.watched import CLOSE, EXACT, STEPS, Watched
from tests.battery.federation import Exchange, federate, model_of, save_npz, sites_of
from tests.reference import minimax
from tests.reference.minimax import Array, Index
from tests.refusals import states

NAMES = ("mb", "storm", "spider", "svrg")
CLIENTS, ROUNDS, PERIOD = 6, 8, 3
KEYS: dict[str, Scalar] = {
    "num-server-rounds": ROUNDS,
    "batch-size": 7,
    "fraction-train": 0.5,
    "fedsgda.alpha-constant": 0.6,
    "fedsgda.period": PERIOD,
    "fedsgda.large-batch": 4,
}
PL: dict[str, Scalar] = {"dataset": "synthetic-pl", "fedsgda.primal-step": 0.002, "fedsgda.dual-step": 0.005}
AUC: dict[str, Scalar] = {"fedsgda.primal-step": 0.2, "fedsgda.dual-step": 0.5}
OWN: dict[str, Scalar] = {"fedsgda.primal-step": 0.05, "fedsgda.dual-step": 0.1}
USER = "tests.algorithms.minimax_problems:"

each_estimator = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def unequal(tmp_path: Path) -> dict[str, Scalar]:
    """Sites of 1 to 98 samples; some have one class only."""
    rng = np.random.default_rng(5)
    labels = (rng.random(150) < 0.3).astype(int)
    saved = save_npz(tmp_path / "unequal.npz", rng.normal(size=(150, 3)) + 0.7 * labels[:, None], labels)
    return {**saved, "partition": "positives-skewed", "partition-alpha": 0.2}


# A finished run, and the reference with its clients and batches.


class LeastSquares:
    """`minimax_problems.LeastSquares` with its gradient written out."""

    dual = False

    def __init__(self, features: list[Array], labels: list[Array]) -> None:
        self.features, self.labels, self.num_clients = features, labels, len(features)
        self.primal_dim = features[0].shape[1]
        self.dual_dim = self.primal_dim if self.dual else 0

    def value(self, i: int, z: Array, rows: Index | None = None) -> float:
        raise NotImplementedError

    def gradient(self, i: int, z: Array, rows: Index | None = None) -> Array:
        chosen = slice(None) if rows is None else rows
        x, y = z[: self.primal_dim], z[self.primal_dim :]
        moved = self.features[i][chosen] + (y if self.dual else 0.0)
        rest = moved @ x - self.labels[i][chosen]  # (n,)
        primal = (moved * rest[:, None]).mean(0)
        weight = self.num_clients * len(self.labels[i]) / sum(map(len, self.labels))
        return weight * (np.concatenate([primal, rest.mean() * x - 4 * y]) if self.dual else primal)


class Robust(LeastSquares):
    """`minimax_problems.Robust`."""

    dual = True


def down_of(exchange: Exchange) -> FedSGDADown:
    """Return the payload of a message; an empty payload if none was sent."""
    records = exchange.message.content.config_records
    return FedSGDADown.from_record(records[PAYLOAD]) if PAYLOAD in records else FedSGDADown()


def gradient_of(exchange: Exchange) -> Array:
    return LocalGradient.from_record(exchange.reply.content.config_records[PAYLOAD]).gradient


class Losses:
    """A tamper that replaces a random share of the replies by errors, and records which."""

    def __init__(self, share: float, seed: int) -> None:
        self.share, self.rng = share, np.random.default_rng(seed)
        self.lost: set[tuple[int, str, int]] = set()

    def __call__(self, exchange: Exchange) -> Message:
        if self.rng.random() >= self.share:
            return exchange.reply
        self.lost.add((exchange.server_round, exchange.phase, exchange.partition))
        return Message(Error(2, "lost"), reply_to=exchange.message)


class Finished(Watched):
    """A finished run with all its messages."""

    def __init__(
        self, folder: Path, name: str, keys: dict[str, Scalar], clients: int = CLIENTS, tamper: Losses | None = None
    ) -> None:
        self.name, self.lost = name, set() if tamper is None else tamper.lost
        super().__init__(folder, {**KEYS, "strategy": f"fedsgda-{name}", **keys}, clients, tamper)

    def exchanges(self, server_round: int, phase: str = "") -> list[Exchange]:
        """Return the exchanges whose replies arrived."""
        found = super().exchanges(server_round, phase)
        return [e for e in found if (server_round, phase, e.partition) not in self.lost]

    def places(self, server_round: int, phase: str = "") -> list[int]:
        return [e.partition for e in self.exchanges(server_round, phase)]

    def estimate(self, t: int) -> Array:
        found = down_of(self.exchanges(t + 1)[0]).estimate
        assert found is not None
        return found

    # for the reference

    @cached_property
    def problem(self) -> Any:
        kind = {USER + "Robust": Robust, USER + "LeastSquares": LeastSquares}.get(self.training.loss)
        return self.saddle() if kind is None else kind(*self.shares)

    @property
    def rho(self) -> float:
        if not isinstance(self.settings.rho, str):
            return self.settings.rho
        return 1 / 3 if self.name == "storm" else 0.0

    def alpha(self, t: int) -> float:
        return minimax.storm_alpha(self.settings.alpha_constant, self.rho, t)

    def starts(self, t: int) -> bool:
        """Return whether the estimator takes a large batch in round t."""
        return self.name in ("spider", "svrg") and t % self.settings.period == 0

    def estimator(self) -> minimax.Estimator:
        if self.name == "mb":
            return minimax.MiniBatch()
        if self.name == "storm":
            return minimax.Storm(self.alpha)
        return (minimax.Spider if self.name == "spider" else minimax.Svrg)(self.settings.period)

    def weight(self, t: int) -> float:
        """Return the factor of the gradient at the second point; 0: no second point."""
        if self.name == "mb" or t == 0 or self.starts(t):
            return 0.0
        return 1 - self.alpha(t) if self.name == "storm" else 1.0


def assert_follows(one: Finished) -> None:
    """Assert that all messages of all rounds, and the final model, equal the reference's."""
    problem, estimator, settings = one.problem, one.estimator(), one.settings
    counts = set() if one.training.loss == "synthetic-pl" else {"population"}  # its sites have equal sizes
    z = start = previous = snapshot = one.models[0]
    for t in range(one.rounds):
        asked, active = one.exchanges(t + 1, GRADIENTS), one.exchanges(t + 1)
        mean_gradient = minimax.mean_gradient(problem, [e.partition for e in asked])
        estimate = estimator.update(t, z, previous, mean_gradient)
        snapshot = z if one.starts(t) else snapshot
        weight, second = one.weight(t), snapshot if one.name == "svrg" else previous
        for e in asked:
            np.testing.assert_allclose(model_of(e.message)[0], z, **CLOSE)
            expected = problem.gradient(e.partition, z)
            assert set(down_of(e).arrays()) == counts | ({"reference", "weight"} if weight else set())
            if weight:
                expected = expected - weight * problem.gradient(e.partition, second)
                np.testing.assert_allclose(down_of(e).reference, second, **CLOSE)
                np.testing.assert_allclose(down_of(e).weight, [weight], **CLOSE)
            np.testing.assert_allclose(gradient_of(e), expected, **CLOSE)
            assert model_of(e.reply) == []
        steps = [minimax.decayed(c, one.rho, t) for c in (settings.primal_step, settings.dual_step)]
        ends, K = [], one.training.local_steps
        for e in active:
            np.testing.assert_allclose(model_of(e.message)[0], z, **CLOSE)
            assert set(down_of(e).arrays()) == counts | {"estimate"}
            np.testing.assert_allclose(down_of(e).estimate, estimate, **CLOSE)
            rows = lambda i, k, first=t * K: one.batch(i, first + k)  # noqa: E731
            ends.append(minimax.fedsgda_round(problem, z, estimate, [e.partition], rows, K, *steps))
            np.testing.assert_allclose(model_of(e.reply)[0], ends[-1], **CLOSE)
            assert PAYLOAD not in e.reply.content.config_records
        previous, z = z, np.mean(ends, axis=0)
    np.testing.assert_allclose(one.saved, z, **CLOSE)
    assert np.linalg.norm(z - start) > 0.05


# Whole runs against the reference.


DECAY: dict[str, Scalar] = {"fedsgda.large-batch": "auto", "fedsgda.rho": 0.25, "fedsgda.alpha-constant": 2.0}


@pytest.mark.parametrize("more", [{}, DECAY], ids=["base", "all-decay"])
@each_estimator
def test_the_synthetic_problem_follows_the_reference(name: str, more: dict[str, Scalar], tmp_path: Path) -> None:
    """The two phases draw their clients independently."""
    one = Finished(tmp_path, name, {**PL, **more})
    for t in range(ROUNDS):
        large = 4 if not more else CLIENTS
        for word, phase, count in (
            ("gradient clients", GRADIENTS, large if one.starts(t) else 3),
            ("sample clients", "", 3),
        ):
            drawn = stream(3, word, t + 1).choice(CLIENTS, count, replace=False)
            assert one.places(t + 1, phase) == sorted(drawn.tolist())
    assert_follows(one)


@pytest.mark.parametrize(
    "more", [{}, {"score": "sigmoid", "positive-label": "0"}], ids=["logit", "sigmoid-other-class"]
)
@each_estimator
def test_auc_follows_the_reference(
    name: str, more: dict[str, Scalar], unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Finished(tmp_path, name, {**unequal, **AUC, **more})
    counts = [np.bincount(labels, minlength=2) for labels in one.shares[1]]
    assert any(count.min() == 0 for count in counts)
    assert len({count.sum() for count in counts}) > 1
    assert_follows(one)
    for e in one.grid.exchanges:
        negatives, positives = np.sum(counts, axis=0)
        total = negatives + positives
        np.testing.assert_array_equal(down_of(e).population, [positives / total, total / CLIENTS])


@pytest.mark.parametrize("more", [{"fedsgda.rho": 0.4}, {"batch-size": 0, "local-steps": 1}], ids=["decay", "one-step"])
@each_estimator
def test_a_problem_of_the_user_s_own_follows_the_reference(
    name: str, more: dict[str, Scalar], unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    one = Finished(tmp_path, name, {**unequal, **OWN, **more, "loss": USER + "Robust"})
    ramp = np.arange(3)
    np.testing.assert_allclose(one.models[0], np.concatenate([0.1 * ramp + 0.2, 0.3 - 0.1 * ramp]), **EXACT)
    assert_follows(one)


@pytest.mark.parametrize("name", ["storm", "svrg"])
def test_a_problem_without_a_dual_follows_the_reference(name: str, unequal: dict[str, Scalar], tmp_path: Path) -> None:
    one = Finished(tmp_path, name, {**unequal, **OWN, "loss": USER + "LeastSquares"})
    assert one.run.model["y"].shape == (0,)
    assert_follows(one)


# Properties of the method.


@pytest.mark.parametrize("problem", ["pl", "auc"])
def test_storm_without_memory_and_periods_of_one_are_the_minibatch_estimator(
    problem: str, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    common = {**(PL if problem == "pl" else {**unequal, **AUC}), "fedsgda.rho": 0.3, "dtype": "float32"}
    common |= {"fedsgda.alpha-constant": 1e9, "fedsgda.period": 1, "fedsgda.large-batch": 3}
    first, *others = (Finished(tmp_path, name, common).run for name in NAMES)
    for run in others:
        assert run.untimed == first.untimed
        assert run.model_bytes == first.model_bytes


# Lost replies.


@pytest.mark.parametrize(("name", "replace"), [("mb", True), ("storm", False), ("spider", True), ("svrg", False)])
def test_the_estimate_is_of_those_who_answered(
    name: str, replace: bool, unequal: dict[str, Scalar], tmp_path: Path
) -> None:
    losses = Losses(0.3, seed=1)
    keys = {
        **unequal,
        **AUC,
        "num-server-rounds": 12,
        "fraction-train": 0.67,
        "fedsgda.large-batch": 5,
        "min-train-nodes": 1,
    }
    one = Finished(tmp_path, name, {**keys, "replace-dropped": replace}, tamper=losses)
    assert_follows(one)
    assert {phase for _, phase, _ in losses.lost} == {"", GRADIENTS}
    answered = [len(one.places(t + 1, GRADIENTS)) for t in range(12)]
    wanted = [5 if one.starts(t) else 4 for t in range(12)]
    if replace:  # six clients: fewer replies only if more clients were lost than spare ones exist
        assert sum(a == b for a, b in zip(answered, wanted, strict=True)) >= 8
    else:
        assert answered != wanted


@each_estimator
def test_the_server_computes_in_float64_whatever_travels(name: str, tmp_path: Path) -> None:
    kept: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedSGDA, "snapshot", lambda self: kept.append(self.state) or kept[-1])
        Finished(tmp_path, name, {**PL, "dtype": "float32", "checkpoint-every": 1, "num-server-rounds": 2})
    states = [state.arrays() for state in kept if state is not None]
    assert {value.dtype.name for state in states for value in state.values()} == {"float64"}
    fields = ["previous", "estimate"] + ["snapshot", "snapshot_gradient"] * (name == "svrg")
    assert [list(state) for state in states] == [fields] * len(states) != []


# Networks with batch norm and with dropout.


@pytest.fixture
def even(tmp_path: Path) -> dict[str, Scalar]:
    """Four equal sites."""
    return {**sites_of([[0, 1, 0] * 8] * 4, tmp_path / "even.npz"), **AUC, "fedsgda.large-batch": 3}


@pytest.mark.parametrize("name", ["storm", "svrg"])
def test_other_networks_train_the_same_on_any_number_of_threads(
    name: str, even: dict[str, Scalar], tmp_path: Path
) -> None:
    keys = {**KEYS, **even, "strategy": f"fedsgda-{name}", "model": USER + "normed_and_dropped", "num-server-rounds": 4}
    one, four = (Watched(tmp_path, keys, 4, threads=threads).run for threads in (1, 4))
    assert one.untimed == four.untimed
    assert one.model_bytes == four.model_bytes
    assert [line["dropped"] for line in one.lines] == [{}] * 5
    assert np.isfinite(one.numbers()).all()


@pytest.mark.parametrize("network", ["normed", "dropped", "normed_and_dropped"])
def test_the_first_step_is_along_the_estimate_exactly(network: str, even: dict[str, Scalar], tmp_path: Path) -> None:
    """A step's two gradients use the same batch and dropout mask, so all clients end at the same point, to the bit."""
    keys = {**even, "model": USER + network, "local-steps": 1, "num-server-rounds": 3}
    one = Finished(tmp_path, "mb", keys, clients=4)
    for t in range(3):
        (end,) = {model_of(e.reply)[0].tobytes() for e in one.exchanges(t + 1)}
        expected = one.models[t] + np.append(-0.2 * one.estimate(t)[:-1], 0.5 * one.estimate(t)[-1])
        np.testing.assert_allclose(np.frombuffer(end), expected, **EXACT)


def test_building_a_network_leaves_the_draws_of_another_thread_alone(even: dict[str, Scalar]) -> None:
    """A thread may build its network for its first message while another thread trains with dropout."""
    config = parse_run_config({**even, "strategy": "fedsgda-mb", "model": USER + "paused"})
    mine = resources.new_model(parse_run_config({**even, "strategy": "fedsgda-mb", "model": USER + "dropped"}), (4,))
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    minimax_problems.BUILDING.clear()
    minimax_problems.GO_ON.clear()
    builder = threading.Thread(target=resources.skeleton, args=(config, (4,)))
    with resources.turn(mine):
        torch.default_generator.manual_seed(5)
        builder.start()
        minimax_problems.BUILDING.wait(0.3)
        drawn = torch.rand(3)
        minimax_problems.GO_ON.set()
    builder.join()
    torch.testing.assert_close(drawn, expected, rtol=0, atol=0)


def test_later_steps_have_one_mask_in_both_gradients_too(even: dict[str, Scalar], tmp_path: Path) -> None:
    """With tiny steps, all points of a round nearly coincide, so its corrections are nearly zero."""
    tiny = {"fedsgda.primal-step": 1e-7, "fedsgda.dual-step": 1e-7, "fedsgda.alpha-constant": 1e-9}
    keys = {**even, **tiny, "model": USER + "dropped", "fedsgda.rho": 0.0, "num-server-rounds": 3}
    one = Finished(tmp_path, "storm", keys, clients=4)
    for t in range(3):
        if t:  # the difference in the gradient phase
            assert max(np.abs(gradient_of(e)).max() for e in one.exchanges(t + 1, GRADIENTS)) < 1e-4
        expected = STEPS * np.append(-1e-7 * one.estimate(t)[:-1], 1e-7 * one.estimate(t)[-1])
        for e in one.exchanges(t + 1):
            np.testing.assert_allclose(model_of(e.reply)[0] - one.models[t], expected, rtol=0, atol=1e-12)
    assert np.abs(one.estimate(0)).max() > 1e-2


def test_batch_norm_sees_every_batch_of_the_local_steps_once(even: dict[str, Scalar], tmp_path: Path) -> None:
    """Its running statistics come from forward passes on two batches, at z and at z + one step along the estimate."""
    keys: dict[str, Scalar] = {"model": USER + "normed", "num-server-rounds": 2, "local-steps": 2}
    one = Finished(tmp_path, "storm", {**even, **keys}, clients=4)
    for t in range(2):
        rates = np.array([-0.2] * (len(one.models[t]) - 1) + [0.5]) / (t + 1) ** (1 / 3)
        for e in one.exchanges(t + 1):
            (z, buffers), features = model_of(e.message), one.data.client(e.partition).features.astype(np.float64)
            mean, variance = np.split(buffers, 2)
            for k, point in enumerate((z, z + rates * one.estimate(t))):
                hidden = features[one.batch(e.partition, 2 * t + k)] @ point[:24].reshape(6, 4).T + point[24:30]
                mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0, ddof=1)
            np.testing.assert_allclose(model_of(e.reply)[1], np.concatenate([mean, variance]), **CLOSE)
    means = np.mean([model_of(e.reply)[1] for e in one.exchanges(1)], axis=0)
    for phase in (GRADIENTS, ""):
        np.testing.assert_allclose(model_of(one.exchanges(2, phase)[0].message)[1], means, **EXACT)


# Wrong input: one clear error for each.


def failure(path: Path, name: str, keys: dict[str, Scalar], clients: int = 3) -> str:
    """Return the error of a run that cannot start."""
    with pytest.raises(RunFailedError) as failed:
        federate(path, {"strategy": f"fedsgda-{name}", **keys}, clients)
    return str(failed.value)


def test_a_large_batch_is_at_least_the_fewest_replies(tmp_path: Path) -> None:
    """Two clients could never give five good replies."""
    one = Finished(tmp_path, "svrg", {**PL, "min-train-nodes": 5, "fedsgda.large-batch": 2, "num-server-rounds": 2})
    assert [len(one.places(t + 1, GRADIENTS)) for t in range(2)] == [5, 5]


def test_a_batch_larger_than_all_sites(tmp_path: Path) -> None:
    message = failure(tmp_path / "run", "mb", {**PL, "batch-size": 301})
    assert states(
        message,
        "batch-size: got 301, allowed: at most 300, since all 3 sites together have 300 samples",
    )


@pytest.mark.parametrize(
    ("problem", "parts"),
    [
        ("not_a_problem", ["not_a_problem', which returned Tensor, allowed: a MinimaxProblem"]),
        ("NoPrimal", ["NoPrimal', whose primal_dim is 0, allowed: an integer >= 1"]),
        ("WordPrimal", ["WordPrimal', whose primal_dim is 'four', allowed: an integer >= 1"]),
        ("NoSizes", ["NoSizes', whose primal_dim is None, allowed: an integer >= 1"]),
        ("NegativeDual", ["NegativeDual', whose dual_dim is -1, allowed: an integer >= 0"]),
        ("MisshapenGradients", ["MisshapenGradients.gradients: got shapes (3,) and (0,)", "(4,) in x and (0,) in y"]),
        ("ListedGradients", ["ListedGradients.gradients: got list, allowed: a pair of tensors (x, y)"]),
        ("VectorValue", ["VectorValue.value: got shape (", "allowed: a scalar tensor"]),
        ("PlainValue", ["PlainValue.value: got float, allowed: a scalar tensor"]),
        ("MisshapenStart", ["MisshapenStart.start: got shapes (5,) and (0,)", "allowed: (4,) in x and (0,) in y"]),
    ],
)
def test_a_broken_problem_is_named_with_what_was_expected(problem: str, parts: list[str], tmp_path: Path) -> None:
    assert hasattr(minimax_problems, problem)
    data = sites_of([[0, 1, 0] * 4] * 3, tmp_path / "data.npz")
    message = failure(tmp_path / "run", "mb", {**data, "loss": USER + problem})
    assert [part for part in parts if not states(message, part)] == []
