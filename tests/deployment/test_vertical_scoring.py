"""Tests of deployed parties that train on files and then score other files, each in its own process with its own
certificate."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.apps.vertical_runs import CSV, EVERYBODY, identified, own_files, play, scores_of_blocks
from tests.battery.engines import end_processes
from tests.deployment.federation import Deployment, until

pytestmark = pytest.mark.deployment

NEW = [f"new-{number:03}" for number in range(30)]


@pytest.mark.parametrize(("strategy", "parties"), [("vfb2-saga", 3), ("shared-sgd", 2)])
def test_deployed_parties_score_the_rows_they_have_in_common(strategy: str, parties: int, tmp_path: Path) -> None:
    """They use mutual TLS over TCP on the loopback; the scores equal the pooled linear model's."""
    (tmp_path / "new").mkdir()
    ids = [NEW[:25], NEW[3:], NEW[:10] + NEW[12:]][:parties]
    nodes, _ = own_files(tmp_path, [EVERYBODY] * parties, labelled=1)
    fresh, whole = own_files(tmp_path / "new", ids, labelled=0)
    nodes = [{**node, "allowed-maskings": "pairwise, shares"} for node in identified(tmp_path, nodes)]
    deployment = Deployment(tmp_path, parties)
    try:
        deployment.prepare()
        deployment.start_superlink()
        deployment.register()
        for place, (node, later) in enumerate(zip(nodes, fresh, strict=True)):
            paths = {"score-path": later["data-path"], "scores-path": str(tmp_path / f"scores-{place}.csv")}
            settings = {**node, **paths, "stay": 120}
            deployment.start_node(place, **{key.replace("-", "_"): value for key, value in settings.items()})
        until(lambda: deployment.online() == parties, "all SuperNodes are online")
        config = {**CSV, "strategy": strategy, "vfb2.transport": "tcp", "vfb2.join-timeout": 60.0}
        config |= {"vfb2.alignment": "intersection", "num-server-rounds": 1, "learning-rate": 0.05}
        config["vfb2.intercept"] = "auto"
        token = (deployment.run(tmp_path / "train", config).path / "run-token").read_text()
        scored = deployment.run(tmp_path / "score", {**config, "vfb2.score-run": token, "vfb2.score-for": "all"})
        assert scored.lines[-1]["clients_answered"] == parties
        common = whole[whole["id"].isin(set.intersection(*map(set, ids)))].set_index("id")
        assert f"the scores of {len(common)} rows are in" in deployment.logs()
    finally:
        end_processes(tmp_path)
        for process in deployment.processes.values():
            process.wait()
    z = scores_of_blocks(common, [tmp_path / f"state-{party}" for party in range(parties)], token)
    for party in range(parties):
        scores = pd.read_csv(tmp_path / f"scores-{party}.csv")
        assert list(scores["id"]) == list(common.index)
        np.testing.assert_allclose(scores["score"], z, rtol=0, atol=1e-9)
    if strategy == "shared-sgd":  # each run has new masks, which change the rounding
        folders = [tmp_path / f"here-{party}" for party in range(parties)]
        own = [{**node, "state-dir": str(folder)} for node, folder in zip(nodes, folders, strict=True)]
        run, _ = play(tmp_path / "here", config, own)
        again = scores_of_blocks(common, folders, (run.path / "run-token").read_text())
        np.testing.assert_allclose(again, z, rtol=0, atol=1e-4)
