"""Two companies with their own files train on secret shares, and score new customers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from apps.config import Scalar
from tests.apps.vertical_runs import CSV, own_files, play, scores_of_blocks

KEYS: dict[str, Scalar] = {**CSV, "strategy": "shared-sgd", "learning-rate": 0.3, "vfb2.assemble": False}
KEYS |= {"vfb2.alignment": "intersection"}
OLD = [f"row-{number:03}" for number in range(400)]
NEW = [f"new-{number:03}" for number in range(30)]


def test_two_companies_train_and_score_on_shares(tmp_path: Path) -> None:
    ids = [OLD[:390], OLD[10:]]
    nodes, _ = own_files(tmp_path, ids, labelled=1)
    folders = [tmp_path / f"state-{party}" for party in range(2)]
    kept = [
        {**node, "state-dir": str(folder), "allowed-maskings": "shares"}
        for node, folder in zip(nodes, folders, strict=True)
    ]
    run, tap = play(tmp_path / "run", {**KEYS, "num-server-rounds": 10}, kept)
    assert run.result["metrics"]["auc"] > 0.9
    assert run.model == {}
    packages = [e.message.content["payload"] for e in tap.exchanges if e.server_round == 1 and not e.phase]
    seeds = [bytes(package["package"])[:96] for package in packages]  # type: ignore[index]
    assert len({*seeds}) == 2
    token = (run.path / "run-token").read_text()
    (tmp_path / "new").mkdir()
    new, whole = own_files(tmp_path / "new", [NEW[:25], NEW[3:]], labelled=0)
    scoring = [{**old, **node} for old, node in zip(kept, new, strict=True)]
    play(tmp_path / "scored", {**KEYS, "vfb2.score-run": token}, scoring)
    (file,) = tmp_path.rglob("scores*.csv")
    scores = pd.read_csv(file).set_index("id")
    rows = whole[whole["id"].isin(NEW[3:25])]
    assert scores.index.tolist() == rows["id"].tolist()
    np.testing.assert_allclose(scores.iloc[:, 0], scores_of_blocks(rows, folders, token), atol=1e-9)
    assert json.loads((run.path / "result.json").read_text())["metrics"]["loss"] > 0
