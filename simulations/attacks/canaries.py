"""An audit of `privacy.epsilon` with canaries: samples that are as easy to recognise as a sample can be.

T. Steinke, M. Nasr, M. Jagielski, "Privacy Auditing with One (1) Training Run" (NeurIPS 2023). Each canary is in the
data with chance 1/2. Whoever sees the model guesses of some that they were in and of others that they were not. If the
run keeps epsilon, too many right guesses are improbable, so that a number of right guesses proves a least epsilon.

    python -m simulations.attacks.canaries
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

CANARIES, GUESSES = 1000, 200
# so long that the first gradients are clipped, whatever the model
LENGTH = 10.0
STEPS, BATCH, DELTA = 4, 500, 1e-5


def proven_epsilon(right: int, guesses: int, delta: float, canaries: int, error: float = 0.05) -> float:
    """Return the least epsilon that a number of right guesses proves, 0 if none (Theorem 5.2 of the paper).

    Args:
        right: guesses that were right.
        guesses: all guesses.
        delta: of the budget.
        canaries: each of which was in the data with chance 1/2.
        error: the chance that the result is too large.
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
    """A bound of the chance of so many right guesses, or more, in a run that keeps (epsilon, delta)."""
    single = 1 / (1 + np.exp(-epsilon))
    tail = binom.sf(np.arange(right - 1, -2, -1), guesses, single)  # of >= right, right - 1, ..., 0
    fewer = np.arange(1, right + 1)
    worst = float(np.max((tail[1:] - tail[0]) / fewer, initial=0.0))
    return float(tail[0]) + 2 * canaries * delta * worst


def watch(epsilon: float, share: float = 1.0, seed: int = 0) -> tuple[Float64[np.ndarray, "m"], Bool[np.ndarray, "m"]]:
    """Train one site's linear model with a budget, on canaries each of which has a feature of its own.

    Args:
        epsilon: of the budget.
        share: of the noise that it takes; below 1 the run breaks its budget.
        seed: of the canaries.

    Returns:
        Each canary's weight, and whether it was in the data.
    """
    inside = np.random.default_rng(seed).random(CANARIES) < 0.5
    # one that is outside is a row of zeros, whose gradient is zero
    site = Site.from_arrays(0, np.diag(np.where(inside, LENGTH, 0.0)), np.ones(CANARIES, dtype=int))
    training = TrainingSettings(num_server_rounds=1, local_steps=STEPS, batch_size=BATCH)
    model = FlatModel(build_model("linear-no-intercept", (CANARIES,), 0))
    client = LocalSGDClient(site, model, training)
    most = Releases(BATCH / CANARIES, STEPS)
    noise = share * noise_of_batches(epsilon, DELTA, most)
    client.protect(Guard(1.0, noise, BATCH, Ledger(most)))
    (weights,), *_ = client.fit([np.zeros(CANARIES, np.float32)], {ROUND: 1})
    return weights.astype(np.float64), inside


def audit(epsilon: float, share: float = 1.0, seed: int = 0) -> float:
    """Return the epsilon that the guesses of one run prove.

    Args:
        epsilon: as of `watch`.
        share: as of `watch`.
        seed: as of `watch`.
    """
    weights, inside = watch(epsilon, share, seed)
    order, half = np.argsort(weights), GUESSES // 2
    right = int(inside[order[-half:]].sum() + (~inside[order[:half]]).sum())
    return proven_epsilon(right, GUESSES, DELTA, CANARIES)


def main() -> None:
    """Print what 1,000 canaries prove of runs with a budget, and of one with a fifth of its noise."""
    for epsilon, share, note in ((1.0, 1.0, ""), (4.0, 1.0, ""), (1.0, 0.2, ", with a fifth of the noise")):
        print(f"epsilon {epsilon:g}{note}: proven at least {audit(epsilon, share):.2f}")


if __name__ == "__main__":
    main()
