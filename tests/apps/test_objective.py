"""The evaluation of a composite run: objective, stationarity, distance to the optimum, support; wrong settings."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import apps.evaluation.composite
from apps.config import ConfigError, Scalar, parse_run_config
from apps.evaluation.composite import CompositeEvaluator, support_f1
from apps.server_app import RunFailedError
from apps.sites import resources
from simulations.results.records import COMPOSITE_METRICS
from tests.battery.federation import federate, save_npz
from tests.reference import composite
from tests.reference.composite import Prox, Smooth

SITES, ROWS, DIM = 3, 11, 4
WEIGHT, RIDGE = 0.1, 0.2
KEYS: dict[str, Scalar] = {"strategy": "composite", "model": "linear", "dtype": "float64"}
KEYS |= {"composite.weight": WEIGHT, "composite.ridge": RIDGE}
X = np.array([0.7, 0.0, -0.4, 0.0, 0.3])  # four weights and a bias


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps.evaluation.composite, "_optima", {})


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Scalar]:
    """Eleven rows in the order of the sites: four, four and three."""
    rng = np.random.default_rng(13)
    features = rng.normal(size=(ROWS, DIM))
    return save_npz(tmp_path / "data.npz", features, (features @ [1.5, 0.2, -1.0, 0.0] > 0.2).astype(int))


class Evaluated:
    """An evaluator, and NumPy's f for the same sites."""

    def __init__(self, flat: dict[str, Scalar]) -> None:
        self.config = parse_run_config({**KEYS, **flat})
        self.data = resources.federated_data(self.config.data, SITES)
        self.evaluator: Any = self.config.algorithm.evaluation.of_data(self.config, self.data)
        shares = [self.data.client(i) for i in range(SITES)]
        self.features = [share.features.astype(np.float64) for share in shares]
        self.labels = [2.0 * share.labels - 1.0 for share in shares]

    def __call__(self, x: np.ndarray) -> dict[str, float]:
        return self.evaluator([x.astype(self.config.training.dtype)])

    def problem(self) -> Smooth:
        """Return the problem of the linear model."""
        rows = [np.column_stack([A, np.ones(len(A))]) for A in self.features]
        loss = "squared" if self.config.training.loss == "squared-error" else "logistic"
        return Spared(rows, self.labels, self.config.family.ridge, loss)


class Spared(Smooth):
    """f whose ridge term omits the last coordinate, the bias."""

    def gradient(self, i: int, x: np.ndarray, rows: Any = None) -> np.ndarray:
        gradient = super().gradient(i, x, rows)
        gradient[-1] -= self.ridge * x[-1]
        return gradient


def on_weights(prox: Prox) -> Prox:
    return lambda x, step: np.append(prox(x[:-1], step), x[-1])


def written_out(one: Evaluated, x: np.ndarray) -> float:
    """Return the linear model's f without its ridge: the mean over all samples, or the plain mean over the sites."""
    means = []
    for A, b in zip(one.features, one.labels, strict=True):
        scores = A @ x[:-1] + x[-1]
        squared = one.config.training.loss == "squared-error"
        means.append(np.mean((scores - b) ** 2 / 2 if squared else np.log1p(np.exp(-b * scores))))
    examples = one.config.training.client_weights == "examples"
    return float(np.average(means, weights=[len(A) for A in one.features] if examples else None))


@pytest.mark.parametrize("client_weights", ["examples", "equal"])
@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_the_objective_is_the_mean_over_sites_and_g(loss: str, client_weights: str, data: dict[str, Scalar]) -> None:
    one = Evaluated({**data, "loss": loss, "client-weights": client_weights})
    assert [len(A) for A in one.features] == [4, 4, 3]
    # l1 and ridge act on the weights 0.7, 0, -0.4, 0, not on the bias
    expected = written_out(one, X) + RIDGE / 2 * (0.49 + 0.16) + WEIGHT * 1.1
    assert one(X)["objective"] == pytest.approx(expected, rel=1e-14)


def test_rows_in_float64_are_not_rounded() -> None:
    one = Evaluated({"dataset": "synthetic-sparse-logistic", "partition": "iid", "dtype": "float64"})
    x = np.append(np.linspace(-1.0, 1.0, one.features[0].shape[1]), 0.3)
    expected = written_out(one, x) + RIDGE / 2 * (x[:-1] @ x[:-1]) + WEIGHT * np.abs(x[:-1]).sum()
    assert one(x)["objective"] == pytest.approx(expected, rel=1e-13)


def test_biases_are_spared_unless_asked_for(data: dict[str, Scalar]) -> None:
    spared, whole, bias = (
        Evaluated({**data, "loss": "squared-error", "composite.parameters": name})
        for name in ("auto", "all", "output.bias")
    )
    f = written_out(spared, X)
    assert spared(X)["objective"] == pytest.approx(f + WEIGHT * 1.1 + RIDGE / 2 * 0.65, rel=1e-14)
    assert whole(X)["objective"] == pytest.approx(f + WEIGHT * 1.4 + RIDGE / 2 * 0.74, rel=1e-14)
    assert bias(X)["objective"] == pytest.approx(f + WEIGHT * 0.3 + RIDGE / 2 * 0.09, rel=1e-14)


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_stationarity_is_the_distance_of_zero_to_the_subdifferential(loss: str, data: dict[str, Scalar]) -> None:
    one = Evaluated({**data, "loss": loss})
    slope = one.problem().mean_gradient(X)
    at_zero = np.maximum(np.abs(slope[[1, 3]]) - WEIGHT, 0)
    parts = [slope[0] + WEIGHT, slope[2] - WEIGHT, *at_zero, slope[4]]
    assert one(X)["stationarity"] == pytest.approx(math.sqrt(sum(part**2 for part in parts)), rel=1e-12)
    best = composite.optimum(one.problem(), on_weights(composite.l1(WEIGHT)))
    assert one(best)["stationarity"] < 1e-13


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
def test_optimality_is_the_relative_distance_to_the_optimum(loss: str, data: dict[str, Scalar]) -> None:
    one = Evaluated({**data, "loss": loss})
    best = composite.optimum(one.problem(), on_weights(composite.l1(WEIGHT)))
    assert 2 < np.count_nonzero(best) < DIM + 1
    assert one(X)["optimality"] == pytest.approx(np.linalg.norm(X - best) / np.linalg.norm(best), rel=1e-9)
    assert one(best)["optimality"] < 1e-11
    assert one(2 * best)["optimality"] == pytest.approx(1.0, rel=1e-9)


def test_nonzeros_and_the_support(data: dict[str, Scalar]) -> None:
    one = Evaluated(data)
    best = composite.optimum(one.problem(), on_weights(composite.l1(WEIGHT)))
    assert (best != 0).tolist() == [True, False, True, False, True]
    assert support_f1(torch.zeros(3), torch.zeros(3)) == 1.0
    for x, nonzeros, f1 in [
        (X, 3, 1.0),
        (np.array([1.0, -0.0, 0.0, 0.0, 0.0]), 1, 2 * 1 / (1 + 3)),
        (np.array([0.0, 1.0, 0.0, 1.0, 0.0]), 2, 0.0),
        (np.ones(5), 5, 2 * 3 / (5 + 3)),
        (np.array([1.0, 1e-300, -1.0, 0.0, 0.0]), 3, 2 * 2 / (3 + 3)),
        (np.zeros(5), 0, 0.0),
    ]:
        found = one(x)
        assert (found["nonzeros"], found["support_f1"]) == (nonzeros, f1)


def test_a_network_has_an_objective_and_nonzeros_only(data: dict[str, Scalar]) -> None:
    one = Evaluated({**data, "model": "mlp"})
    (start,) = one.evaluator.start()
    x = start.copy()
    x[:7] = 0
    found = one(x)
    assert {*found} & {*COMPOSITE_METRICS} == {"objective", "nonzeros"}
    assert found["nonzeros"] == len(x) - 7
    hidden, bias, output, constant = np.split(x, np.cumsum([64 * DIM, 64, 64]))
    means = []
    for A, b in zip(one.features, one.labels, strict=True):
        scores = np.maximum(A @ hidden.reshape(64, DIM).T + bias, 0) @ output + constant
        means.append(np.mean(np.log1p(np.exp(-b * scores))))
    penalised = np.concatenate([hidden, output])
    g = WEIGHT * np.abs(penalised).sum() + RIDGE / 2 * (penalised**2).sum()
    assert found["objective"] == pytest.approx(np.average(means, weights=[4, 4, 3]) + g, rel=1e-12)


REFUSED: list[tuple[dict[str, Scalar], list[str]]] = [
    ({"composite.parameters": "hidden.weight"}, ["model 'linear'", "'hidden.weight'", "output.weight, output.bias"]),
    ({"composite.penalty": "nuclear-norm", "composite.parameters": "all"}, ["'output.bias' of shape (1,) is not a"]),
    (
        {"composite.penalty": "group-lasso", "composite.groups": "columns", "composite.parameters": "all"},
        ["with model 'linear'", "'columns'", "'output.bias' of shape (1,) has no axis 1"],
    ),
]


@pytest.mark.parametrize(("values", "parts"), REFUSED)
def test_a_penalty_that_does_not_fit_the_model_is_refused(
    values: dict[str, Scalar], parts: list[str], data: dict[str, Scalar], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as refused:
        Evaluated({**data, **values})
    assert [part for part in parts if part not in str(refused.value)] == []
    with pytest.raises(RunFailedError) as failed:
        federate(tmp_path / "run", {**KEYS, **data, **values}, SITES)
    assert str(failed.value) == str(refused.value)
    assert json.loads((tmp_path / "run" / "failure.json").read_text("utf-8"))["reason"] == str(refused.value)


@pytest.mark.parametrize("strategy", ["composite", "fedcanon", "fedmid", "fedda", "fast-fedda"])
def test_all_are_evaluated_so(strategy: str, data: dict[str, Scalar], tmp_path: Path) -> None:
    run, _ = federate(tmp_path / "run", {**KEYS, **data, "strategy": strategy, "num-server-rounds": 2}, SITES)
    assert all({*COMPOSITE_METRICS} <= {*line} for line in run.lines)
    one = Evaluated(data)
    assert isinstance(one.evaluator, CompositeEvaluator)
    x = np.concatenate([run.model["output.weight"].ravel(), run.model["output.bias"]])
    assert {name: run.lines[-1][name] for name in COMPOSITE_METRICS} == {
        name: value for name, value in one(x).items() if name in COMPOSITE_METRICS
    }
    assert run.result["metrics"]["objective"] == run.lines[-1]["objective"]
    assert run.result["best"]["objective"] == min(line["objective"] for line in run.lines)
