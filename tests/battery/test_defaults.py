"""On a table with heavy tails, no site is dropped and the model learns with the defaults."""

from pathlib import Path

import pytest

from tests.battery.federation import federate

# the keys that `SMALL` changes have their defaults again
STEPS = {"local-steps": 32, "learning-rate": 0.1, "num-server-rounds": 4, "evaluate-every": 4}
STEPS |= {"fedx.positive-batch-size": 16, "fedx.negative-batch-size": 16}


@pytest.mark.parametrize("clients", [2, 3])
@pytest.mark.parametrize("strategy", ["fedx2", "local-pair"])
def test_no_site_is_lost_at_the_defaults(strategy: str, clients: int, tmp_path: Path) -> None:
    config = {"strategy": strategy, "dataset": "breast-cancer", "model": "mlp"} | STEPS
    run, _ = federate(tmp_path, config, clients)
    assert not any(line.get("dropped") for line in run.lines)
    assert run.lines[-1]["auc"] > 0.98
