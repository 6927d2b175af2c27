"""Runs with ``privacy.epsilon``: every strategy that supports a budget spends it, and no more."""

from pathlib import Path

import numpy as np
import pytest

from apps.capabilities import taken_of
from apps.client_app import app as client_app
from apps.config import ConfigError, Scalar, parse_run_config
from apps.guards.sample_privacy import SPENT
from apps.registry import ALGORITHMS
from apps.server_app import RunFailedError
from apps.sites.sample_privacy import check_epsilon
from methods.coda import CLASS_SCORES
from payloads.wire import CONFIG, PHASE
from simulations.engines.grid import task_identity
from tests.battery.federation import SMALL, federate, save_npz
from tests.refusals import refuses

PRIVATE = [name for name, row in ALGORITHMS.items() if taken_of(row)]
BUDGET = {"dataset": "breast-cancer", "privacy.epsilon": 2.0, "privacy.delta": 1e-4}


def test_the_methods_whose_loss_is_a_sum_over_samples_can_have_a_budget() -> None:
    sgd = {"local-sgd", "local-sgdm", "local-sgdm-rl", "scaffold", "fedprox"}
    fedsgda = {f"fedsgda-{estimator}" for estimator in ("mb", "storm", "spider", "svrg")}
    assert set(PRIVATE) == sgd | fedsgda | {"coda", "codasca", "local-sgdam", "fedgda-gt", "fedsgda-m"}
    for name in ALGORITHMS.keys() - set(PRIVATE):
        with refuses(ConfigError, r"privacy.epsilon: got 1 with strategy .*local-sgd, "):
            parse_run_config({"strategy": name, "privacy.epsilon": 1.0})
    stages = {"strategy": "coda", "coda.stage-rounds": 2, "privacy.epsilon": 1.0}
    with refuses(ConfigError, "coda.restart-dual"):
        parse_run_config(stages)
    parse_run_config({**stages, "coda.restart-dual": False})
    with refuses(ConfigError, "loss 'synthetic-pl'"):
        parse_run_config({"strategy": "coda", "dataset": "synthetic-pl", "privacy.epsilon": 1.0})


@pytest.mark.parametrize("strategy", PRIVATE)
def test_a_run_spends_its_budget_and_no_more(strategy: str, tmp_path: Path) -> None:
    run, grid = federate(tmp_path / "run", {"strategy": strategy, **BUDGET})
    spent = [line["epsilon"] for line in run.lines[1:]]
    assert spent == sorted(spent)
    assert 0.99 * 2.0 < spent[-1] <= 2.0
    taken = ALGORITHMS[strategy].client.method.taken  # type: ignore[attr-defined]
    for context in grid._contexts.values():
        ledger = context.state.config_records[SPENT]
        # FedSGDA's samples of clients may omit a client in a round
        assert 0 < ledger["batches"] <= int(SMALL["num-server-rounds"]) * int(SMALL["local-steps"]) + taken.first
        assert ledger["whole"] <= int(SMALL["num-server-rounds"]) * taken.whole


def test_stacked_clients_and_secure_sums_keep_the_budget(tmp_path: Path) -> None:
    config = {"strategy": "scaffold", **BUDGET, "privacy.secure-sum": True, "privacy.secure-range": 1024.0}
    run, _ = federate(tmp_path / "run", config, clients=4, stack=4)
    assert run.lines[-1]["epsilon"] == pytest.approx(2.0, rel=0.01)


def test_two_runs_of_one_seed_differ(tmp_path: Path) -> None:
    """Otherwise anyone who knows the seed could subtract the noise."""
    runs = [federate(tmp_path / name, {"strategy": "local-sgd", **BUDGET})[0] for name in ("one", "two")]
    assert runs[0].model_bytes != runs[1].model_bytes


def test_a_site_that_has_spent_its_budget_answers_no_more(tmp_path: Path) -> None:
    config = {"strategy": "local-sgd", **BUDGET}
    _, grid = federate(tmp_path / "run", config)
    asked = grid.exchanges[-1]
    context = grid._contexts[asked.message.metadata.dst_node_id]
    with task_identity(), refuses(ValueError, r"privacy.epsilon: got a request for more than 6 batches"):
        client_app(asked.message, context)


@pytest.mark.parametrize("more", [{}, {"num-server-rounds": 50}])
def test_a_site_releases_no_more_histograms_than_the_noise_is_for(more: dict[str, int], tmp_path: Path) -> None:
    """A server could request 3,000 histograms with an epsilon of 1, and average the noise away."""
    config = {"strategy": "fedx1", "dataset": "breast-cancer", "score": "sigmoid", "fedx.pool": "histogram"}
    _, grid = federate(tmp_path / "run", {**config, "fedx.pool-epsilon": 1.0})
    asked = grid.exchanges[-1]
    context = grid._contexts[asked.message.metadata.dst_node_id]
    context.run_config |= more
    said = ".* and 51 histograms, allowed: epsilon" if more else "a request for more than 4 histograms"
    with task_identity(), refuses(ValueError, f"fedx.pool-epsilon: got {said}"):
        client_app(asked.message, context)


def test_a_site_tells_nothing_beside_its_gradients(tmp_path: Path) -> None:
    """CoDA's sums of scores by class are exact, and a server that deviates from the protocol could request them."""
    _, grid = federate(tmp_path / "run", {"strategy": "coda", **BUDGET})
    asked = grid.exchanges[-1].message
    asked.content.config_records[CONFIG][PHASE] = CLASS_SCORES
    with task_identity(), refuses(ValueError, "privacy.epsilon: got the phase 'class-scores'"):
        client_app(asked, grid._contexts[asked.metadata.dst_node_id])


def test_a_delta_that_lets_a_site_tell_a_sample_is_refused(tmp_path: Path) -> None:
    with refuses(RunFailedError, "privacy.delta: got 0.1, allowed: at most 1 / "):
        federate(tmp_path / "run", {"strategy": "local-sgd", **BUDGET, "privacy.delta": 0.1})


def test_a_delta_above_the_owner_s_is_refused(tmp_path: Path) -> None:
    """A server could choose a delta that allows a site to publish one row in a hundred."""
    config = {"strategy": "local-sgd", **BUDGET, "privacy.delta": 1e-3}
    nodes: list[dict[str, Scalar]] = [{}, {}, {"largest-delta": 1e-4}]
    with refuses(RunFailedError, "largest-delta: got a run with privacy.delta=0.001, allowed: at most 0.0"):
        federate(tmp_path / "run", config, nodes=nodes)
    federate(tmp_path / "less", {**config, "privacy.delta": 1e-4, "num-server-rounds": 1}, nodes=nodes)


@pytest.mark.parametrize(
    ("delta", "owner", "said"),
    [
        (0.1, 0.0, "fedx.pool-delta: got 0.1, allowed: at most 1 / "),
        (1e-3, 1e-4, "largest-delta: got a run with fedx.pool-delta"),
    ],
    ids=["rows", "owner"],
)
def test_the_delta_of_histograms_is_bounded_too(delta: float, owner: float, said: str, tmp_path: Path) -> None:
    config = {"strategy": "fedx1", "dataset": "breast-cancer", "score": "sigmoid", "fedx.pool": "histogram"}
    nodes: list[dict[str, Scalar]] = [{"largest-delta": owner} if owner else {}] * 3
    with refuses(RunFailedError, said):
        federate(tmp_path / "run", {**config, "fedx.pool-epsilon": 1.0, "fedx.pool-delta": delta}, nodes=nodes)


def test_a_network_that_mixes_samples_is_named(tmp_path: Path) -> None:
    images = save_npz(tmp_path / "images.npz", np.zeros((30, 1, 8, 8)), np.arange(30) % 2)
    config = {"strategy": "local-sgd", "model": "table3-cnn", "privacy.epsilon": 1.0, **images}
    with refuses(RunFailedError, "model: got Table3CNN, whose scores in training are random or depend"):
        federate(tmp_path / "run", config)


@pytest.mark.parametrize(
    ("largest", "epsilon", "said"),
    [
        (1.0, 0.0, "got a run with privacy.epsilon=0, allowed: a value above 0 and at most 1"),
        (1.0, 2.0, "got a run with privacy.epsilon=2"),
        ("one", 1.0, "got 'one', allowed: a number > 0"),
        (True, 1.0, "got True"),
    ],
)
def test_an_owner_may_demand_a_budget(largest: object, epsilon: float, said: str) -> None:
    config = parse_run_config({"strategy": "local-sgd", "privacy.epsilon": epsilon})
    with refuses(ConfigError, f"largest-epsilon: {said}"):
        check_epsilon({"largest-epsilon": largest}, config)  # type: ignore[dict-item]
    check_epsilon({"largest-epsilon": 3}, parse_run_config({"strategy": "local-sgd", "privacy.epsilon": 3.0}))
