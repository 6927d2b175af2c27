"""FedX with histograms instead of its pool: the counts, the pool filled from them, and the limit of fine bins."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from apps.config import Scalar, parse_run_config
from apps.registry import ALGORITHMS
from apps.sites import resources
from clients.base import MethodClient
from methods.histograms import HistogramPool, ScoreHistograms, count_scores, fill_from_counts
from methods.method import Task
from payloads.wire import ARRAYS, PAYLOAD, ROUND
from privacy.budget import epsilon_of, noise_for
from strategies.rounds.errors import SetupError
from tests.battery.federation import federate, model_of, save_npz
from tests.refusals import refuses

HISTOGRAM: dict[str, Scalar] = {"fedx.pool": "histogram", "score": "sigmoid", "dtype": "float64"}
CASES = [("fedx1", "psm"), ("fedx2", "kl-opauc"), ("fedx2", "auprc")]


def unequal_sites(path: Path) -> tuple[dict[str, Scalar], np.ndarray, np.ndarray]:
    """Return the config of three sites of 30, 12 and 6 rows, the last with one class, and all rows."""
    rng = np.random.default_rng(2)
    labels = np.array([0, 1, 1] * 10 + [0, 0, 1] * 4 + [0] * 6)
    features = rng.normal(size=(48, 3)) + labels[:, None]
    rows: dict[str, Scalar] = {"partition": "given", "partition-rows": "30:0.6666666667,12:0.3333333333,6:0"}
    return {**save_npz(path / "rows.npz", features, labels), **rows, "model": "linear"}, features, labels


def make_task(config: dict[str, Scalar], place: int) -> tuple[Task, MethodClient]:
    """Return a client of a run, and its task in round 1."""
    parsed = parse_run_config(config)
    site = resources.site(parsed, 3, place)
    client = parsed.algorithm.client(site, resources.get_trainee(parsed, site), parsed.training, parsed.family)
    return client.task({ROUND: 1}), client


@pytest.mark.parametrize(("strategy", "loss"), CASES)
def test_a_round_s_counts_are_those_of_all_rows_under_the_clients_models(
    strategy: str, loss: str, tmp_path: Path
) -> None:
    config, _, _ = unequal_sites(tmp_path)
    config |= {**HISTOGRAM, "strategy": strategy, "loss": loss, "num-server-rounds": 1}
    run, grid = federate(tmp_path / "run", config)
    for exchange in (one for one in grid.exchanges if one.server_round == 1 and not one.phase):
        up = ScoreHistograms.from_record(exchange.reply.content.config_records[PAYLOAD])
        task, _ = make_task(config, exchange.partition)
        w = torch.from_numpy(np.array(np.frombuffer(exchange.reply.content["arrays"]["parameters"].data[-32:])))
        scores = torch.sigmoid(task.site.features @ w[:3] + w[3]).numpy()
        for counts, label in ((up.positive_counts, 1), (up.negative_counts, 0)):
            expected = np.histogram(scores[task.site.labels.numpy() == label], bins=32, range=(0, 1))[0]
            assert counts.tolist() == expected.tolist()
    assert run.lines[-1]["bytes_up"] < 3 * (2 * 4 * 8 + 2 * 2 * 32 * 8)


@pytest.mark.parametrize(("strategy", "loss"), CASES)
def test_the_predictions_are_the_bins_and_u_is_the_mean_over_the_partners(
    strategy: str, loss: str, tmp_path: Path
) -> None:
    config, _, _ = unequal_sites(tmp_path)
    task, _ = make_task({**config, **HISTOGRAM, "strategy": strategy, "loss": loss}, 0)
    rng = np.random.default_rng(0)
    p, n = rng.integers(0, 9, 32), rng.integers(0, 9, 32)
    pool = HistogramPool(totals=np.array([3, 24, 24]), positive_counts=p, negative_counts=n)
    positives, partners = fill_from_counts(task, pool)
    middles = (np.arange(32) + 0.5) / 32
    assert np.average(positives.scores, weights=positives.weights) == pytest.approx(np.average(middles, weights=p))
    counts = n if loss != "auprc" else np.concatenate([p, n])
    values = middles if loss != "auprc" else np.tile(middles, 2)
    np.testing.assert_allclose(partners.weights.mean(), 1)
    np.testing.assert_allclose(partners.weights, counts * len(counts) / counts.sum())
    if loss == "kl-opauc":
        for place in (0, 13, 31):  # the inner mean of exp(hinge^2 / lambda), stored as its logarithm
            hinge = np.maximum(1 + values - middles[place], 0) ** 2 / 3.0
            assert float(positives.u[place, 0]) == pytest.approx(np.log(np.average(np.exp(hinge), weights=counts)))
    if loss != "auprc":  # a round without negatives
        positives, partners = fill_from_counts(task, dataclasses.replace(pool, negative_counts=0 * n))
        assert not len(partners.scores)
        assert positives.u is None or positives.u.isnan().all()


def test_with_fine_bins_full_batches_and_one_step_it_descends_the_pooled_risk(tmp_path: Path) -> None:
    config, features, labels = unequal_sites(tmp_path)
    step: dict[str, Scalar] = {
        "strategy": "fedx1", "loss": "psm", "fedx.bins": 4096, "local-steps": 1, "num-server-rounds": 2,
        "fedx.positive-batch-size": 24, "fedx.negative-batch-size": 24, "learning-rate": 0.5,
    }  # fmt: skip
    _, grid = federate(tmp_path / "run", {**config, **HISTOGRAM, **step})
    sent = [model_of(one.message)[0] for one in grid.exchanges if one.partition == 0 and not one.phase]
    x, y = torch.from_numpy(features.astype("f4").astype(float)), torch.from_numpy(labels)
    w = torch.tensor(sent[0], requires_grad=True)
    scores = torch.sigmoid(x @ w[:3] + w[3])
    risk = torch.sigmoid(scores[y == 0][None] - scores[y == 1][:, None]).mean()
    (slope,) = torch.autograd.grad(risk, w)
    # the middle of a bin is off by at most 2^-13
    np.testing.assert_allclose(sent[1], (w - 0.5 * slope).detach().numpy(), atol=1e-5)
    assert np.abs(0.5 * slope.numpy()).max() > 1e-2


@pytest.mark.parametrize("strategy", ["fedx1", "fedx2"])
def test_stacked_and_summed_it_finds_the_same_model(strategy: str, tmp_path: Path) -> None:
    config, _, _ = unequal_sites(tmp_path)
    config |= {**HISTOGRAM, "strategy": strategy, "fedx.tau": 2}
    plain, _ = federate(tmp_path / "plain", config)
    stacked, _ = federate(tmp_path / "stacked", config, stack=3)
    summed, grid = federate(tmp_path / "summed", {**config, "privacy.secure-sum": True})
    for name, value in plain.model.items():
        np.testing.assert_allclose(stacked.model[name], value, rtol=0, atol=1e-12)
        np.testing.assert_allclose(summed.model[name], value, rtol=1e-9, atol=1e-12)
    sent = {name for one in grid.exchanges for name in one.reply.content.get(PAYLOAD, {})}
    assert not sent.intersection(ScoreHistograms.__dataclass_fields__)


def test_scores_without_bounds_are_refused() -> None:
    config = parse_run_config({"strategy": "fedx1", "fedx.pool": "histogram"})
    with refuses(SetupError, "'histogram' with score='auto', allowed: a bounded score"):
        ALGORITHMS["fedx1"].strategy(config.training, config.family)


def test_a_score_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    config, _, _ = unequal_sites(tmp_path)
    task, client = make_task({**config, **HISTOGRAM, "strategy": "fedx1"}, 0)
    with pytest.raises(ValueError, match="a score is not finite"):
        count_scores(torch.full_like(client.model.parameters, np.nan), task)


@pytest.mark.parametrize("rounds", [1, 25])
def test_the_noise_spends_the_budget_that_the_accountant_counts(rounds: int) -> None:
    deviation = noise_for(1.0, 1e-5, rounds + 1)
    assert epsilon_of(deviation, 1e-5, rounds + 1) == pytest.approx(1.0, abs=1e-6)
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(deviation), rounds + 1)
    # a privacy loss distribution in steps of 1e-4, rounded up
    assert 1.0 <= accountant.get_epsilon(1e-5) + 1e-6 <= 1.01


@pytest.mark.parametrize("secure", [False, True])
def test_the_counts_have_the_noise_of_the_budget(secure: bool, tmp_path: Path) -> None:
    config, _, labels = unequal_sites(tmp_path)
    noisy: dict[str, Scalar] = {"fedx.pool-epsilon": 2.0, "fedx.bins": 2000, "num-server-rounds": 1}
    config |= {**HISTOGRAM, **noisy, "strategy": "fedx1", "privacy.secure-sum": secure}
    run, grid = federate(tmp_path / "run", config)
    last = [one for one in grid.exchanges if one.server_round == 1 and ARRAYS in one.message.content]
    pool = HistogramPool.from_record(last[0].message.content.config_records[PAYLOAD])
    # the noise of three clients; in a sum of at least three, each client adds a third of the variance
    deviation = noise_for(2.0, 1e-5, 2) * (1 if secure else np.sqrt(3))
    for counts, label in ((pool.positive_counts, 1), (pool.negative_counts, 0)):
        assert counts.std() == pytest.approx(deviation, rel=0.1)  # six deviations of 2,000 numbers
        assert abs(counts.sum() - (labels == label).sum()) < 5 * deviation * np.sqrt(2000)
    assert run.lines[0].get("pool_epsilon") is None
    assert run.lines[1]["pool_epsilon"] == pytest.approx(2.0)


def test_a_budget_without_histograms_is_refused() -> None:
    config = parse_run_config({"strategy": "fedx1", "fedx.pool-epsilon": 1.0})
    with refuses(SetupError, "got 1 with fedx.pool='predictions', allowed: 0 without histograms"):
        ALGORITHMS["fedx1"].strategy(config.training, config.family)
