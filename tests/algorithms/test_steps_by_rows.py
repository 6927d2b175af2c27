"""Sites that take steps in proportion to their rows: against FedNova in NumPy, stacked, and under secure sums."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord

from apps.config import ConfigError, Scalar, parse_run_config
from apps.sites import resources
from payloads.record import PayloadError
from payloads.wire import CONFIG, MEAN_STEPS, MOST_ROWS
from tests.algorithms.test_sgdm import problem_of
from tests.algorithms.watched import CLOSE, ROUNDS, STEPS, Watched
from tests.battery.federation import federate
from tests.reference import scgdam
from tests.reference.minimax import Array
from tests.refusals import refuses

BY_ROWS: dict[str, Scalar] = {"strategy": "local-sgd", "steps-by-rows": True}
UNEQUAL: dict[str, Scalar] = {
    "partition": "dirichlet",
    "dataset": "breast-cancer",
    "batch-size": 8,
    "dtype": "float64",
    "steps-by-rows": True,
    "local-steps": 6,
    "num-server-rounds": 3,
}
EVERY = ("local-sgd", "scaffold", "fedx1", "fedx2", "coda", "codasca", "fedsgda-storm", "local-scgdam", "local-sgdm")


@pytest.mark.parametrize("client_weights", ["examples", "equal"])
@pytest.mark.parametrize("more", [{}, {"fraction-train": 0.5}, {"lr-decay": 0.5, "lr-decay-at": "0.5"}])
def test_it_is_fednova(client_weights: str, more: dict[str, Scalar], data: dict[str, Scalar], tmp_path: Path) -> None:
    """x + mean steps * (weighted mean of (y_i - x) / tau_i); the mean number of steps is over all sites."""
    one = Watched(tmp_path, {**data, **BY_ROWS, "client-weights": client_weights, **more})
    problem, w = problem_of(one), one.models[0]
    steps = [-(-STEPS * size // max(one.sizes)) for size in one.sizes]
    assert len(set(steps)) > 1
    weights = np.array(one.sizes if client_weights == "examples" else [1] * len(steps), float)
    mean_steps = weights @ steps / weights.sum()
    for r in range(1, ROUNDS + 1):
        changes = []
        for i in one.participants(r):

            def draw(client: int, k: int, first: int = (r - 1) * steps[i]) -> Array:
                return one.batch(client, first + k)

            # the drop is after half of each site's own steps
            own = np.arange((r - 1) * steps[i], r * steps[i])
            rate = one.training.learning_rate * np.where(own >= ROUNDS * steps[i] / 2, one.training.lr_decay, 1.0)
            changes.append((scgdam.fedprox_round(problem, w, [i], draw, steps[i], rate, 0.0) - w) / steps[i])
        w = w + mean_steps * np.average(changes, axis=0, weights=weights[one.participants(r)])
        np.testing.assert_allclose(one.models[r], w, **CLOSE)
    config = one.exchanges(1)[0].message.content[CONFIG]
    assert isinstance(config, ConfigRecord)
    assert (config["most-rows"], config["mean-steps"]) == (max(one.sizes), pytest.approx(mean_steps, rel=1e-15))


def test_sites_of_one_size_train_as_without_it(tmp_path: Path) -> None:
    config: dict[str, Scalar] = {"partition": "given", "partition-rows": "40:0.5,40:0.5,40:0.25", "batch-size": 8}
    left, right = (
        federate(tmp_path / str(by_rows), {**config, "strategy": "local-sgd", "steps-by-rows": by_rows}, clients=3)[0]
        for by_rows in (True, False)
    )
    assert left.model_bytes == right.model_bytes


@pytest.mark.parametrize("strategy", EVERY)
def test_stacks_and_secure_sums_change_nothing(strategy: str, tmp_path: Path) -> None:
    config: dict[str, Scalar] = {**UNEQUAL, "strategy": strategy}
    alone, _ = federate(tmp_path / "alone", config, clients=6)
    runs = {"stacked": federate(tmp_path / "stacked", config, clients=6, stack=6)[0]}
    if not strategy.startswith("fedx"):
        runs["summed"], _ = federate(tmp_path / "summed", {**config, "privacy.secure-sum": True}, clients=6)
    for name, value in alone.model.items():
        for run in runs.values():
            np.testing.assert_allclose(run.model[name], value, rtol=1e-9, atol=1e-12)
    equal, _ = federate(tmp_path / "equal", {**config, "steps-by-rows": False}, clients=6)
    assert any(np.abs(equal.model[name] - value).max() > 1e-4 for name, value in alone.model.items())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"strategy": "composite", "dataset": "breast-cancer"}, "needs equally many local steps at all sites"),
        ({"strategy": "newton", "dataset": "breast-cancer"}, "has no local steps"),
        ({"lr-decay-every": 3, "lr-decay": 0.5}, "true with lr-decay-every"),
        ({"strategy": "local-sgd", "batch-norm": "local", "partition": "own", "dataset": "csv"}, "with steps-by-rows"),
    ],
)
def test_what_needs_equal_steps_is_refused(config: dict[str, Scalar], reason: str) -> None:
    with refuses(ConfigError, reason):
        parse_run_config({"steps-by-rows": True, **config})


@pytest.mark.parametrize("scalars", [{}, {MOST_ROWS: 0, MEAN_STEPS: 1.0}, {MOST_ROWS: 9, MEAN_STEPS: 1e9}])
def test_a_message_with_other_scalars_is_refused(scalars: dict[str, Scalar], data: dict[str, Scalar]) -> None:
    config = parse_run_config({**data, **BY_ROWS, "local-steps": 4})
    site = resources.site(config, 4, 0)
    client = config.algorithm.client(site, resources.get_trainee(config, site), config.training, config.family)
    with pytest.raises(PayloadError, match="allowed: a mean above 0, at most 4"):
        client.fit(client.model.arrays(np.array), {"server-round": 1, **scalars})
