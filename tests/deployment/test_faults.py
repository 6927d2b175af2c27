"""Tests of faults in a deployed federation: killed sites and servers, slow or rogue sites, unregistered keys."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from apps.config import Scalar
from tests.battery.federation import Exchange, Run, federate
from tests.deployment.federation import ACCEPTED, CLIENT_APP, PROJECT, SERVER_APP, Deployment, deployed, until

pytestmark = pytest.mark.faults

SITES = 3
ROGUE = PROJECT / "tests" / "deployment" / "rogue"
STATEFUL: dict[str, Scalar] = {"strategy": "fedx2", "dataset": "breast-cancer", "checkpoint-every": 1}
# the error for a killed site: before Flower gives the site up, and after
GONE = ("no answer", "Node Unavailable")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("faults"), SITES) as running:
        yield running


@pytest.fixture
def deployment(federation: Deployment) -> Deployment:
    """Return the deployment with all of its sites, whatever state the test before has left."""
    for site in range(SITES):
        if federation.processes[f"site-{site}"].poll() is not None:
            federation.restart_node(site)
    until(lambda: federation.online() == SITES, "all sites are online")
    return federation


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("uninterrupted") / "run"
    return federate(path, {**STATEFUL, "num-server-rounds": 3}, SITES)[0]


def lines(path: Path) -> int:
    """Return the number of rounds that a run has written, including round 0."""
    metrics = path / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def middle_of_round(deployment: Deployment, path: Path, server_round: int, site: int) -> None:
    """Wait until a site's ClientApp works in that round."""
    until(lambda: lines(path) >= server_round, f"round {server_round} begins")
    until(lambda: deployment.processes_of(f"site-{site}", CLIENT_APP), f"site {site} works")
    assert lines(path) == server_round


def absence(lines: list[dict[str, Any]]) -> int:
    """Require that only site 2 was absent, from round 2 on; return the round in which it was back."""
    without = [line for line in lines if line["dropped"]]
    back = 2 + len(without)
    assert [line["round"] for line in without] == list(range(2, back))
    for line in without:
        assert list(line["dropped"]) == ["2"]
        assert any(reason in line["dropped"]["2"] for reason in GONE), line
        assert line["clients_answered"] == SITES - 1
    assert without
    assert lines[back]["clients_answered"] == SITES
    return back


def test_a_site_with_an_unregistered_key_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    """The site claims to be partition 1: if it were accepted, it would end the handshake."""
    deployment.script("node-key.sh", "keys", "stranger")
    run_id = deployment.submit(tmp_path / "run", {"strategy": "fedx1", "num-server-rounds": 1})
    deployment.start_node(1, key="stranger")
    assert deployment.processes["stranger"].wait(60) != 0
    assert "[code: 2004] Failed to activate SuperNode." in deployment.log("stranger")
    assert ACCEPTED not in deployment.log("stranger")
    assert deployment.ended(run_id) == "finished:completed"
    assert Run(tmp_path / "run").result["clients"] == SITES
    assert deployment.online() == SITES


@pytest.mark.parametrize("name", ["server-app", "superlink"])
def test_a_run_whose_server_is_killed_resumes_as_if_nothing_had_happened(
    name: str, deployment: Deployment, tmp_path: Path, uninterrupted: Run
) -> None:
    """The run is killed in the middle of round 2; the SuperLink is started again on its database, and knows its
    sites."""
    config, path = {**STATEFUL, "num-server-rounds": 3}, tmp_path / "run"
    run_id = deployment.submit(path, config)
    middle_of_round(deployment, path, 2, site=0)
    deployment.kill("superlink", SERVER_APP if name == "server-app" else "")
    assert lines(path) == 2
    if name == "superlink":
        deployment.start_superlink()
        until(lambda: deployment.online() == SITES, "the SuperLink knows its sites")
    run = deployment.run(path, {**config, "resume": True})
    assert run.untimed == uninterrupted.untimed
    assert run.model_bytes == uninterrupted.model_bytes
    assert deployment.ended(run_id) == "finished:failed"


def test_rogue_and_slow_replies_are_dropped_and_named(deployment: Deployment, tmp_path: Path) -> None:
    """The other sites go on, to the bit, as if the site had not answered. Round 7 receives the late reply of the slow
    site."""
    orders = {2: "nan", 3: "shape", 4: "stale", 5: "raises", 6: 75.0}
    reasons = [
        "model: 31 of 31 values of 'parameters' are not finite",
        "model: 'parameters' is float32(30,), expected float32(31,)",
        "reply of round 3, expected 4",
        "its disk is full",
        "no answer",
    ]
    paths = os.pathsep.join([str(ROGUE), os.environ.get("PYTHONPATH", "")])
    deployment.stop("site-2")
    deployment.restart_node(2, environment={"PYTHONPATH": paths, "ROGUE": json.dumps(orders)})
    config = {"strategy": "fedx1", "dataset": "breast-cancer", "num-server-rounds": 8, "round-timeout": 60.0}
    run = deployment.run(tmp_path / "run", config)
    deployment.stop("site-2")
    deployment.restart_node(2)
    dropped = [line["dropped"] for line in run.lines]
    assert dropped[:7] == [{}, {}, *({"2": reason} for reason in reasons)]
    assert dropped[7] in ({}, {"2": "no answer"})
    assert dropped[8] == {}

    def silence(exchange: Exchange) -> Message:
        absent = not exchange.phase and str(exchange.partition) in dropped[exchange.server_round]
        return Message(Error(2, "silent"), reply_to=exchange.message) if absent else exchange.reply

    expected, _ = federate(tmp_path / "here" / "run", config, SITES, tamper=silence)
    assert run.model_bytes == expected.model_bytes
    assert [line["auc"] for line in run.lines] == [line["auc"] for line in expected.lines]


def test_a_site_restarted_without_its_state_dir_has_lost_its_state(deployment: Deployment, tmp_path: Path) -> None:
    """The site is named in the round in which it is back, and goes on from a fresh state."""
    path = tmp_path / "run"
    run_id = deployment.submit(path, {**STATEFUL, "num-server-rounds": 8, "round-timeout": 60.0})
    middle_of_round(deployment, path, 2, site=2)
    deployment.stop("site-2")
    deployment.restart_node(2, state_dir="")
    assert deployment.ended(run_id) == "finished:completed"
    deployment.stop("site-2")
    deployment.restart_node(2)
    run = Run(path)
    back = absence(run.lines)
    assert [(line["round"], line["state_lost"]) for line in run.lines if line["state_lost"]] == [(back, [2])]
    assert np.isfinite(run.numbers()).all()


def test_training_goes_on_without_a_killed_site_and_ends_with_too_few(deployment: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = {**STATEFUL, "num-server-rounds": 60, "min-train-nodes": 2, "round-timeout": 60.0}
    run_id = deployment.submit(path, config)
    middle_of_round(deployment, path, 2, site=2)
    deployment.kill("site-2")
    deployment.restart_node(2)
    back = lines(path)
    until(lambda: any(line["clients_answered"] == SITES for line in Run(path).lines[back:]), "the site takes part")
    absence(Run(path).lines)
    assert np.isfinite(Run(path).numbers()).all()
    # the site has found its state on its disk
    assert not any(line["state_lost"] for line in Run(path).lines)

    middle_of_round(deployment, path, lines(path) + 1, site=1)
    deployment.kill("site-0")
    deployment.kill("site-1")
    until(lambda: (path / "failure.json").exists(), "the run ends")
    last = lines(path) - 1
    reason = json.loads((path / "failure.json").read_text("utf-8"))["reason"]
    assert reason.startswith(
        f"round {last + 1}: 1 of 3 clients sent a valid reply, but min-train-nodes=2 requires 2; partition 0: "
    )
    assert any(gone in reason for gone in GONE), reason
    assert deployment.ended(run_id) == "finished:failed"
