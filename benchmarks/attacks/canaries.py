"""Audits of `privacy.epsilon` with canaries, which are artificial samples that are as easy to recognise as possible.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023). Each canary is in the
training data with probability 1/2, and changes a weight that no other sample changes. The attacker sees the model, and
guesses which canaries were in the data: yes for the canaries whose weights moved most, no for the canaries whose
weights moved least. For Gaussian noise this is the order of the likelihood ratio, so it is the best strategy. If the
run keeps its epsilon, many right guesses are improbable, so a number of right guesses proves a minimum epsilon.

The canaries are spread over sites. A site adds noise for each of its canaries, and each canary is at only one site, so
the models of all sites together are as private as the model of a single site.

A second audit measures the noise itself, in the weights of the canaries that were not in the data.

    python -m benchmarks.attacks.canaries
"""

import numpy as np
from jaxtyping import Bool, Float64
from scipy.stats import binom

from clients.base import Site
from clients.scoring import LocalSGDClient
from methods.private import Guard, Ledger
from payloads.settings import TrainingSettings
from payloads.wire import ROUND
from privacy.budget import Releases, noise_of_batches
from problems.models import FlatModel, build_model

SITES, CANARIES, GUESSES = 20, 2000, 2400
# so long that the gradients are clipped, whatever the model
LENGTH = 10.0
STEPS, DELTA = 4, 1e-5


def proven_epsilon(right: int, guesses: int, delta: float, canaries: int, error: float = 0.05) -> float:
    """Return the minimum epsilon that a number of right guesses proves, by Theorem 5.2 of the paper. 0: no proof.

    Args:
        right: The number of right guesses.
        guesses: The number of all guesses.
        delta: The budget's delta.
        canaries: The number of canaries, each of which was in the data with probability 1/2.
        error: The probability that the result is too large.
    """
    low, high = 0.0, 50.0
    if _chance(low, right, guesses, delta, canaries) > error:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if _chance(middle, right, guesses, delta, canaries) > error:
            high = middle
        else:
            low = middle
    return low


def _chance(epsilon: float, right: int, guesses: int, delta: float, canaries: int) -> float:
    """Return a bound of the probability of at least so many right guesses in a run that keeps (epsilon, delta)."""
    single = 1 / (1 + np.exp(-epsilon))
    tail = binom.sf(np.arange(right - 1, -2, -1), guesses, single)  # of >= right, right - 1, ..., 0
    fewer = np.arange(1, right + 1)
    worst = float(np.max((tail[1:] - tail[0]) / fewer, initial=0.0))
    return float(tail[0]) + 2 * canaries * delta * worst


def watch(epsilon: float, share: float = 1.0, seed: int = 0) -> tuple[Float64[np.ndarray, "m"], Bool[np.ndarray, "m"]]:
    """Train a linear model at each site with a privacy budget, with all canaries of the site in each batch.

    Args:
        epsilon: The budget's epsilon.
        share: The share of the required noise that the run adds. Below 1 the run exceeds its budget.
        seed: The canaries' seed.

    Returns:
        Each canary's weight, in standard deviations of the noise that the budget requires, and whether the canary was
        in the data.
    """
    inside = np.random.default_rng(seed).random((SITES, CANARIES)) < 0.5
    weights = [_train(there, epsilon, share) for there in inside]
    return np.concatenate(weights), inside.ravel()


def _train(inside: Bool[np.ndarray, "n"], epsilon: float, share: float) -> Float64[np.ndarray, "n"]:
    # a canary that is outside is a row of zeros, whose gradient is zero
    site = Site.from_arrays(0, np.diag(np.where(inside, LENGTH, 0.0)), np.ones(CANARIES, dtype=int))
    training = TrainingSettings(num_server_rounds=1, local_steps=STEPS, batch_size=0)
    model = FlatModel(build_model("linear-no-intercept", (CANARIES,), 0))
    client = LocalSGDClient(site, model, training)
    most = Releases(1.0, STEPS)
    noise = noise_of_batches(epsilon, DELTA, most)
    client.protect(Guard(1.0, share * noise, CANARIES, Ledger(most)))
    (weights,), *_ = client.fit([np.zeros(CANARIES, np.float32)], {ROUND: 1})
    deviation = training.learning_rate * noise * float(np.sqrt(STEPS)) / CANARIES
    return np.asarray(weights, np.float64) / deviation


def audit(epsilon: float, share: float = 1.0, seed: int = 0) -> tuple[float, float]:
    """Return the epsilon that the guesses in one run prove, and the measured share of the required noise.

    Args:
        epsilon: The budget's epsilon, see `watch`.
        share: The share of the noise, see `watch`.
        seed: The canaries' seed.
    """
    weights, inside = watch(epsilon, share, seed)
    order, half = np.argsort(weights), GUESSES // 2
    right = int(inside[order[-half:]].sum() + (~inside[order[:half]]).sum())
    return proven_epsilon(right, GUESSES, DELTA, inside.size), float(np.sqrt(np.mean(weights[~inside] ** 2)))


def main() -> None:
    """Print the results of audits with 40,000 canaries, for runs with a budget and for runs with too little noise."""
    for epsilon in (1.0, 4.0):
        for share in (1.0, 0.8, 0.5):
            proven, measured = audit(epsilon, share)
            print(f"epsilon {epsilon:g}, {share:.0%} of its noise: proven {proven:.2f}, measured {measured:.1%}")


if __name__ == "__main__":
    main()
