"""A run that is rolled back, cut or continued ends where the undisturbed one ends, bit for bit.

With one active party and one update under way (m = 1, W = 1) nothing depends on whose message is faster.
"""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from apps.config import Scalar
from benchmarks.parties import PartiesError, run_parties
from clients.vertical.segment.plan import Injection, Outcome, PartyState, Plan
from clients.vertical.transport.endpoint import Delays, Limits
from problems.data import DataSpec
from problems.vertical.blocks.dense import DenseBlock
from problems.vertical.data import load_vertical
from problems.vertical.objectives import make_objective
from simulations.references.vertical import train
from tests.apps.vertical_runs import KEYS, PARTIES, play
from tests.battery.federation import Exchange, Run, federate
from tests.clients.party_problems import ALGORITHMS, Case, make_case
from tests.vertical.sabotage import FULL, Saboteur

LIMITS = Limits(join=5.0, beat=0.3, silence=3.0, close=1.0)
SEGMENTS = 4
SOME_SLOW = ["svrg", pytest.param("saga", marks=pytest.mark.slow)]


def case_of(algorithm: str, **fields: Any) -> Case:
    return make_case(4, (1,), algorithm=algorithm, rows=60, batch_size=5, epochs=1, step=0.03, **fields)


def plans_of(case: Case, first: int = 0, attempts: int = 0) -> list[Plan]:
    """The plans of the segments from `first` on, each of one epoch; serials count every attempt."""
    return [
        replace(case.plan, serial=10 + segment + attempts, segment=segment, first_epoch=segment, start=segment == 0)
        for segment in range(first, SEGMENTS)
    ]


def states(outcomes: Sequence[Outcome]) -> list[PartyState]:
    """What the parties go on from, as a file would keep it."""
    kept: list[PartyState] = pickle.loads(pickle.dumps([outcome.state for outcome in outcomes]))
    return kept


def play_segments(
    case: Case, plans: Sequence[Plan], start: list[PartyState] | None = None, **options: Any
) -> list[list[Outcome]]:
    return run_parties(case.holdings, plans, **{"processes": False, "states": start, "limits": LIMITS, **options})


def assert_same(left: Sequence[Outcome], right: Sequence[Outcome]) -> None:
    for mine, theirs in zip(left, right, strict=True):
        np.testing.assert_array_equal(mine.weights, theirs.weights)
        np.testing.assert_array_equal(mine.table, theirs.table)
        assert mine.metrics == theirs.metrics


# the engine


def break_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have party 0, which alone has four columns, fail at its eighth update; lists the updates it has seen."""
    applied: list[int] = []
    apply = DenseBlock.apply

    def fragile(block: DenseBlock, rows: Any, theta: Any) -> None:
        if block.columns == 4 and len(applied) < 8:
            applied.append(len(rows))
            if len(applied) == 8:
                raise OSError(FULL)
        apply(block, rows, theta)

    monkeypatch.setattr(DenseBlock, "apply", fragile)
    return applied


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_segment_that_failed_midway_is_made_again(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have updated their blocks by then; what they keep is untouched."""
    case = case_of(algorithm)
    whole = play_segments(case, plans_of(case))
    kept = states(whole[1])
    before = pickle.dumps(kept)
    applied = break_once(monkeypatch)
    with pytest.raises(PartiesError) as caught:
        play_segments(case, plans_of(case, 2)[:1], kept)
    assert len(applied) == 8
    assert {str(error) for error in caught.value.errors.values()} == {f"party 0: OSError: {FULL}"}
    assert pickle.dumps(kept) == before
    again = play_segments(case, plans_of(case, 2, attempts=1), kept)
    for here, there in zip(again, whole[2:], strict=True):
        assert_same(here, there)


@pytest.mark.parametrize(("algorithm", "masking"), [("sgd", "pairwise"), ("svrg", "two-trees"), ("saga", "pairwise")])
def test_a_run_goes_on_from_what_it_kept(algorithm: str, masking: str) -> None:
    case = case_of(algorithm, masking=masking)
    whole = play_segments(case, plans_of(case))
    for cut in range(1, SEGMENTS):
        rest = play_segments(case, plans_of(case, cut, attempts=5), states(whole[cut - 1]))
        assert_same(rest[-1], whole[-1])
    assert whole[-1][0].weights.tobytes() != whole[-2][0].weights.tobytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_segments_are_one_run(algorithm: str) -> None:
    """To the bit, but for SAGA: its running mean is computed anew from the table where a segment starts."""
    case = case_of(algorithm)
    parts = play_segments(case, plans_of(case))[-1]
    (one,) = play_segments(case, [replace(case.plan, epochs=SEGMENTS)])
    if algorithm == "saga":
        np.testing.assert_allclose(case.whole(parts), case.whole(one), rtol=0, atol=1e-12)
    else:
        assert_same(parts, one)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_depends_on_who_is_faster(algorithm: str) -> None:
    case = case_of(algorithm)
    plans = plans_of(case)[:2]
    shaken = [Injection(delays=Delays(one_way=0.0005 * party, jitter=0.002, seed=party)) for party in range(4)]
    assert_same(play_segments(case, plans)[-1], play_segments(case, plans, injections=shaken)[-1])


@pytest.mark.slow
def test_processes_go_on_from_what_threads_have_done() -> None:
    case = case_of("saga")
    whole = play_segments(case, plans_of(case))
    rest = plans_of(case, 2, attempts=1)
    assert_same(play_segments(case, rest, states(whole[1]), processes=True, transport="tcp")[-1], whole[-1])


# the whole run

RUN: dict[str, Scalar] = {
    "num-server-rounds": 5,
    "learning-rate": 0.04,
    "checkpoint-every": 2,
    "vfb2.active-parties": 1,
    "vfb2.window": 1,
    "vfb2.synchronous": False,
    "vfb2.join-timeout": 10.0,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """The run of an algorithm in which nothing happens."""

    @cache
    def run(algorithm: str) -> Run:
        return play(tmp_path_factory.mktemp("whole") / algorithm, config_of(algorithm))[0]

    return run


def config_of(algorithm: str, **more: Scalar) -> dict[str, Scalar]:
    return {**RUN, "strategy": f"vfb2-{algorithm}", **{key.replace("_", "-"): value for key, value in more.items()}}


def assert_same_run(run: Run, whole: Run) -> None:
    assert run.model_bytes == whole.model_bytes
    assert [line["round"] for line in run.lines] == list(range(6))
    for mine, theirs in zip(run.lines, whole.lines, strict=True):
        for name in ("objective", "loss", "accuracy", "auc", "suboptimality"):
            assert mine[name] == theirs[name]
    assert all(run.model[f"weights.{party}"].any() for party in range(PARTIES))


@pytest.mark.parametrize("algorithm", SOME_SLOW)
def test_the_undisturbed_run_is_that_of_all_columns_in_one_place(
    algorithm: str, undisturbed: Callable[[str], Run]
) -> None:
    """What the others are compared with is right itself: each round goes on where the last one ended."""
    data = load_vertical(DataSpec("breast-cancer"), PARTIES)
    settings: dict[str, Any] = {"step": 0.04, "epochs": 5, "batch_size": 8, "seed": 0}
    weights = train(data.train_features, data.train_labels, make_objective("logistic"), algorithm, **settings)
    np.testing.assert_allclose(undisturbed(algorithm).model["weights"], weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("algorithm", "party", "when"),
    [
        ("svrg", 2, "midway"),
        pytest.param("saga", 1, "after", marks=pytest.mark.slow),
        pytest.param("sgd", 3, "before", marks=pytest.mark.slow),
    ],
)
def test_a_party_that_fails_once_changes_nothing(
    algorithm: str,
    party: int,
    when: str,
    undisturbed: Callable[[str], Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    saboteur = Saboteur(party, 2, when)
    saboteur.install(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        run, _ = play(tmp_path / "run", config_of(algorithm))
    assert re.search(f"round 2: retry 1 of 3: party {party}: (OSError: )?{FULL}", caplog.text)
    first, second = saboteur.serials
    assert first < second
    # everyone made both attempts from the same state, and not from zero
    assert all(len(starts) == 2 and starts[0] == starts[1] for starts in saboteur.starts.values())
    assert len({pickle.loads(starts[0]).weights.tobytes() for starts in saboteur.starts.values()}) == PARTIES
    assert_same_run(run, undisturbed(algorithm))


@pytest.mark.parametrize("algorithm", SOME_SLOW)
def test_a_run_that_ended_with_a_failure_is_resumed(
    algorithm: str, undisturbed: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A party fails for good; what the parties did since the checkpoint of round 2 is made again."""
    with monkeypatch.context() as patch:
        saboteur = Saboteur(2, 4, "midway", times=99)
        saboteur.install(patch)
        with pytest.raises(RuntimeError, match=f"round 4: partition 2 gave no good reply.*{FULL}"):
            play(tmp_path / "run", config_of(algorithm, max_retries=1))
    assert len(saboteur.serials) == 2
    assert (tmp_path / "run" / "failure.json").exists()
    run, _ = play(tmp_path / "run", config_of(algorithm, resume=True))
    assert_same_run(run, undisturbed(algorithm))


@pytest.mark.parametrize("algorithm", SOME_SLOW)
def test_a_run_whose_server_died_is_resumed(algorithm: str, undisturbed: Callable[[str], Run], tmp_path: Path) -> None:
    def die(exchange: Exchange) -> Message:
        if exchange.server_round == 4:
            raise KeyboardInterrupt
        return exchange.reply

    with pytest.raises(KeyboardInterrupt):
        federate(tmp_path / "run", {**KEYS, **config_of(algorithm)}, clients=PARTIES, tamper=die)
    run, _ = play(tmp_path / "run", config_of(algorithm, resume=True))
    assert_same_run(run, undisturbed(algorithm))
