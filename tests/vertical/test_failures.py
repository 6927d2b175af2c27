"""Tests that a failure of one process ends the segment in all others, within 15 seconds, with the culprit named.

Parties are separate processes. For reports about a party's own data, and for forgeries, see
`tests.clients.test_party_failures`; for meshes alone, including unknown certificates, `tests.clients.test_mesh_*`.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.apps.vertical_runs import CSV, EVERYBODY, own_files, play
from tests.clients.party_problems import Case, make_case
from tests.refusals import refuses
from tests.vertical.company import LIMITS, Company, Post, posts
from vertical.injection import Injection
from vertical.problem.blocks.base import Rows
from vertical.problem.blocks.dense import DenseBlock
from vertical.problem.objectives import Array


@dataclass(frozen=True)
class Slow:
    """A patch that makes each update of a block take so many seconds and block its process."""

    seconds: float

    def __call__(self) -> None:
        apply, seconds = DenseBlock.apply, self.seconds

        def slowly(self: DenseBlock, rows: Rows, theta: Array) -> None:
            time.sleep(seconds)
            apply(self, rows, theta)

        DenseBlock.apply = slowly  # type: ignore[method-assign]


def slow(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test as slow; its time limits need a machine without other work."""
    return pytest.mark.alone(pytest.mark.slow(test))


def endless(active: tuple[int, ...] = (0, 2), **fields: Any) -> Case:
    """Return a segment with more updates than any test waits for."""
    return make_case(4, active, **{"rows": 200, "batch_size": 2, "epochs": 2000, "window": 3, **fields})


@contextlib.contextmanager
def team_of(case: Case, transport: str = "unix", **limits: Any) -> Iterator[dict[int, Post]]:
    with posts(case.plan, case.holdings, transport, replace(LIMITS, **limits)) as team:
        yield team


# absent or leaving parties


@slow
@pytest.mark.parametrize(("absent", "transport"), [(0, "unix"), (2, "tcp")])
def test_a_party_that_never_joins(absent: int, transport: str) -> None:
    with team_of(endless(), transport, join=2.0) as team:
        del team[absent]
        with Company(team.values()) as company:
            company.blamed(absent, "it never joined within 2 s")


@slow
@pytest.mark.parametrize(("victim", "active", "transport"), [(0, (0,), "unix"), (3, (0, 2), "tcp")])
def test_a_party_that_is_killed(victim: int, active: tuple[int, ...], transport: str) -> None:
    with team_of(endless(active), transport) as team, Company(team.values()) as company:
        company.under_way()
        company.signal(victim, signal.SIGKILL)
        company.blamed(victim, "its connection", [me for me in team if me != victim])


@slow
@pytest.mark.parametrize(("victim", "algorithm", "transport"), [(0, "sgd", "tcp"), (2, "svrg", "unix")])
def test_a_party_that_hangs(victim: int, algorithm: str, transport: str) -> None:
    with team_of(endless(algorithm=algorithm), transport, silence=2.0) as team, Company(team.values()) as company:
        company.under_way()
        company.signal(victim, signal.SIGSTOP)
        company.blamed(victim, "it has been silent for 2 s", [me for me in team if me != victim])
        # the party gets the error when it goes on, and ends too
        company.signal(victim, signal.SIGCONT)
        company.blamed(victim, "it has been silent for 2 s", [victim])


@slow
@pytest.mark.parametrize(
    ("sluggard", "how", "updates"),
    [
        pytest.param(1, Injection(compute=2.5), 2, id="a party sleeps longer than the limit"),
        pytest.param(0, Slow(0.3), 15, id="the dominator computes"),
    ],
)
def test_a_slow_party_stays(sluggard: int, how: Injection | Slow, updates: int) -> None:
    """It takes several times the limit of silence, and the result stays the same."""
    case = make_case(4, (0,), rows=4 * updates, batch_size=4, epochs=1, window=2, algorithm="svrg")
    with team_of(case, silence=1.0, beat=0.2) as team:
        setattr(team[sluggard], "injection" if isinstance(how, Injection) else "act", how)
        with Company(team.values()) as company:
            outcomes = company.outcomes()
    assert max(outcome.counters["seconds_training"] for outcome in outcomes) > 4.0
    assert all(outcome.counters["updates"] == updates for outcome in outcomes)
    objective = case.problem().value(case.features, case.labels, case.whole(outcomes))
    assert outcomes[0].metrics["objective"] == pytest.approx(objective, rel=0, abs=1e-10)
    assert objective < case.problem().value(case.features, case.labels, np.zeros(13))


# the parties' data


def test_ids_that_differ(tmp_path: Path) -> None:
    """The counts are equal, but one row differs: the parties compare digests."""
    nodes, _ = own_files(tmp_path, [EVERYBODY, EVERYBODY, [*EVERYBODY[:-1], "row-999"], EVERYBODY])
    with pytest.raises(RuntimeError, match=r"party 2: it has other rows \(60\) than 3 of 4 parties: provide the same"):
        play(tmp_path / "run", CSV, nodes)


@pytest.mark.parametrize(
    ("value", "fault"), [(np.nan, "missing"), (np.inf, "that are not finite"), (-np.inf, "that are")]
)
def test_features_that_are_no_numbers(value: float, fault: str, tmp_path: Path) -> None:
    """The error names party, column and the file's own row, and nothing is trained."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    frame = pd.read_csv(tmp_path / "party-2.csv")
    frame.loc[[11, 44], "x7"] = value
    frame.to_csv(tmp_path / "party-2.csv", index=False)
    told = f"partition 2: data-path: column 'x7': got 2 of 60 cells {fault}.*, the first in row 12"
    with refuses(RuntimeError, told):
        play(tmp_path / "run", CSV, nodes)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
