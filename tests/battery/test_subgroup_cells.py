"""No site reveals a small group of its held-out rows, neither directly nor as a difference within a run.

Two runs with different borders do reveal a small group, as docs/after-a-run.md states, unless the owner fixes the key.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, MessageType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apps.config import Scalar
from payloads.handshake import Scaling
from payloads.held_out import BINS, COLUMN, IMPORTANCE_COUNTS, SUBGROUP_COUNTS, SetCounts
from payloads.wire import PHASE, ROUND, content, model_record
from problems.least_cell import is_small, suppress
from tests.battery.federation import federate, patients
from tests.battery.test_least_cell import NAMED, RUN, ask, put, shake_hands

LEAST = 5
CONFIG: dict[str, Scalar] = {**RUN, **NAMED, "test-fraction": 0.5}


@settings(max_examples=300, deadline=None)
@example(counts=[(40, 30), (30, 20), (9, 2)], least=5)
@example(counts=[(40, 30), (3, 3)], least=5)
@given(counts=st.lists(st.tuples(*[st.integers(0, 30)] * 2), min_size=2, max_size=6), least=st.integers(2, 12))
def test_neither_groups_nor_their_complements_are_small(counts: list[tuple[int, int]], least: int) -> None:
    cells = np.array(counts)
    hidden = suppress(cells, least)
    if is_small(cells.sum(axis=0), least):  # then the site counts nothing
        return
    assert not is_small(cells[~hidden], least)
    if hidden.any():
        assert hidden.sum() >= 2
        assert not is_small(cells[hidden].sum(axis=0), least)
        assert cells[hidden].sum(axis=1).all()


def count_groups(
    node: dict[str, Scalar], subgroups: str, column: int = 0, phase: str = SUBGROUP_COUNTS
) -> SetCounts | str:
    """Return a site's counts for a model of the server's choice, without a handshake."""
    asked = content(
        arrays=model_record([np.array([1.0, 0.0, 0.0], np.float32)]),
        config=ConfigRecord({ROUND: 1, PHASE: phase, COLUMN: column}),
        scaling=Scaling(means=np.zeros(2), deviations=np.ones(2)).to_record(),
    )
    answer = ask(node, asked, MessageType.EVALUATE, {**CONFIG, "subgroups": subgroups})
    return answer if isinstance(answer, str) else SetCounts.from_record(answer)


def sizes(counts: SetCounts | str) -> list[tuple[int, int]]:
    assert isinstance(counts, SetCounts)
    return list(zip(*(side.sum(axis=1).tolist() for side in counts.by_set()), strict=True))


def table(young: int) -> pd.DataFrame:
    """Return 200 rows, some of which are younger than 18 and none of which is 65 or older."""
    rows = patients(200, 0).assign(age=np.linspace(20, 64, 200))
    rows.loc[: young - 1, "age"] = 17.0
    return rows


@pytest.mark.parametrize("young", [10, 60])
def test_a_small_group_hides_another(young: int, tmp_path: Path) -> None:
    node = put(table(young), tmp_path)
    counts = count_groups(node, "age(18, 30, 65)")
    assert isinstance(counts, SetCounts)
    assert not any(is_small(pair, LEAST) for pair in sizes(counts))
    withheld = counts.withheld.tolist()
    assert sum(withheld) == (2 if young == 10 else 0)
    assert withheld[0] == (young == 10)
    report = shake_hands(node, CONFIG)
    assert not isinstance(report, str)
    assert report.held_out_counts is not None
    rest = report.held_out_counts - np.sum(sizes(counts), axis=0)
    assert not is_small(rest, LEAST)


def test_borders_of_two_runs_differ_unless_the_owner_fixes_them(tmp_path: Path) -> None:
    rows = patients(200, 0).assign(age=np.linspace(20, 90, 200))
    node = put(rows, tmp_path)
    first, second = (sizes(count_groups(node, f"age(50, {border})")) for border in (65, 66))
    between = np.subtract(second[1], first[1])
    assert 0 < between.sum() < LEAST  # the known limit
    for fixed in ("age(50, 65)", ""):
        answer = count_groups({**node, "subgroups": fixed}, "age(50, 66)")
        assert isinstance(answer, str)
        assert "subgroups" in answer
    assert sizes(count_groups({**node, "subgroups": "age(50, 65)"}, "age(50, 65)")) == first
    owner: dict[str, Scalar] = {
        **node,
        "split-seed": 0,
        "dataset": "csv",
        "label-column": "ill",
        "positive-label": "yes",
    }
    answer = count_groups({**owner, "feature-columns": "age,weight", "test-fraction": 0.5}, "age(50, 65)")
    assert isinstance(answer, str)
    assert "subgroups" in answer


def test_a_server_cannot_ask_for_more_than_the_run_config(tmp_path: Path) -> None:
    node = put(patients(200, 0), tmp_path)
    for column, phase in ((1, SUBGROUP_COUNTS), (-1, SUBGROUP_COUNTS), (0, IMPORTANCE_COUNTS)):
        answer = count_groups(node, "age(50)", column, phase)
        assert isinstance(answer, str)
        assert phase in answer
    assert isinstance(count_groups(node, ""), str)


def test_a_reply_with_too_many_rows_is_dropped(tmp_path: Path) -> None:
    nodes = [put(patients(200, place), tmp_path, str(place)) for place in range(3)]
    config: dict[str, Scalar] = {**CONFIG, "subgroups": "age(50)", "min-train-nodes": 2, "num-server-rounds": 1}

    def tamper(exchange):  # type: ignore[no-untyped-def]
        if exchange.phase == SUBGROUP_COUNTS and exchange.partition == 1:
            counts = np.full(3 * BINS, 9, np.int32)
            false = SetCounts(negatives=counts, positives=counts, withheld=np.zeros(3, np.int32))
            exchange.reply.content["payload"] = false.to_record()
        return exchange.reply

    run, _ = federate(tmp_path / "run", config, tamper=tamper, nodes=nodes)
    groups = run.result["subgroups"][0]["groups"]
    assert sum(group["rows"] for group in groups) == 200
