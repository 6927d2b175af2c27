"""What goes wrong at one party ends the segment at every party, with that party named."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from clients.vertical.agenda import EVALUATION, PARTIAL, SNAPSHOT_PARTIAL, Agenda
from clients.vertical.collaborator import THETA
from clients.vertical.dominator import Dominator, agreed_flips, draw_flips, notice
from clients.vertical.failures import PartyError
from clients.vertical.frames import Frame, Kind
from clients.vertical.hello import Hello, agree_keys
from clients.vertical.limits import Limits
from clients.vertical.mesh import Mesh
from clients.vertical.party import run_segment
from clients.vertical.passes import POWER_THETA, SNAPSHOT_THETA
from clients.vertical.plan import Holding, Injection, PartyState, Plan
from clients.vertical.sums import DirectSums, Gathering
from simulations.parties import PartiesError, run_parties
from tests.clients.party_problems import Case, make_case

LIMITS = Limits(join=5.0, beat=0.3, silence=2.0, close=1.0)


def failure(case: Case, holdings: list[Holding] | None = None, **options: Any) -> PartyError:
    """An error of a segment that fails within seconds, at all parties with the same culprit."""
    began = time.monotonic()
    with pytest.raises(PartiesError) as caught:
        run_parties(holdings or case.holdings, case.plan, processes=False, limits=LIMITS, timeout=30.0, **options)
    assert time.monotonic() - began < 10.0
    errors = caught.value.errors
    assert errors.keys() == set(range(case.plan.parties))
    found = [error for error in errors.values() if isinstance(error, PartyError)]
    assert len(found) == len(errors), str(caught.value)
    # two may see the same culprit's fault in two places
    assert len({error.party for error in found}) == 1, str(caught.value)
    return found[0]


def altered(monkeypatch: pytest.MonkeyPatch, culprit: int, change: Callable[[Frame], list[Frame]]) -> None:
    """Have a party send other frames than it wants to."""
    send, broadcast = Mesh.send, Mesh.broadcast

    def other_send(mesh: Mesh, to: int, frame: Frame) -> None:
        for each in change(frame) if mesh.me == culprit else [frame]:
            send(mesh, to, each)

    def other_broadcast(mesh: Mesh, frame: Frame) -> None:
        for each in change(frame) if mesh.me == culprit else [frame]:
            broadcast(mesh, each)

    monkeypatch.setattr(Mesh, "send", other_send)
    monkeypatch.setattr(Mesh, "broadcast", other_broadcast)


def at(kind: int, number: int, body: Callable[[bytes], bytes]) -> Callable[[Frame], list[Frame]]:
    """Change one frame's body."""

    def change(frame: Frame) -> list[Frame]:
        if (frame.kind, frame.update) != (kind, number):
            return [frame]
        return [Frame(frame.kind, frame.active, frame.update, body(bytes(frame.body)))]

    return change


def with_nan(body: bytes) -> bytes:
    values = np.frombuffer(body).copy()
    values[-1] = np.nan
    return values.tobytes()


# frames


@pytest.mark.parametrize("synchronous", [False, True])
def test_theta_that_is_not_finite(monkeypatch: pytest.MonkeyPatch, synchronous: bool) -> None:
    altered(monkeypatch, 2, at(THETA, 3, with_nan))
    error = failure(make_case(4, (1, 2), synchronous=synchronous))
    assert error.party == 2
    assert "theta cannot be applied" in error.reason
    assert "not finite" in error.reason


@pytest.mark.parametrize("synchronous", [False, True])
def test_theta_of_another_length(monkeypatch: pytest.MonkeyPatch, synchronous: bool) -> None:
    altered(monkeypatch, 2, at(THETA, 1, lambda body: body[:-8]))
    error = failure(make_case(4, (1, 2), synchronous=synchronous))
    assert (error.party, error.reason) == (2, "its theta 1 has 24 bytes, not the 32 of the batch")


@pytest.mark.parametrize("synchronous", [False, True])
def test_theta_that_is_not_due(monkeypatch: pytest.MonkeyPatch, synchronous: bool) -> None:
    def twice(frame: Frame) -> list[Frame]:
        if frame.kind != THETA or frame.update != 1:
            return [frame]
        return [frame, Frame(THETA, frame.active, 3, frame.body)]

    altered(monkeypatch, 1, twice)
    error = failure(make_case(4, (1, 2), window=2, synchronous=synchronous))
    assert error.party == 1
    assert "it sent theta 3, where 2 is the next and is not due" in error.reason


def test_theta_for_another_party(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(frame: Frame) -> list[Frame]:
        return [Frame(frame.kind, 1, frame.update, frame.body) if frame.kind == THETA else frame]

    altered(monkeypatch, 2, claim)
    error = failure(make_case(4, (1, 2)))
    assert (error.party, error.reason) == (2, "it sent theta for party 1; each dominator sends its own")


def test_theta_of_a_passive_party(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(frame: Frame) -> list[Frame]:
        return [frame, Frame(THETA, 3, frame.update, bytes(32))] if frame.kind == PARTIAL else [frame]

    altered(monkeypatch, 3, claim)
    assert failure(make_case(4, (1, 2))).party == 3


def test_theta_where_passive_parties_do_not_update(monkeypatch: pytest.MonkeyPatch) -> None:
    altered(monkeypatch, 1, at(THETA, 1, lambda body: body or bytes(32)))
    error = failure(make_case(4, (1, 2), update_passive=False))
    assert (error.party, error.reason) == (1, "its theta 1 has 32 bytes, not the 0 of the batch")


@pytest.mark.parametrize(
    ("algorithm", "kind", "name"),
    [("svrg", SNAPSHOT_THETA, "slopes of a full pass"), ("sgd", POWER_THETA, "direction of the power iteration")],
)
@pytest.mark.parametrize(("change", "fault"), [(with_nan, "not finite"), (lambda body: body[8:], "bytes, not the")])
def test_bad_slopes_and_directions(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, kind: int, name: str, change: Callable[[bytes], bytes], fault: str
) -> None:
    altered(monkeypatch, 1, at(kind, 1, change))
    error = failure(make_case(4, (1, 2), algorithm=algorithm, power_iterations=3))
    assert error.party == 1
    assert name in error.reason
    assert fault in error.reason


@pytest.mark.parametrize(("kind", "number"), [(SNAPSHOT_THETA, 1), (POWER_THETA, 2)])
def test_slopes_and_directions_that_are_not_due(monkeypatch: pytest.MonkeyPatch, kind: int, number: int) -> None:
    def ahead(frame: Frame) -> list[Frame]:
        if (frame.kind, frame.update) != (kind, 0):
            return [frame]
        return [Frame(kind, frame.active, number, frame.body)]

    altered(monkeypatch, 1, ahead)
    error = failure(make_case(4, (1, 2), algorithm="svrg", power_iterations=3))
    assert error.party == 1
    assert f"{number}" in error.reason
    assert "not due" in error.reason


@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
@pytest.mark.parametrize("position", [0, 2, 9])
def test_a_partial_of_another_length(monkeypatch: pytest.MonkeyPatch, masking: str, position: int) -> None:
    kind = PARTIAL if masking == "pairwise" else int(Kind.VALUE_TREE)
    altered(monkeypatch, 3, at(kind, position, lambda body: body + bytes(8)))
    error = failure(make_case(5, (1,), masking=masking, window=2, rows=31, batch_size=3))
    assert error.party == 3
    assert "bytes, not the" in error.reason


@pytest.mark.parametrize("kind", [SNAPSHOT_PARTIAL, EVALUATION])
def test_a_long_vector_of_another_length(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    altered(monkeypatch, 0, at(kind, 0, lambda body: body[:-3]))
    assert failure(make_case(4, (1,), algorithm="svrg")).party == 0


@pytest.mark.parametrize("masking", ["pairwise", "two-trees"])
def test_a_frame_beyond_the_window(monkeypatch: pytest.MonkeyPatch, masking: str) -> None:
    kinds = (PARTIAL,) if masking == "pairwise" else (int(Kind.VALUE_TREE), int(Kind.MASK_TREE))

    def ahead(frame: Frame) -> list[Frame]:
        if frame.kind not in kinds or frame.update != 2:
            return [frame]
        return [frame, *(Frame(frame.kind, frame.active, update, frame.body) for update in range(3, 7))]

    altered(monkeypatch, 2, ahead)
    error = failure(make_case(4, (1,), masking=masking, window=2))
    assert error.party == 2
    assert "outside the window of 2" in error.reason


def test_a_partial_beyond_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def more(frame: Frame) -> list[Frame]:
        last = frame.kind == PARTIAL and frame.update == 15
        return [frame, Frame(PARTIAL, frame.active, 16, frame.body)] if last else [frame]

    altered(monkeypatch, 2, more)
    error = failure(make_case(4, (1,), window=2))
    assert error.party == 2
    assert "beyond the segment" in error.reason


def test_a_partial_for_another_party(monkeypatch: pytest.MonkeyPatch) -> None:
    def astray(frame: Frame) -> list[Frame]:
        return [Frame(PARTIAL, 2, frame.update, frame.body) if frame.kind == PARTIAL else frame]

    altered(monkeypatch, 3, astray)
    error = failure(make_case(4, (1, 2)))
    assert (error.party, error.reason) == (3, "it sent party 1 what only party 2 may have")


def test_a_tree_frame_of_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    # party 1 sends everyone its values
    def everywhere(mesh: Mesh, to: int, frame: Frame) -> None:
        if mesh.me == 1 and frame.kind == Kind.VALUE_TREE:
            mesh.broadcast(frame)
        else:
            send(mesh, to, frame)

    send = Mesh.send
    monkeypatch.setattr(Mesh, "send", everywhere)
    error = failure(make_case(5, (0,), masking="two-trees"))
    assert error.party == 1
    assert "where it has none to give" in error.reason


def test_a_tree_frame_for_a_passive_party(monkeypatch: pytest.MonkeyPatch) -> None:
    def astray(frame: Frame) -> list[Frame]:
        return [Frame(frame.kind, 3, frame.update, frame.body) if frame.kind == Kind.VALUE_TREE else frame]

    altered(monkeypatch, 1, astray)
    error = failure(make_case(5, (0,), masking="two-trees"))
    assert (error.party, "which dominates nothing" in error.reason) == (1, True)


@pytest.mark.parametrize("kind", [Kind.ALIGN, Kind.LABELS, Kind.VALUE_TREE])
def test_a_frame_of_a_kind_that_has_no_place(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    def extra(frame: Frame) -> list[Frame]:
        return [frame, Frame(kind, 3, 0, b"?")] if frame.kind == PARTIAL and frame.update == 0 else [frame]

    altered(monkeypatch, 3, extra)
    assert failure(make_case(4, (1,))).party == 3


# data and plans


def test_row_counts_differ() -> None:
    case = make_case(4, (1, 2))
    holdings = case.holdings
    holdings[3].features = holdings[3].features[:-1]
    error = failure(case, holdings)
    assert (error.party, error.reason) == (3, "it holds 29 training rows, the plan says 30")
    holdings = case.holdings
    holdings[0].test_features = None
    error = failure(case, holdings)
    assert (error.party, error.reason) == (0, "it holds 0 test rows, the plan says 11")


@pytest.mark.parametrize("culprit", [1, 2, 3])
def test_labels_differ(culprit: int) -> None:
    case = make_case(4, (2, 1, 3))
    holdings = case.holdings
    labels = case.labels.copy()
    labels[7] *= -1
    holdings[culprit].labels = labels
    error = failure(case, holdings)
    # the first is what the others are compared with
    assert error.party == (culprit if culprit != 2 else 1)
    assert error.reason == "its labels differ from those of party 2; active parties must hold the same"


def _change(**fields: Any) -> Callable[[Holding], None]:
    def change(holding: Holding) -> None:
        for name, value in fields.items():
            setattr(holding, name, value)

    return change


@pytest.mark.parametrize(
    ("culprit", "change", "reason"),
    [
        (2, _change(labels=None), "this party needs labels, it holds none"),
        (2, _change(labels=np.ones(29)), "labels must be (30,), one a row, got (29,)"),
        (2, _change(labels=np.full(30, 2.0)), "labels of problem 'logistic' must be -1 or +1, got 2.0"),
        (1, _change(test_labels=None), "this party needs test labels, it holds none"),
        (3, _change(features=np.full((30, 3), np.nan)), "features must be finite, 90 are not"),
        (3, _change(test_features=np.full((11, 3), np.inf)), "test features must be finite"),
        (3, _change(test_features=np.zeros((11, 4))), "test features must be (k, 3), got (11, 4)"),
    ],
)
def test_a_party_lacks_something(culprit: int, change: Callable[[Holding], None], reason: str) -> None:
    case = make_case(4, (1, 2))
    holdings = case.holdings
    change(holdings[culprit])
    error = failure(case, holdings)
    assert (error.party, error.reason) == (culprit, reason)


def test_a_state_that_does_not_fit() -> None:
    states = [PartyState() for _ in range(4)]
    states[3].weights = np.zeros(2)
    error = failure(make_case(4, (1,)), states=states)
    assert (error.party, error.reason) == (3, "weights must be 3 finite numbers, got 2")


def test_plans_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(4, (1, 2))
    digest = Plan.digest
    own = threading.local()

    def other(plan: Plan) -> bytes:
        # party 0 of four threads has another step
        own.count = getattr(own, "count", 0) + 1
        return digest(replace(plan, step=0.7)) if threading.current_thread().name == "odd" else digest(plan)

    start = threading.Thread.start
    started: list[threading.Thread] = []

    def named(thread: threading.Thread) -> None:
        if not started:
            thread.name = "odd"
        started.append(thread)
        start(thread)

    monkeypatch.setattr(Plan, "digest", other)
    monkeypatch.setattr(threading.Thread, "start", named)
    error = failure(case)
    assert error.party == 0
    assert replace(case.plan, step=0.7).digest().hex()[:12] in error.reason or "its plan is" in error.reason


def test_the_ring_overflows() -> None:
    case = make_case(4, (1, 2))
    states = [PartyState() for _ in range(4)]
    states[0].weights = np.full(4, 1e9)
    error = failure(case, states=states)
    assert error.party == 0
    assert error.reason.startswith("its partial cannot be sent")
    assert "the ring takes values within" in error.reason
    # only the evaluation is left to find it
    error = failure(replace(case, plan=replace(case.plan, epochs=0)), states=states)
    assert (error.party, error.reason.startswith("its evaluation cannot be sent")) == (0, True)


@pytest.mark.parametrize(("parties", "limit"), [(3, 2.0**23 / 3), (4, 2.0**21), (2, 2.0**22)])
def test_a_sum_over_all_parties_cannot_wrap(parties: int, limit: float) -> None:
    sent: list[int] = []
    agenda = Agenda(make_case(parties, (0,), allow_bare=True).plan)
    sums = DirectSums(1, agenda, lambda to, frame: sent.append(to), None)
    sums.contribute(PARTIAL, np.full(4, -np.nextafter(limit, 0.0)), [(0, 4)])
    assert sent == [0]
    with pytest.raises(PartyError, match="party 1: its partial cannot be sent"):
        sums.contribute(PARTIAL, np.full(4, limit), [(0, 4)])


def test_a_step_that_diverges() -> None:
    # every block diverges, so the parties may hear of different ones first
    with pytest.raises(PartiesError) as caught:
        make_case(4, (1, 2), problem="ridge", step=1e9, epochs=60).run(limits=LIMITS)
    assert caught.value.errors.keys() == set(range(4))
    for error in caught.value.errors.values():
        assert isinstance(error, PartyError)
        assert "the model diverges" in error.reason


@pytest.mark.parametrize("threads", [1, 3])
def test_a_bug_in_one_party(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    theta = Dominator.theta

    def broken(self: Dominator, z: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self._me == 2:
            raise KeyError("no such thing")
        return theta(self, z, rows)

    monkeypatch.setattr(Dominator, "theta", broken)
    error = failure(make_case(4, (1, 2)), threads=threads)
    assert (error.party, error.reason) == (2, "KeyError: 'no such thing'")


def test_a_bug_in_an_injected_party(monkeypatch: pytest.MonkeyPatch) -> None:
    altered(monkeypatch, 2, at(THETA, 2, with_nan))
    error = failure(make_case(4, (1, 2)), injections=[Injection(compute=0.001)] * 4)
    assert error.party == 2


def test_a_party_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at one party is heard at the others."""

    async def stopped(*arguments: Any, **options: Any) -> Any:
        task = asyncio.ensure_future(run_segment(*arguments, **options))
        if arguments[0] == 3:
            await asyncio.sleep(0.3)
            task.cancel()
        return await task

    monkeypatch.setattr("simulations.parties.run_segment", stopped)
    case = make_case(4, (1,), epochs=100000)
    with pytest.raises(PartiesError) as caught:
        case.run(limits=LIMITS)
    errors = caught.value.errors
    assert isinstance(errors.pop(3), asyncio.CancelledError)
    assert {str(error) for error in errors.values()} == {"party 3: it was stopped"}


# plans and arguments that cannot be


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithm": "adam"}, "algorithm 'adam' is not known; one of: sgd, svrg, saga"),
        ({"problem": "svm"}, "problem 'svm' is not known"),
        ({"masking": "rot13"}, "masking 'rot13' is not known; one of: pairwise, two-trees, none"),
        ({"step": 0.0}, "step must be > 0 and finite, got 0.0"),
        ({"weight": -1.0}, "weight of the regulariser must be >= 0"),
        ({"window": 0}, "window must be 1 or more, got 0"),
        ({"skew": -1}, "skew must be 0 or more, got -1"),
        ({"epochs": -1}, "epochs must be 0 or more, got -1"),
        ({"serial": 2**32}, "serial must be 0 to 2^32 - 1"),
        ({"parties": 0}, "parties must be 1 to 65,535, got 0"),
        ({"active": ()}, "active must be different parties of 0 to 3, at least one, got ()"),
        ({"active": (1, 1)}, "active must be different parties"),
        ({"active": (4,)}, "active must be different parties"),
        ({"rows": 1, "active": (0, 1)}, "2 active parties need at least as many rows, got 1"),
        ({"label_epsilon": -0.5}, "label_epsilon must be >= 0"),
        ({"problem": "ridge", "label_epsilon": 1.0}, "label_epsilon 1.0 needs two classes; problem 'ridge' has none"),
        ({"parties": 2}, "2 parties: the dominator would learn"),
    ],
)
def test_a_plan_that_cannot_be(fields: dict[str, Any], message: str) -> None:
    plan = replace(make_case(4, (1,)).plan, **fields)
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)").replace("^", r"\^")):
        plan.check()


def test_a_digest_tells_plans_apart() -> None:
    plan = make_case(4, (1, 2)).plan
    others = [
        replace(plan, serial=8),
        replace(plan, step=np.nextafter(plan.step, 1.0)),
        replace(plan, active=(2, 1)),
        replace(plan, allow_bare=True),
    ]
    assert len({each.digest() for each in (plan, *others)}) == 5
    assert plan.digest() == replace(plan).digest()


def test_arguments_that_cannot_be() -> None:
    case = make_case(3, (1,))
    for wrong in ({"me": 3}, {"me": -1}, {"threads": 0}, {"endpoint": None}):
        options: dict[str, Any] = {"me": 0, "threads": 1, "endpoint": None, **wrong}
        with pytest.raises(ValueError, match="party|threads|endpoint"):
            asyncio.run(
                run_segment(
                    options["me"],
                    case.plan,
                    case.holdings[0],
                    PartyState(),
                    options["endpoint"],
                    threads=options["threads"],
                )
            )
    with pytest.raises(ValueError, match="a plan for 3 parties, and holdings of 2"):
        run_parties(case.holdings[:2], case.plan)
    with pytest.raises(ValueError, match="transport 'pigeon'"):
        case.run(transport="pigeon")
    with pytest.raises(PartiesError, match="ValueError: the limit of a body is 100 bytes; all rows need 336"):
        case.run(limits=replace(LIMITS, body=100))


# notices of labels


def test_notices_of_labels() -> None:
    plan = replace(make_case(4, (2, 0)).plan, label_epsilon=0.5)
    labels = np.where(np.arange(30) % 3, 1.0, -1.0)
    flips = draw_flips(30, 0.5)
    told, own = notice(labels, flips), notice(labels, None)
    np.testing.assert_array_equal(agreed_flips(plan, 0, own, {2: told}, None), flips)
    np.testing.assert_array_equal(agreed_flips(plan, 2, told, {0: own}, flips), flips)
    with pytest.raises(PartyError, match="party 2: its label flips differ from those party 0 has kept"):
        agreed_flips(plan, 0, own, {2: told}, ~flips)
    with pytest.raises(PartyError, match="party 2: its notice of labels has 32 bytes, not 36"):
        agreed_flips(plan, 0, own, {2: own}, None)
    with pytest.raises(PartyError, match="party 0: its notice of labels has 36 bytes, not 32"):
        agreed_flips(plan, 2, told, {0: told}, flips)
    with pytest.raises(PartyError, match="party 0: its labels differ from those of party 2"):
        agreed_flips(plan, 2, told, {0: notice(-labels, None)}, flips)


def test_keys_belong_to_a_pair_and_a_segment() -> None:
    case = make_case(3, (1,))
    privates = [X25519PrivateKey.generate() for _ in range(3)]
    hellos = {
        party: Hello.of(private, case.plan, holding)
        for party, (private, holding) in enumerate(zip(privates, case.holdings, strict=True))
    }
    keys = [agree_keys(case.plan, party, private, hellos) for party, private in enumerate(privates)]
    assert (keys[0][1], keys[0][2], keys[1][2]) == (keys[1][0], keys[2][0], keys[2][1])
    later = agree_keys(replace(case.plan, serial=8), 0, privates[0], hellos)
    assert len({keys[0][1], keys[0][2], keys[1][2], later[1], later[2]}) == 5
    hellos[1] = replace(hellos[1], key=bytes(32))
    with pytest.raises(PartyError, match="party 1: its public key"):
        agree_keys(case.plan, 0, privates[0], hellos)
    with pytest.raises(PartyError, match="party 2: its hello has 3 bytes, not 80"):
        Hello.from_bytes(2, b"???")


def test_flips_have_their_chance() -> None:
    share = draw_flips(200_000, 1.0).mean()
    # 1 / (1 + e) = 0.2689, standard deviation 0.001
    assert abs(share - 1 / (1 + np.e)) < 0.007
    assert draw_flips(1000, 700.0).sum() == 0


def test_a_gathering_takes_only_what_is_complete() -> None:
    gathering = Gathering("partial", [1, 2], 2, lambda number: 1)
    gathering.add(1, 0, bytes(8))
    assert not gathering.ready
    with pytest.raises(RuntimeError, match="partial 0 is not complete"):
        gathering.take()


def test_the_agenda_lists_every_sum_once() -> None:
    for algorithm, start, epochs in (("sgd", True, 2), ("svrg", False, 3), ("saga", True, 2), ("saga", False, 2)):
        plan = make_case(
            4, (2, 0), rows=31, batch_size=4, algorithm=algorithm, start=start, epochs=epochs, power_iterations=2
        ).plan
        agenda = Agenda(plan)
        for place, rows in ((0, 16), (1, 15)):
            powers = [31] * 3 if place == 0 else []
            chunk = [rows]
            epoch = [4, 4, 4, rows - 12]
            updates = {
                "sgd": epoch * epochs,
                "svrg": (chunk + epoch) * epochs,
                "saga": (chunk if start else []) + epoch * epochs,
            }[algorithm]
            expected = powers + updates + ([31 + 11 + 1] if place == 0 else [])
            assert [agenda.length_at(place, position) for position in range(len(expected))] == expected
            with pytest.raises(IndexError):
                agenda.length_at(place, len(expected))
