"""Gradients with sample privacy: means of clipped gradients of single samples, plus noise."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from methods import private
from methods.method import SampleGradients
from methods.private import BudgetError, Guard, Ledger, PrivateSite, protect, releases_of
from methods.samples import SampleObjective
from payloads.settings import Settings, TrainingSettings
from privacy.budget import Releases
from problems.minimax.auc import AUCOracle, saddle_value
from problems.models import FlatModel, ModelError, build_model
from problems.models.networks import SaddleNetwork
from problems.objectives.scores import SCORES
from problems.randomness import Purpose, draw_secretly
from problems.site import Site
from tests.refusals import refuses

MODELS = {"linear": (6,), "linear-no-intercept": (6,), "mlp": (6,), "tutorial-cnn": (1, 18, 18)}
ROWS, BATCH, CLIP, NOISE = 9, 4.0, 0.7, 1.5
NO_NOISE = 0.0


def make_site(shape: tuple[int, ...]) -> Site:
    features, labels = np.random.default_rng(0).normal(size=(ROWS, *shape)), (np.arange(ROWS) % 3 == 0).astype(int)
    return Site.from_arrays(0, features, labels, dtype=torch.float64)


def make_guard(noise: float = NO_NOISE, of_batch: int = 1, batches: int = 100) -> Guard:
    return Guard(CLIP, noise, BATCH, Ledger(Releases(BATCH / ROWS, batches, 10), of_batch, left=2))


def make_objective(name: str, site: Site, saddle: bool) -> Any:
    network = build_model(name, tuple(site.features.shape[1:]), 0)
    model = FlatModel(SaddleNetwork(network) if saddle else network, dtype=torch.float64)
    if not saddle:
        return SampleObjective(model, site, "cross-entropy", TrainingSettings(), Settings())
    oracle = AUCOracle(model, site.features, site.labels, score=SCORES["tanh"]).weigh(0.4, 1.3)
    oracle.parameters[-3:] = torch.tensor([0.3, -0.2, 0.5])
    return oracle


def clipped_sum(f: Any, w: torch.Tensor, rows: list[int], site: Site, saddle: bool) -> torch.Tensor:
    """Return the sum over samples, computed one after another by autograd."""
    total = torch.zeros_like(w)
    for row in rows:
        scores = f.model.scores(site.features[[row]], w)
        if saddle:
            a, b, dual = (f.model.module.saddle[name] for name in ("a", "b", "dual"))
            value = saddle_value(torch.tanh(scores), site.labels[[row]], torch.stack([a, b, dual]), 0.4, 1.3)
            value = value + 0.4 * 0.6 * dual**2  # the term without samples
        else:
            value = functional.binary_cross_entropy_with_logits(scores, site.labels[[row]])
        parts = torch.autograd.grad(value, list(f.model.module.parameters()), allow_unused=True)
        gradient = torch.cat([part.flatten() for part in parts if part is not None])
        total += gradient * min(1.0, CLIP / float(gradient.norm()))
    return total


@pytest.mark.parametrize("saddle", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_samples_are_clipped_one_by_one(name: str, saddle: bool) -> None:
    site = make_site(MODELS[name])
    plain = make_objective(name, site, saddle)
    f = protect(plain, make_guard())
    if saddle:
        f = f.weigh(0.4, 1.3)  # type: ignore[union-attr]
    w, rows = plain.model.parameters.clone(), [0, 2, 3, 7, 8]
    free = torch.zeros_like(w)
    if saddle:
        free[-1] = -2 * 0.4 * 0.6 * w[-1]
    batch: Any = np.array(rows) if saddle else site.samples(np.array(rows))
    expected = clipped_sum(plain, w, rows, site, saddle)
    lengths = [float(clipped_sum(plain, w, [row], site, saddle).norm()) for row in range(ROWS)]
    assert max(lengths) == pytest.approx(CLIP)  # some are clipped
    torch.testing.assert_close(f.gradient(w, batch), expected / BATCH + free, rtol=1e-10, atol=1e-12)
    if saddle:
        everyone = clipped_sum(plain, w, list(range(ROWS)), site, saddle)
        torch.testing.assert_close(f.gradient(w, None), everyone / ROWS + free, rtol=1e-10, atol=1e-12)  # type: ignore[arg-type]
    else:
        moved = w.clone()
        f.descend(moved, batch, 0.1)  # type: ignore[union-attr]
        torch.testing.assert_close(moved, w - 0.1 * expected / BATCH, rtol=1e-10, atol=1e-12)


def test_no_gradient_is_longer_than_the_clip_however_long_it_was() -> None:
    """The clipping factor may be below float32's smallest normal number, where rounding can double or halve it."""
    model, label = FlatModel(SaddleNetwork(build_model("linear-no-intercept", (2,), 0))), torch.ones(1)
    for row, slope in itertools.product(np.logspace(10, 36, 5), np.logspace(10, 38, 80)):
        features, none = torch.full((1, 2), row, dtype=torch.float32), torch.zeros(1)
        given = torch.full((1,), slope, dtype=torch.float32), none, none, none
        total = make_guard().sum(model, model.parameters, (features, label), lambda *_, given=given: given)
        assert float(total.norm()) <= CLIP * (1 + 1e-6)


@pytest.mark.parametrize("of_batch", [1, 2])
def test_the_noise_is_as_large_as_the_accountant_was_told(of_batch: int) -> None:
    """For 5,001 entries, the deviation is within 4 / sqrt(2 * 5,001) = 4 % of the true one, except for 1 in 15,000."""
    site = Site.from_arrays(0, np.zeros((ROWS, 5000)), np.ones(ROWS))
    f = protect(make_objective("linear", site, saddle=False), make_guard(NOISE, of_batch))
    nothing = site.samples(np.array([], dtype=np.int64))
    found = f.gradient(torch.zeros(5001, dtype=torch.float64), nothing)  # type: ignore[arg-type]
    assert float(found.std()) == pytest.approx(NOISE * CLIP * of_batch**0.5 / BATCH, rel=0.04)


def test_batches_are_drawn_by_chance_and_not_by_the_seed() -> None:
    """Each of 10,000 rows has probability 0.3: the number is within 5 deviations of 46, except for 1 in 1.7 million."""
    site = PrivateSite.of(make_site((6,)), Ledger(Releases(1.0, 3)))
    drawn = draw_secretly(10_000, 0.3)
    assert abs(len(drawn) - 3000) < 5 * 46
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert draw_secretly(10_000, 0.3).tolist() != drawn.tolist()
    sampler = site.sampler(site.everyone, 0, 0, Purpose.SAMPLES)
    assert sampler.batch(0).tolist() == list(range(ROWS))


def test_a_site_gives_no_more_than_its_budget_is_for() -> None:
    training = TrainingSettings(num_server_rounds=2, local_steps=3, batch_size=4)
    most = releases_of(SampleGradients(of_batch=2, whole=1, first=1), training, 8, 2)
    assert most == Releases(0.5, 7, 2)
    ledger = Ledger(most, of_batch=2)
    with refuses(BudgetError, "more than 7 batches"):
        ledger.release(whole=False)  # before any batch
    ledger.draw()
    ledger.draw()
    ledger.release(whole=False)
    ledger.release(whole=False)
    with pytest.raises(BudgetError):
        ledger.release(whole=False)  # a third one on the same batch, although the other batch had none
    ledger = Ledger(most, of_batch=2)
    for _ in range(7):
        ledger.draw()
        ledger.release(whole=False)
        ledger.release(whole=False)
    for _ in range(2):
        ledger.release(whole=True)
    for refused in (ledger.draw, lambda: ledger.release(whole=False), lambda: ledger.release(whole=True)):
        with pytest.raises(BudgetError):
            refused()


def test_networks_whose_scores_depend_on_other_samples_are_refused() -> None:
    site = make_site((1, 28, 28))
    with refuses(ModelError, "batch norm"):
        protect(make_objective("table3-cnn", site, saddle=False), make_guard())


@pytest.mark.parametrize("weight", [1e30, 1e38, 3e38])
@pytest.mark.parametrize("saddle", [False, True])
@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_a_model_by_which_gradients_overflow_tells_nothing(name: str, saddle: bool, weight: float) -> None:
    """Exchanging a sample may change the mean by at most 2 C / b, however the server chooses the weights."""
    rng = np.random.default_rng(1)
    features = rng.normal(size=(ROWS, 6))
    found = []
    for scale in (0.0, 30.0):
        features[0] = scale
        site = Site.from_arrays(0, features, (np.arange(ROWS) % 2).astype(int))
        network = build_model(name, (6,), 0)
        model = FlatModel(SaddleNetwork(network) if saddle else network)
        plain: Any = AUCOracle(model, site.features, site.labels, score=SCORES["logit"]).weigh(0.4, 1.3)
        if not saddle:
            plain = SampleObjective(model, site, "squared-error", TrainingSettings(), Settings())
        f: Any = protect(plain, make_guard())
        f = f.weigh(0.4, 1.3) if saddle else f
        w = torch.full_like(model.parameters, weight)
        w[-3:] = 0
        found.append(f.gradient(w, site.everyone if saddle else site.samples(site.everyone)))
    assert all(gradient.isfinite().all() for gradient in found)
    assert float((found[0] - found[1]).norm()) <= 2.001 * CLIP / BATCH


def test_a_gradient_is_clipped_where_squares_underflow() -> None:
    """At the score -55 the slope is 1e-24, and the sample's gradient has length 1e18."""
    site = Site.from_arrays(0, np.ones((1, 1)), np.zeros(1))
    model = FlatModel(build_model("mlp", (1,), 0))
    model.parameters.zero_()
    model.parameters[0], model.parameters[128] = 55e-18, -1e18  # one weight of each layer
    plain = SampleObjective(model, site, "cross-entropy", TrainingSettings(), Settings())
    f = protect(plain, Guard(1e-6, NO_NOISE, 1.0, Ledger(Releases(1.0, 1), left=1)))
    found = f.gradient(model.parameters.clone(), site.samples(site.everyone))  # type: ignore[arg-type]
    assert 0.99e-6 < float(found.double().norm()) < 1.01e-6


def test_only_means_over_samples_can_be_guarded() -> None:
    with pytest.raises(TypeError, match="object is not a mean"):
        protect(object(), make_guard())


def test_the_noise_comes_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site((6,))
    f = protect(make_objective("linear", site, saddle=False), make_guard(NOISE))
    w = torch.zeros(7, dtype=torch.float64)
    monkeypatch.setattr(private, "secret_normal", lambda count: np.arange(count, dtype=np.float64))
    nothing = site.samples(np.array([], dtype=np.int64))
    expected = torch.arange(7, dtype=torch.float64) * (NOISE * CLIP / BATCH)
    torch.testing.assert_close(f.gradient(w, nothing), expected, rtol=1e-5, atol=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("whole", [0, ROWS])
def test_the_low_bits_of_a_noisy_sum_show_nothing_of_it(whole: int) -> None:
    """All sums lie on one lattice, and rounding to the lattice moves a sum by at most 2^-20 clips."""
    like, length = torch.zeros(1000, dtype=torch.float64), 1000
    step = 2.0 ** np.floor(np.log2(CLIP * 2.0**-20 / np.sqrt(length)))
    for total in (torch.zeros(length, dtype=torch.float64), torch.randn(length, dtype=torch.float64)):
        found = make_guard(NOISE).blur(total.clone(), like, whole)
        steps = (found * ((whole or BATCH) / step)).round()
        assert torch.equal(steps * (step / (whole or BATCH)), found)
        assert steps.unique().numel() > 0.9 * length
    assert step * np.sqrt(length) <= CLIP * 2.0**-20


def test_private_batches_have_binomial_sizes_and_reach_every_row() -> None:
    """Mean and variance of 2,000 sizes are within 5 standard errors, except for one in a million."""
    count, rate = 60, 0.2
    site = PrivateSite.of(Site.from_arrays(0, np.zeros((count, 1)), np.arange(count) % 2), Ledger(Releases(rate, 2000)))
    sampler = site.sampler(site.everyone, int(rate * count), 0, Purpose.SAMPLES)
    batches = [sampler.batch(place) for place in range(2000)]
    sizes = np.array([len(batch) for batch in batches])
    variance = count * rate * (1 - rate)
    assert abs(sizes.mean() - count * rate) < 5 * np.sqrt(variance / 2000)
    assert abs(sizes.var() - variance) < 5 * variance * np.sqrt(2 / 2000)
    times = np.bincount(np.concatenate(batches), minlength=count)
    assert (abs(times - 2000 * rate) < 5 * np.sqrt(2000 * rate * (1 - rate))).all()
