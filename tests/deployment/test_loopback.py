"""The same run config on deployed sites and in this process: the same metrics, the same model, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.registry import ALGORITHMS
from tests.battery.federation import federate
from tests.deployment.federation import OWN, Deployment, deployed

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment")) as running:
        yield running


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=[pytest.mark.gate] * (name == "fedx2")) for name in ALGORITHMS]
)
def test_deployed_sites_compute_what_one_process_does(strategy: str, deployment: Deployment, tmp_path: Path) -> None:
    config = {"strategy": strategy, "num-server-rounds": 2, "vfb2.join-timeout": 60.0}
    expected, _ = federate(tmp_path / "here" / "run", config, clients=3)
    run = deployment.run(tmp_path / "deployed" / "run", config)
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes
    assert run.lines[-1]["clients_answered"] == 3


def test_sites_with_files_of_their_own_compute_what_one_process_does(deployment: Deployment, tmp_path: Path) -> None:
    """Columns agreed on and scaled over all sites; the sites evaluate."""
    config = {**OWN, "strategy": "fedx2", "num-server-rounds": 2}
    nodes = [{"data-path": str(deployment.own_file(site))} for site in range(3)]
    expected, _ = federate(tmp_path / "here" / "run", config, nodes=nodes)
    run = deployment.run(tmp_path / "deployed" / "run", config)
    assert run.untimed == expected.untimed
    assert run.model_bytes == expected.model_bytes
    assert not any(line["dropped"] for line in run.lines)
