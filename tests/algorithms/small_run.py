"""A short run on four small unequal sites, for the test of an algorithm against its reference."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from apps.config import Scalar, parse_run_config
from apps.sites import resources
from tests.battery.federation import federate, flat_config, model_of, save_npz
from tests.reference.minimax import Array

__all__ = ["Array", "SmallRun"]

SITES, ROWS = 4, 90
# a batch contains all rows of its site, so a reference needs no sampler
KEYS: dict[str, Scalar] = {
    "dtype": "float64",
    "model": "linear",
    "num-server-rounds": 3,
    "local-steps": 3,
    "batch-size": 0,
    "learning-rate": 0.3,
    "seed": 3,
    "partition": "positives-skewed",
    "partition-alpha": 0.6,
}


class SmallRun:
    """A run's models, and the data that a reference needs to repeat it.

    Args:
        folder: The folder of the run and its data.
        config: Run-config keys, including the strategy, that override `KEYS`.

    Attributes:
        models: (d,) The model before round 1, after round 1 and after round 2. A linear model has one weight
            for each feature, and a bias.
        sites: (n, 3) features and (n,) labels 0.0 or 1.0 of each site.
        training, settings: The common settings and the algorithm's own, as parsed.
    """

    def __init__(self, folder: Path, config: Mapping[str, Scalar]) -> None:
        positive = np.arange(ROWS) % 3 == 0
        features = np.random.default_rng(5).normal(size=(ROWS, 3)) + 0.7 * positive[:, None]
        flat = {**save_npz(folder / "data.npz", features, positive), **KEYS, **config}
        self.run, tap = federate(folder / "run", flat, SITES)
        parsed = parse_run_config(flat_config(folder / "run", flat))
        self.training, self.settings = parsed.training, parsed.family
        first = {e.server_round: e.message for e in reversed(tap.exchanges) if not e.phase}
        self.models: list[Array] = [model_of(first[r])[0].copy() for r in (1, 2, 3)]
        shares = [resources.federated_data(parsed.data, SITES).client(place) for place in range(SITES)]
        self.sites: list[tuple[Array, Array]] = [
            (share.features.astype(np.float64), share.labels.astype(np.float64)) for share in shares
        ]
