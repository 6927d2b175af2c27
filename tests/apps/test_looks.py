"""A party counts, over all runs, how many numbers of every row its peers could have computed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apps.config import ConfigError, Scalar, parse_run_config
from apps.parties.looks import LookLedger, looks_of, planned_looks
from tests.apps.vertical_runs import CSV, own_files, play
from tests.battery.federation import flat_config
from tests.clients.party_problems import make_case
from tests.refusals import refuses
from vertical.policy import PolicyError

IDS = [f"row-{number:03}" for number in range(60)]
# two looks: one for an epoch, one for its evaluation
SHORT: dict[str, Scalar] = {**CSV, "num-server-rounds": 1}


def counted(folder: Path, most: int = 0) -> list[dict[str, Scalar]]:
    nodes, _ = own_files(folder, [IDS] * 3)
    nodes[2] |= {"state-dir": str(folder / "state"), **({"most-looks": most} if most else {})}
    return nodes


def test_short_runs_that_together_show_a_party_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = counted(tmp_path, 5)
    for run in range(2):
        play(tmp_path / f"run-{run}", {**SHORT, "seed": run}, nodes)
        warned = [
            line
            for line in caplog.messages
            if line.startswith("party 2: over all runs the other parties could have computed")
        ]
        assert len(warned) == run
    assert "4 numbers about each row, and 3 such numbers" in warned[0]
    with refuses(RuntimeError, "party 2: most-looks: got 2 further looks .* after 4"):
        play(tmp_path / "run-2", SHORT, nodes)


def test_another_row_or_id_column_does_not_start_a_new_count(tmp_path: Path) -> None:
    nodes = counted(tmp_path, 3)
    play(tmp_path / "first", SHORT, nodes)
    for node in nodes:
        frame = pd.read_csv(str(node["data-path"])).sort_values("id").iloc[1:]
        frame.insert(0, "number", np.arange(len(frame)))
        frame.to_csv(str(node["data-path"]), index=False)
    with refuses(RuntimeError, "party 2: most-looks: got 2 further looks"):
        play(tmp_path / "second", {**SHORT, "vfb2.id-column": "number", "drop-columns": "id"}, nodes)


def test_a_limit_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    nodes = counted(tmp_path)
    for node, told in (({"most-looks": 5}, "no state-dir"), ({"most-looks": -1}, "got -1, allowed: an integer >= 0")):
        with refuses((RuntimeError, ConfigError), f"most-looks.*{told}"):
            play(tmp_path / told[:3], SHORT, [*nodes[:2], {"data-path": nodes[2]["data-path"], **node}])


def test_a_segment_is_refused_even_if_the_server_leaves_out_the_handshake(tmp_path: Path) -> None:
    plan = replace(make_case().plan, segment=1)
    for run in range(2):  # with another number, or resumed
        LookLedger(tmp_path, 0, run, 7).spend(plan, 10, None)
    with refuses(PolicyError, "^most-looks: got 3 further looks .* after 6"):
        LookLedger(tmp_path, 0, 0, 7).spend(plan, 10, None)
    assert LookLedger(tmp_path, 1, 0, 7).spend(plan, 10, None) == 3  # another party with the same folder


def test_a_block_that_scores_counts_once(tmp_path: Path) -> None:
    plan = replace(make_case().plan, score=True, epochs=0, evaluate=False, test_rows=0)
    ledger = LookLedger(tmp_path, 0, 1, 0)
    assert [ledger.spend(plan, 10, np.full(3, value)) for value in (1.0, 1.0, 2.0, 1.0)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("strategy", "keys"),
    [
        ("vfb2-sgd", {}),
        ("vfb2-sgd", {"vfb2.embedding": 3}),
        ("vfb2-svrg", {"evaluate-every": 3, "vfb2.epochs": 4}),
        ("vfb2-saga", {"evaluate-every": 3, "vfb2.epochs": 4}),
    ],
)
def test_the_plan_of_a_run_is_the_sum_of_its_segments(strategy: str, keys: dict[str, Scalar], tmp_path: Path) -> None:
    fields: dict[str, Scalar] = {**CSV, "vfb2.assemble": False, "strategy": strategy, "num-server-rounds": 7, **keys}
    config = parse_run_config(flat_config(tmp_path, fields))
    every, epochs = int(keys.get("evaluate-every", 1)), int(keys.get("vfb2.epochs", 1))
    plan = make_case(algorithm=strategy.removeprefix("vfb2-"), embedding=int(keys.get("vfb2.embedding", 0))).plan
    segments = [
        replace(plan, segment=n, epochs=epochs * (n > 0), start=n == 1, evaluate=n in (0, 7) or n % every == 0)
        for n in range(0 if plan.embedding else 1, 8)  # at first a linear block is zero
    ]
    assert planned_looks(config) == sum(map(looks_of, segments))
