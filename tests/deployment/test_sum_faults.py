"""Tests of sites that are killed during secure sums: the sum covers the other sites, until too few are left."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from safetensors.numpy import load_file

from apps.config import Scalar
from tests.battery.federation import Exchange, Run, federate
from tests.deployment.federation import PROJECT, SECONDS_TO_RUN, deployed, until

pytestmark = pytest.mark.faults

SITES = 6
ROGUE = PROJECT / "tests" / "deployment" / "rogue"
# site -> the round and the stage in which it is killed; unmasking a site takes 4, 3, 2 and 2 neighbours in these rounds
DEATHS = {5: (1, "shares"), 4: (2, "values"), 3: (3, "boxes"), 2: (4, "shares")}
# the site whose values are missing from the sum of a round
WITHOUT = {2: {4, 5}, 3: {3, 4, 5}}
CONFIG: dict[str, Scalar] = {"strategy": "local-sgd", "dataset": "breast-cancer", "partition": "dirichlet"}


def variables(site: int) -> dict[str, str]:
    paths = os.pathsep.join([str(ROGUE), os.environ.get("PYTHONPATH", "")])
    server_round, stage = DEATHS.get(site, (0, ""))
    return {"PYTHONPATH": paths, "ROGUE": json.dumps({server_round: f"dies in {stage}"}), "MORTAL": "yes"}


def silence(exchange: Exchange) -> Message:
    absent = not exchange.phase and exchange.partition in WITHOUT.get(exchange.server_round, ())
    return Message(Error(2, "silent"), reply_to=exchange.message) if absent else exchange.reply


def test_sites_killed_in_each_stage_are_named_and_the_others_go_on_while_they_are_enough(tmp_path: Path) -> None:
    keys: dict[str, Scalar] = {"privacy.secure-sum": True, "checkpoint-every": 1, "round-timeout": 90.0}
    path = tmp_path / "run"
    with deployed(tmp_path, SITES, environments=[variables(site) for site in range(SITES)]) as deployment:
        run_id = deployment.submit(path, {**CONFIG, **keys, "num-server-rounds": 9, "min-train-nodes": 1})
        until(
            lambda: any((path / end).exists() for end in ("failure.json", "result.json")),
            "the run ends",
            SECONDS_TO_RUN,
        )
        assert deployment.ended(run_id) == "finished:failed", deployment.logs()
        killed = [site for site in range(SITES) if deployment.processes[f"site-{site}"].poll() is not None]
    assert killed == sorted(DEATHS)

    lines = Run(path).lines
    assert [sorted(line["dropped"]) for line in lines] == [[], ["5"], ["4", "5"], ["3", "4", "5"]]
    for site, (server_round, stage) in DEATHS.items():
        for line in lines[server_round:]:
            where = stage if line["round"] == server_round else "keys"
            reason = line["dropped"][str(site)]
            assert reason.startswith("" if where == "values" else f"secure sum, {where} phase: "), line
            assert any(gone in reason for gone in ("no answer", "Node Unavailable")), line

    reason = json.loads((path / "failure.json").read_text("utf-8"))["reason"]
    missing = "partition 0: 1 shares of its seed, needed: 2; no answer from partitions 2; partition 3: "
    assert reason.startswith(f"round 4: secure sum: {missing}"), reason

    there = tmp_path / "plain" / "run"
    plain, _ = federate(there, {**CONFIG, "checkpoint-every": 1, "num-server-rounds": 3}, SITES, tamper=silence)
    assert sorted(plain.lines[2]["dropped"]) == ["4", "5"]
    summed, expected = (load_file(run / "checkpoints" / "round-000003.safetensors") for run in (path, there))
    # six values within 16 leave 24 bits behind the point: 2^-25 a value, in three rounds, over the sum of the weights
    np.testing.assert_allclose(summed["model.parameters"], expected["model.parameters"], rtol=0, atol=1e-6)
