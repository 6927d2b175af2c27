"""Tests that deployed sites and one process compute the same metrics and model for the same config, to the bit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.registry import ALGORITHMS
from tests.battery.federation import TIMING, Run, federate
from tests.deployment.federation import OWN, Deployment, deployed
from tests.refusals import states

pytestmark = pytest.mark.deployment


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment")) as running:
        yield running


@pytest.fixture(scope="module")
def deployment_with_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("deployment"), own_tables=True) as running:
        yield running


def comparable(run: Run) -> list[dict[str, Any]]:
    """Return the metrics that both runs have: a server has all columns, to find the minimum, only if it simulates the
    parties."""
    return [{k: v for k, v in line.items() if k not in (*TIMING, "suboptimality")} for line in run.lines]


@pytest.mark.parametrize(
    "strategy", [pytest.param(name, marks=[pytest.mark.gate] * (name == "fedx2")) for name in ALGORITHMS]
)
def test_deployed_sites_compute_what_one_process_does(strategy: str, deployment: Deployment, tmp_path: Path) -> None:
    config = {"strategy": strategy, "num-server-rounds": 2, "vfb2.join-timeout": 60.0, "vfb2.assemble": True}
    expected, _ = federate(tmp_path / "here" / "run", config, clients=3)
    run = deployment.run(tmp_path / "deployed" / "run", config)
    assert comparable(run) == comparable(expected)
    if not ALGORITHMS[strategy].strategy.shares_model:  # simulated parties know and save their columns
        assert {"weights.0", "weights.1", "weights.2"} == run.model.keys() < expected.model.keys()
    else:
        assert run.model_bytes == expected.model_bytes
    assert all(values.tobytes() == expected.model[name].tobytes() for name, values in run.model.items())
    assert run.lines[-1]["clients_answered"] == 3


@pytest.mark.parametrize("keys", [{}, {"label-columns": "yes, no", "positive-label": ""}])
def test_sites_with_own_files_compute_what_one_process_does(
    keys: dict[str, str], deployment_with_tables: Deployment, tmp_path: Path
) -> None:
    """The sites agree on columns, scale them over all sites, and evaluate, for one label or for several labels."""
    config = {**OWN, "strategy": "fedx2", "num-server-rounds": 2, **keys}
    nodes = [{"data-path": str(deployment_with_tables.own_file(site))} for site in range(3)]
    expected, _ = federate(tmp_path / "here" / "run", config, nodes=nodes)
    run = deployment_with_tables.run(tmp_path / "deployed" / "run", config)
    assert comparable(run) == comparable(expected)
    assert run.model_bytes == expected.model_bytes
    assert not any(line["dropped"] for line in run.lines)


@pytest.mark.parametrize("secure", [False, True])
def test_sites_with_own_files_describe_them_like_one_process(
    secure: bool, deployment_with_tables: Deployment, tmp_path: Path
) -> None:
    config = {**OWN, "strategy": "describe", "privacy.secure-sum": secure}
    nodes = [{"data-path": str(deployment_with_tables.own_file(site))} for site in range(3)]
    federate(tmp_path / "here" / "run", config, nodes=nodes)
    deployment_with_tables.run(tmp_path / "deployed" / "run", config)
    tables = [
        json.loads((tmp_path / name / "run" / "describe.json").read_text("utf-8")) for name in ("here", "deployed")
    ]
    assert tables[0]["rows"] == tables[1]["rows"] > 0
    assert tables[0]["columns"] == tables[1]["columns"]


def test_what_is_wrong_with_a_site_s_file_stays_in_its_log(deployment_with_tables: Deployment, tmp_path: Path) -> None:
    file = deployment_with_tables.own_file(1)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:8], b"," * lines[0].count(b",") + b"\n", *lines[8:]]))
    try:
        run_id = deployment_with_tables.submit(tmp_path / "run", {**OWN, "strategy": "local-sgd"})
        assert deployment_with_tables.ended(run_id) == "finished:failed"
    finally:
        file.write_bytes(whole)
    reason = json.loads((tmp_path / "run" / "failure.json").read_text("utf-8"))["reason"]
    columns = "column 'ill'; column 'weight'; column 'sex'; column 'age'"
    assert reason == f"partition 1: dataset 'csv': {columns}: this site's log has the reason"
    logs = {name: (deployment_with_tables.folder / f"{name}.log").read_text() for name in ("site-1", "superlink")}
    assert "of 90 cells missing" not in logs["superlink"]
    assert "the first in row 8" in logs["site-1"]


def test_deployed_sites_find_the_same_secure_sums(deployment: Deployment, tmp_path: Path) -> None:
    """Each stage of a sum runs in a separate process, whose secrets are in the node's context."""
    config = {"strategy": "scaffold", "num-server-rounds": 2, "privacy.secure-sum": True}
    expected, _ = federate(tmp_path / "here" / "run", config, clients=3)
    run = deployment.run(tmp_path / "deployed" / "run", config)
    assert comparable(run) == comparable(expected)
    assert run.model_bytes == expected.model_bytes
    assert not any(line["dropped"] for line in run.lines)


def test_a_site_whose_file_demands_secure_sums_refuses_other_runs(deployment: Deployment, tmp_path: Path) -> None:
    """The file may change while the SuperNode runs."""
    file = deployment.site_config(1)
    before = file.read_text()
    file.write_text(f"{before}\n[privacy]\nsecure-sum = true  # as our board decided\n")
    try:
        run_id = deployment.submit(tmp_path / "run", {"strategy": "local-sgd"})
        assert deployment.ended(run_id) == "finished:failed"
    finally:
        file.write_text(before)
    reason = json.loads((tmp_path / "run" / "failure.json").read_text("utf-8"))["reason"]
    assert states(reason, "secure-sum: got a run with privacy.secure-sum=false, allowed: true")
