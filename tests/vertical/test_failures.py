"""What goes wrong in one process ends the segment in every other one, within 15 seconds, with the culprit named.

Here parties are real processes with mutual TLS. What a party says about its own data is in
`tests.clients.test_party_failures`, what a mesh does alone in `tests.clients.test_mesh_failures`.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clients.vertical.failures import PartyError
from clients.vertical.frames import Kind
from clients.vertical.plan import Holding, Injection, Outcome
from tests.apps.vertical_runs import CSV, EVERYBODY, own_files, play
from tests.clients.party_problems import Case, make_case
from tests.vertical.company import LIMITS, Company, Post, address_of, impostor, posts
from tests.vertical.rogues import AT, Forge, Slow

slow = pytest.mark.slow


def endless(parties: int = 4, active: tuple[int, ...] = (0, 2), **fields: Any) -> Case:
    """More updates than any test waits for."""
    return make_case(parties, active, **{"rows": 200, "batch_size": 2, "epochs": 2000, "window": 3, **fields})


@contextlib.contextmanager
def team_of(
    case: Case, transport: str = "unix", holdings: list[Holding] | None = None, **limits: Any
) -> Iterator[dict[int, Post]]:
    with posts(case.plan, holdings or case.holdings, transport, replace(LIMITS, **limits)) as team:
        yield team


# who does not come, or goes


@slow
@pytest.mark.parametrize(("absent", "transport"), [(0, "unix"), (2, "tcp"), (3, "unix")])
def test_a_party_that_never_joins(absent: int, transport: str) -> None:
    with team_of(endless(), transport, join=2.0) as team:
        del team[absent]
        with Company(team.values()) as company:
            company.blamed(absent, "it never joined within 2 s")


@slow
@pytest.mark.parametrize(
    ("victim", "active", "transport"), [(0, (0, 2), "tcp"), (2, (0, 2), "unix"), (3, (0, 2), "tcp"), (0, (0,), "unix")]
)
def test_a_party_that_is_killed(victim: int, active: tuple[int, ...], transport: str) -> None:
    with team_of(endless(active=active), transport) as team, Company(team.values()) as company:
        company.under_way()
        company.signal(victim, signal.SIGKILL)
        company.blamed(victim, "its connection", [me for me in team if me != victim])


@slow
@pytest.mark.parametrize(
    ("victim", "algorithm", "transport"), [(0, "sgd", "tcp"), (2, "svrg", "unix"), (3, "saga", "tcp")]
)
def test_a_party_that_hangs(victim: int, algorithm: str, transport: str) -> None:
    with team_of(endless(algorithm=algorithm), transport, silence=2.0) as team, Company(team.values()) as company:
        company.under_way()
        company.signal(victim, signal.SIGSTOP)
        company.blamed(victim, "it has been silent for 2 s", [me for me in team if me != victim])
        # it hears of it when it goes on, and does not stay behind
        company.signal(victim, signal.SIGCONT)
        company.blamed(victim, "it has been silent for 2 s", [victim])


@slow
@pytest.mark.parametrize(
    ("sluggard", "how"),
    [
        pytest.param(0, Injection(compute=0.3), id="the dominator sleeps"),
        pytest.param(1, Injection(compute=2.5), id="a party sleeps longer than the limit"),
        pytest.param(0, Slow(0.3), id="the dominator computes"),
        pytest.param(1, Slow(0.3), id="a party computes"),
    ],
)
def test_a_slow_party_stays(sluggard: int, how: Injection | Slow) -> None:
    """It takes several times the limit of silence, and the run is the one without it."""
    updates = 2 if isinstance(how, Injection) and how.compute > 1 else 15
    case = make_case(4, (0,), rows=4 * updates, batch_size=4, epochs=1, window=2, algorithm="svrg")
    with team_of(case, silence=1.0, beat=0.2) as team:
        if isinstance(how, Injection):
            team[sluggard].injection = how
        else:
            team[sluggard].act = how
        with Company(team.values()) as company:
            outcomes = company.outcomes()
    assert max(outcome.counters["seconds_training"] for outcome in outcomes) > 4.0
    assert all(outcome.counters["updates"] == updates for outcome in outcomes)
    objective = case.problem().value(case.features, case.labels, case.whole(outcomes))
    assert outcomes[0].metrics["objective"] == pytest.approx(objective, rel=0, abs=1e-10)
    at_zero = case.problem().value(case.features, case.labels, np.zeros(13))
    assert objective < at_zero


# where and who


@slow
@pytest.mark.parametrize("party", [0, 3])
def test_a_port_in_use(party: int) -> None:
    with team_of(endless(), "tcp") as team:
        address = address_of(team, party)
        with socket.create_server((address.host, address.port)), Company(team.values()) as company:
            company.blamed(party, "already in use")


@slow
@pytest.mark.parametrize(("party", "transport"), [(0, "tcp"), (1, "unix"), (3, "tcp")])
def test_an_unknown_certificate(party: int, transport: str) -> None:
    with team_of(endless(), transport, join=2.5) as team:
        team[party] = impostor(team[party])
        with Company(team.values()) as company:
            company.blamed(party, "certificate")


# what they hold


@slow
def test_row_counts_that_differ() -> None:
    case = endless()
    holdings = case.holdings
    holdings[3].features = holdings[3].features[:-1]
    with team_of(case, holdings=holdings) as team, Company(team.values()) as company:
        company.blamed(3, "it holds 199 training rows, the plan says 200")


@slow
def test_labels_that_differ() -> None:
    case = endless(active=(0, 2, 3))
    holdings = case.holdings
    holdings[3].labels = case.labels * np.where(np.arange(200) == 7, -1, 1)
    with team_of(case, holdings=holdings) as team, Company(team.values()) as company:
        company.blamed(3, "its labels differ from those of party 0")


@slow
@pytest.mark.parametrize("party", [1, 2])
@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
def test_partials_that_overflow_the_ring(party: int, masking: str) -> None:
    """Its features are a million times those of the others: after its first update its partials are, squared."""
    case = endless(masking=masking)
    holdings = case.holdings
    holdings[party].features = holdings[party].features * 1e6
    with team_of(case, holdings=holdings) as team, Company(team.values()) as company:
        company.blamed(party, "cannot be sent")


@slow
@pytest.mark.parametrize("problem", ["logistic", "ridge"])
def test_a_step_far_too_large(problem: str) -> None:
    """All blocks diverge; all parties hear of it, whichever they hear of first."""
    case = endless(problem=problem, step=1e9)
    with team_of(case) as team, Company(team.values()) as company:
        for ended in company.ends().values():
            assert isinstance(ended.result, PartyError), repr(ended.result)
            assert ended.result.party in range(4)
            assert "cannot be sent" in ended.result.reason or "diverges" in ended.result.reason


def names_of(folder: Path, party: int) -> pd.DataFrame:
    return pd.read_csv(folder / f"party-{party}.csv")


def test_ids_that_differ(tmp_path: Path) -> None:
    """As many rows, one of them of somebody else: only digests can tell."""
    strangers = [*EVERYBODY[:-1], "row-999"]
    nodes, _ = own_files(tmp_path, [EVERYBODY, EVERYBODY, strangers, EVERYBODY])
    assert len(names_of(tmp_path, 2)) == len(names_of(tmp_path, 0))
    with pytest.raises(RuntimeError, match=r"party 2: got other rows \(60\) than 3 of 4 parties, who agree on 60"):
        play(tmp_path / "run", CSV, nodes)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_features_that_are_no_numbers(value: float, tmp_path: Path) -> None:
    """Party, column and the file's own row are named, and nothing is trained."""
    nodes, _ = own_files(tmp_path, [EVERYBODY] * 3)
    frame = names_of(tmp_path, 2)
    frame.loc[[11, 44], "x7"] = value
    frame.to_csv(tmp_path / "party-2.csv", index=False)
    told = "partition 2: data-path: column 'x7': got 2 of 60 values missing or not finite, the first in row 12,"
    with pytest.raises(RuntimeError, match=told):
        play(tmp_path / "run", CSV, nodes)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# what they send

FORGERIES = [
    (3, Forge("replay", Kind.PARTIAL), "came a second time"),
    (2, Forge("replay", Kind.THETA), "came a second time"),
    (3, Forge("later replay", Kind.PARTIAL), "came a second time"),
    (2, Forge("later replay", Kind.THETA), "came a second time"),
    (3, Forge("serial", Kind.PARTIAL), "serial 6; this segment's is 7"),
    (2, Forge("serial", Kind.THETA), "serial 6; this segment's is 7"),
    (3, Forge("address", Kind.PARTIAL), "it sent party"),
    (2, Forge("address", Kind.THETA), "it sent theta for party 3; each dominator sends its own"),
    (3, Forge("cut", Kind.PARTIAL), "bytes, not the"),
    (2, Forge("cut", Kind.THETA), f"its theta {AT} has 8 bytes, not the 16 of the batch"),
    (3, Forge("length", Kind.PARTIAL), "a body of 2147483648 bytes; the longest is"),
    (2, Forge("garbage", Kind.THETA), "a body of"),
    (2, Forge("nan", Kind.THETA), "not finite"),
]


@slow
@pytest.mark.parametrize(
    ("party", "forge", "words"), FORGERIES, ids=[f"{f.how} {f.kind.name.lower()}" for _, f, _ in FORGERIES]
)
def test_a_forger(party: int, forge: Forge, words: str) -> None:
    with team_of(endless(), "tcp" if party == 3 else "unix") as team:
        team[party].act = forge
        with Company(team.values()) as company:
            company.blamed(party, words)


@slow
def test_a_forger_among_sluggards() -> None:
    """A dominator's bad slopes are found in time although every party is slow."""
    case = endless(active=(1, 2))
    with team_of(case) as team:
        for post in team.values():
            post.injection = Injection(compute=0.05)
        team[1].act = Forge("nan", Kind.THETA)
        with Company(team.values()) as company:
            company.blamed(1, "not finite")


# and where nothing goes wrong


@slow
@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_a_company_without_a_fault_finishes(transport: str) -> None:
    """Else all of the above could fail for reasons of their own."""
    with team_of(endless(epochs=2), transport) as team:
        team[2].act = Forge("cut", Kind.ALIGN)  # which it never sends
        with Company(team.values()) as company:
            outcomes = company.outcomes()
    assert all(isinstance(outcome, Outcome) and outcome.counters["updates"] == 200 for outcome in outcomes)
