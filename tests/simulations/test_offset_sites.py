"""Tests on data that mislead pairs within a site: sixteen sites whose best feature has an offset for each site.

A pair inside a site sees the feature without the offset, so local pairs learn to trust it; across sites it is nearly
useless. The AUC is over the mixture of the sites. Each of three seeds draws data, initial weights and batches.
"""

from pathlib import Path

import pytest

from apps.config import Scalar, parse_run_config
from apps.sites import resources
from simulations.arguments import add_directory
from simulations.engines.launch import run_federation
from simulations.references.centralized import train_centralized
from tests.battery.federation import Run

SITES = 16
COMMON: dict[str, Scalar] = {"dataset": "synthetic-offset-sites", "model": "linear", "num-server-rounds": 60}
COMMON |= {"local-steps": 8, "evaluate-every": 60, "checkpoint-every": 0}
COMMON |= {"fedx.positive-batch-size": 20, "fedx.negative-batch-size": 20}
# Raw scores reach +-10 here (offsets have deviation 3), which bounds the step of the losses that grow with them.
METHODS = {
    "psm": ("fedx1", {"learning-rate": 0.2}),
    "square": ("fedx1", {"learning-rate": 0.002}),
    "kl-opauc": ("fedx2", {"score": "logit", "learning-rate": 0.005, "fedx.lambda": 5.0}),
}


def federated_auc(config: dict[str, Scalar], folder: Path) -> float:
    place = folder / str(config["strategy"])
    run_federation(SITES, add_directory(config, place))
    return float(Run(place).result["metrics"]["auc"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", METHODS)
def test_fedx_ends_at_the_centralised_auc_and_local_pairs_far_below(loss: str, seed: int, tmp_path: Path) -> None:
    strategy, own = METHODS[loss]
    config = {**COMMON, **own, "loss": loss, "seed": seed}
    parsed = parse_run_config({**config, "strategy": strategy})
    history, _ = train_centralized(parsed, resources.federated_data(parsed.data, SITES))
    reference = history[-1]["auc"]
    fedx = federated_auc({**config, "strategy": strategy}, tmp_path)
    local_pair = federated_auc({**config, "strategy": "local-pair"}, tmp_path)
    print(f"{loss} seed {seed}: centralised {reference:.4f}  {strategy} {fedx:.4f}  local-pair {local_pair:.4f}")
    assert fedx == pytest.approx(reference, abs=0.01)
    assert local_pair <= min(fedx, reference) - 0.06
