"""Tests of failures at one party: the segment ends at every party, and all name that party."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from benchmarks.parties import PartiesError, run_parties
from tests.clients.party_problems import Case, make_case
from vertical.injection import Injection
from vertical.segment.dominator import Dominator, agreed_flips, draw_flips, label_notice
from vertical.segment.masked_sums import DirectSums, Gathering
from vertical.segment.party import run_segment
from vertical.segment.plan import Holding, PartyState, SegmentPlan
from vertical.segment.preparation import Hello, agree_keys
from vertical.segment.same_rows import ABSENT
from vertical.segment.sum_order import BINS, Agenda
from vertical.transport.endpoint import Limits
from vertical.transport.frames import Frame, Kind, PartyError
from vertical.transport.mesh import Mesh

LIMITS = Limits(join=5.0, beat=0.3, silence=2.0, close=1.0)
NO_LABELS = "but this party has none: choose active parties with labels"


def failure(case: Case, holdings: list[Holding] | None = None, **options: Any) -> PartyError:
    """Return the error of a segment that fails within seconds, with the same culprit at all parties."""
    began = time.monotonic()
    with pytest.raises(PartiesError) as caught:
        run_parties(holdings or case.holdings, case.plan, processes=False, limits=LIMITS, timeout=30.0, **options)
    assert time.monotonic() - began < 10.0
    errors = caught.value.errors
    assert errors.keys() == set(range(case.plan.parties))
    found = [error for error in errors.values() if isinstance(error, PartyError)]
    assert len(found) == len(errors), str(caught.value)
    # two parties may see the culprit's fault at different points
    assert len({error.party for error in found}) == 1, str(caught.value)
    return found[0]


Change = Callable[[Frame], list[Frame]]


def altered(monkeypatch: pytest.MonkeyPatch, culprit: int, change: Change) -> None:
    """Have a party send altered frames."""

    def other(real: Callable[..., None]) -> Callable[..., None]:
        def send(mesh: Mesh, *to_and_frame: Any) -> None:
            *to, frame = to_and_frame
            for each in change(frame) if mesh.me == culprit else [frame]:
                real(mesh, *to, each)

        return send

    for name in ("send", "broadcast"):
        monkeypatch.setattr(Mesh, name, other(getattr(Mesh, name)))


def at(kind: int, number: int | None, **fields: Any) -> Change:
    """Change one frame, or with `number` None all frames of its kind; a field may be a function of the old value."""

    def change(frame: Frame) -> list[Frame]:
        if frame.kind != kind or number not in (None, frame.update):
            return [frame]
        new = {name: value(getattr(frame, name)) if callable(value) else value for name, value in fields.items()}
        return [replace(frame, **new)]

    return change


def after(kind: int, number: int, *more: dict[str, Any]) -> Change:
    """Send further frames after one frame: copies with other fields."""

    def change(frame: Frame) -> list[Frame]:
        extra = more if (frame.kind, frame.update) == (kind, number) else ()
        return [frame, *(replace(frame, **fields) for fields in extra)]

    return change


def with_nan(body: bytes) -> bytes:
    values = np.frombuffer(bytes(body)).copy()
    values[-1] = np.nan
    return values.tobytes()


def shorter(body: bytes) -> bytes:
    return bytes(body)[:-8]


def longer(body: bytes) -> bytes:
    return bytes(body) + bytes(8)


# frames

VALUES, MASKS = int(Kind.VALUE_TREE), int(Kind.MASK_TREE)
BOTH_ORDERS: list[dict[str, Any]] = [{"synchronous": False}, {"synchronous": True}]
TREES: dict[str, Any] = {"masking": "two-trees"}
TWO, PASSES = (1, 2), {"algorithm": "svrg"}
# parties, active parties, other fields of the plan; the culprit, its fault, and the error's text
FORGERIES: list[tuple[int, tuple[int, ...], dict[str, Any], int, Change, str]] = [
    *(
        (4, TWO, order, 2, at(Kind.THETA, 3, body=with_nan), "theta cannot be applied.*not finite")
        for order in BOTH_ORDERS
    ),
    *(
        (
            4,
            TWO,
            order,
            2,
            at(Kind.THETA, 1, body=shorter),
            "^its theta 1 has 24 bytes, not the 32 bytes of its batch; run the same version at all parties$",
        )
        for order in BOTH_ORDERS
    ),
    *(
        (
            4,
            TWO,
            {"window": 2, **order},
            1,
            after(Kind.THETA, 1, {"update": 3}),
            "theta 3, but 2 is the next and is not due",
        )
        for order in BOTH_ORDERS
    ),
    (
        4,
        TWO,
        {},
        2,
        at(Kind.THETA, None, active=1),
        "^it sent theta for the updates of party 1, which sends its own theta; run the same version",
    ),
    (4, TWO, {}, 3, after(Kind.PARTIAL, 0, {"kind": Kind.THETA, "active": 3, "body": bytes(32)}), ""),
    (
        4,
        TWO,
        {"update_passive": False},
        1,
        at(Kind.THETA, 1, body=lambda body: bytes(body) or bytes(32)),
        "^its theta 1 has 32 bytes, not the 0 bytes of its batch; run the same version at all parties$",
    ),
    *(
        (4, TWO, PASSES, 1, at(Kind.SNAPSHOT_THETA, 1, body=change), f"theta of a full pass.*{fault}")
        for change, fault in ((with_nan, "not finite"), (shorter, "bytes, not the"))
    ),
    (4, TWO, PASSES, 1, at(Kind.SNAPSHOT_THETA, 0, update=1), "1.*not expected now"),
    # partials
    (5, (1,), {"window": 2}, 3, at(Kind.PARTIAL, 2, body=longer), "bytes, not the"),
    (5, (1,), {"window": 2, "rows": 31, "batch_size": 3, **TREES}, 3, at(VALUES, 9, body=longer), "bytes, not the"),
    *(
        (4, (1,), PASSES, 0, at(kind, 0, body=shorter), "bytes, not the")
        for kind in (Kind.SNAPSHOT_PARTIAL, Kind.EVALUATION, Kind.TOTALS)
    ),
    *(
        (4, (1,), {"window": 2, **masking}, 2, after(kind, 2, *({"update": n} for n in range(3, 12))), f"window of {w}")
        for kind, masking, w in ((Kind.PARTIAL, {}, 2), (VALUES, TREES, 3), (MASKS, TREES, 3))
    ),
    (4, (1,), {"window": 2}, 2, after(Kind.PARTIAL, 15, {"update": 16}), "beyond the segment"),
    (
        4,
        TWO,
        {},
        3,
        at(Kind.PARTIAL, None, active=2),
        "^it sent party 1 a frame that only party 2 may get; run the same version",
    ),
    (5, (0,), TREES, 1, at(VALUES, None, active=3), "which has no tree"),
    # kinds that are not allowed at this point
    *(
        (4, (1,), {}, 3, after(Kind.PARTIAL, 0, {"kind": kind, "active": 3, "body": b"?"}), "")
        for kind in (Kind.ALIGN, Kind.LABELS, Kind.VALUE_TREE)
    ),
]


@pytest.mark.parametrize(("parties", "active", "fields", "culprit", "change", "words"), FORGERIES)
def test_a_frame_that_no_honest_party_sends(
    parties: int,
    active: tuple[int, ...],
    fields: dict[str, Any],
    culprit: int,
    change: Change,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    altered(monkeypatch, culprit, change)
    error = failure(make_case(parties, active, **fields))
    assert error.party == culprit
    assert re.search(words, error.reason), error.reason


def test_a_tree_frame_of_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Mesh.send

    def everywhere(mesh: Mesh, to: int, frame: Frame) -> None:
        # party 1 sends its values to every party
        if mesh.me == 1 and frame.kind == VALUES:
            mesh.broadcast(frame)
        else:
            send(mesh, to, frame)

    monkeypatch.setattr(Mesh, "send", everywhere)
    error = failure(make_case(5, (0,), masking="two-trees"))
    assert error.party == 1
    assert "must not contribute" in error.reason


# data and plans


@pytest.mark.parametrize("culprit", [2, 3])
def test_labels_differ(culprit: int) -> None:
    case = make_case(4, (2, 1, 3))
    holdings = case.holdings
    holdings[culprit].labels = np.where(np.arange(30) == 7, -case.labels, case.labels)
    error = failure(case, holdings)
    # the other plans are compared with the first
    assert error.party == (culprit if culprit != 2 else 1)
    assert error.reason == "its labels differ from party 2's: give all active parties equal labels"


@pytest.mark.parametrize(
    ("culprit", "fields", "reason"),
    [
        (3, {"features": np.zeros((29, 3))}, "it has 29 training rows, but the segment has 30"),
        (0, {"test_features": None}, "it has 0 test rows, but the segment has 11"),
        (
            2,
            {"labels": None},
            "an active party needs labels, but this party has none: choose active parties with labels",
        ),
        (2, {"labels": np.ones(29)}, "labels must have shape (30,), got (29,)"),
        (2, {"labels": np.full(30, 2.0)}, "labels of problem 'logistic' must be -1 or +1, got 2.0"),
        (
            1,
            {"test_labels": None},
            "an active party needs test labels, but this party has none: choose active parties with labels",
        ),
        (3, {"features": np.full((30, 3), np.nan)}, "features must be finite, 90 are not"),
        (3, {"test_features": np.full((11, 3), np.inf)}, "test features must be finite"),
        (3, {"test_features": np.zeros((11, 4))}, "test features must be (k, 3), got (11, 4)"),
    ],
)
def test_a_party_lacks_something(culprit: int, fields: dict[str, Any], reason: str) -> None:
    case = make_case(4, (1, 2))
    holdings = case.holdings
    holdings[culprit] = replace(holdings[culprit], **fields)
    error = failure(case, holdings)
    assert (error.party, error.reason) == (culprit, reason)


def test_a_state_that_does_not_fit() -> None:
    states = [PartyState() for _ in range(4)]
    states[3].weights = np.zeros(2)
    error = failure(make_case(4, (1,)), states=states)
    assert (error.party, error.reason) == (3, "weights must be 3 finite numbers, got 2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 0.7}, "it does not agree with the other parties on: plan field step"),
        ({"ids": "of other rows"}, "it has other rows (41) than 3 of 4"),
    ],
)
def test_plans_differ(change: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def odd(me: int, plan: SegmentPlan, *arguments: Any, **options: Any) -> Any:
        return await run_segment(me, plan if me else replace(plan, **change), *arguments, **options)

    monkeypatch.setattr("benchmarks.parties.run_segment", odd)
    error = failure(make_case(4, (1, 2), ids="of the same rows"))
    assert error.party == 0
    assert words in error.reason


def test_the_ring_overflows() -> None:
    case = make_case(4, (1, 2))
    states = [PartyState() for _ in range(4)]
    states[0].weights = np.full(4, 1e9)
    error = failure(case, states=states)
    assert error.party == 0
    assert error.reason.startswith("its partial cannot be sent")
    assert "the range of masked sums" in error.reason
    assert "4e+09" not in error.reason  # the error does not name the party of the row either
    # only the evaluation can detect it
    error = failure(replace(case, plan=replace(case.plan, epochs=0)), states=states)
    assert (error.party, error.reason.startswith("its evaluation cannot be sent")) == (0, True)
    # squares of prices, of which a party other than the reporter sends its share
    case = make_case(4, (1, 2), problem="ridge", epochs=0)
    case.labels[:] *= 1e5
    error = failure(case)
    assert (error.party, error.reason.startswith("its total of the evaluation cannot be sent")) == (2, True)
    assert error.reason.endswith("or divide the labels, or set vfb2.active-parties=1")


@pytest.mark.parametrize(("parties", "limit"), [(3, 2.0**23 / 3), (4, 2.0**21), (2, 2.0**22)])
def test_a_sum_over_all_parties_cannot_wrap(parties: int, limit: float) -> None:
    sent: list[int] = []
    agenda = Agenda(make_case(parties, (0,), allow_bare=True).plan)
    sums = DirectSums(1, agenda, lambda to, frame: sent.append(to), None)
    sums.contribute(Kind.PARTIAL, np.full(4, -np.nextafter(limit, 0.0)), [(0, 4)])
    assert sent == [0]
    with pytest.raises(PartyError, match="party 1: its partial cannot be sent"):
        sums.contribute(Kind.PARTIAL, np.full(4, limit), [(0, 4)])


def test_a_step_that_diverges() -> None:
    # every block diverges, so the parties may learn of different ones first
    with pytest.raises(PartiesError) as caught:
        make_case(4, (1, 2), problem="ridge", step=1e9, epochs=60).run(limits=LIMITS)
    assert caught.value.errors.keys() == set(range(4))
    for error in caught.value.errors.values():
        assert isinstance(error, PartyError)
        assert "the model diverges" in error.reason


@pytest.mark.parametrize("options", [{}, {"threads": 3}, {"injections": [Injection(compute=0.001)] * 4}])
def test_a_bug_in_one_party(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    theta = Dominator.theta

    def broken(self: Dominator, z: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if self._me == 2:
            raise KeyError("no such thing")
        return theta(self, z, rows)

    monkeypatch.setattr(Dominator, "theta", broken)
    error = failure(make_case(4, (1, 2)), **options)
    assert (error.party, error.reason) == (2, "KeyError: 'no such thing'")


def test_a_party_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at one party reaches the other parties."""

    class Cancels:
        """A recorder that cancels its party's task at its first frame."""

        task: asyncio.Task[Any] | None = None

        def received(self, peer: int, frame: Frame) -> None:
            assert self.task is not None
            self.task.cancel()

        def contributed(self, *given: Any) -> None:
            pass

    async def stopped(me: int, *arguments: Any, **options: Any) -> Any:
        if me == 3:
            options["recorder"] = Cancels()
            options["recorder"].task = asyncio.current_task()
        return await run_segment(me, *arguments, **options)

    monkeypatch.setattr("benchmarks.parties.run_segment", stopped)
    with pytest.raises(PartiesError) as caught:
        make_case(4, (1,), epochs=1000).run(limits=LIMITS)
    errors = caught.value.errors
    assert isinstance(errors.pop(3), asyncio.CancelledError)
    assert {str(error) for error in errors.values()} == {"party 3: it was stopped"}


# invalid plans and arguments


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
    changes = ({}, {"serial": 8}, {"step": np.nextafter(plan.step, 1.0)}, {"active": (2, 1)}, {"allow_bare": True})
    assert len({replace(plan, **change).digest() for change in changes}) == len(changes)
    assert plan.digest() == replace(plan).digest()


def test_arguments_that_cannot_be() -> None:
    case = make_case(3, (1,))
    for me, threads in ((3, 1), (-1, 1), (0, 0), (0, 1)):
        with pytest.raises(ValueError, match="party|threads|endpoint"):
            asyncio.run(run_segment(me, case.plan, case.holdings[0], PartyState(), None, threads=threads))
    with pytest.raises(PartiesError, match="ValueError: the limit of a body is 100 bytes; the segment needs 328"):
        case.run(limits=replace(LIMITS, body=100))


# notices of labels


def test_notices_of_labels() -> None:
    plan = replace(make_case(4, (2, 0)).plan, label_epsilon=0.5)
    labels = np.where(np.arange(30) % 3, 1.0, -1.0)
    flips = draw_flips(30, 0.5)
    told, own = label_notice(labels, flips), label_notice(labels, None)
    np.testing.assert_array_equal(agreed_flips(plan, 0, own, {2: told}, None), flips)
    np.testing.assert_array_equal(agreed_flips(plan, 2, told, {0: own}, flips), flips)
    with pytest.raises(PartyError, match="party 2: its label flips differ from party 0's kept flips"):
        agreed_flips(plan, 0, own, {2: told}, ~flips)
    with pytest.raises(PartyError, match="party 2: its notice of labels has 32 bytes, not 36"):
        agreed_flips(plan, 0, own, {2: own}, None)
    with pytest.raises(PartyError, match="party 0: its notice of labels has 36 bytes, not 32"):
        agreed_flips(plan, 2, told, {0: told}, flips)
    with pytest.raises(PartyError, match="party 0: its labels differ from party 2's"):
        agreed_flips(plan, 2, told, {0: label_notice(-labels, None)}, flips)


def test_keys_belong_to_a_pair_and_a_segment() -> None:
    case = make_case(3, (1,))
    privates = [X25519PrivateKey.generate() for _ in range(3)]
    hellos = {
        party: Hello.of(private, case.plan, ABSENT, holding)
        for party, (private, holding) in enumerate(zip(privates, case.holdings, strict=True))
    }
    keys = [agree_keys(case.plan, party, private, hellos) for party, private in enumerate(privates)]
    assert (keys[0][1], keys[0][2], keys[1][2]) == (keys[1][0], keys[2][0], keys[2][1])
    later = agree_keys(replace(case.plan, serial=8), 0, privates[0], hellos)
    assert len({keys[0][1], keys[0][2], keys[1][2], later[1], later[2]}) == 5
    hellos[1] = hellos[1]._replace(key=bytes(32))
    with pytest.raises(PartyError, match="party 1: its public key"):
        agree_keys(case.plan, 0, privates[0], hellos)
    with pytest.raises(PartyError, match="party 2: its hello has 3 bytes, not 113"):
        Hello.from_bytes(2, b"???")


def test_a_gathering_takes_only_what_is_complete_and_due() -> None:
    gathering = Gathering("partial", [1, 2], 2, [1].__getitem__)
    gathering.add(1, 0, bytes(8))
    assert not gathering.ready
    with pytest.raises(RuntimeError, match="partial 0 is not complete"):
        gathering.take()
    with pytest.raises(PartyError, match="party 2: .*beyond the segment"):
        gathering.add(2, 1, bytes(8))


@pytest.mark.parametrize(
    ("algorithm", "start", "epochs"), [("sgd", True, 2), ("svrg", False, 3), ("saga", True, 2), ("saga", False, 2)]
)
def test_the_agenda_lists_every_sum_once(algorithm: str, start: bool, epochs: int) -> None:
    fields: dict[str, Any] = {"algorithm": algorithm, "start": start, "epochs": epochs}
    agenda = Agenda(make_case(4, (2, 0), rows=31, batch_size=4, **fields).plan)
    for place, rows in ((0, 16), (1, 15)):
        epoch = [4, 4, 4, rows - 12]
        passes = {"sgd": epoch * epochs, "svrg": [rows, *epoch] * epochs, "saga": [rows] * start + epoch * epochs}
        # the evaluation: training and test rows of this slice; at the reporter five numbers and the bins of two classes
        totals = [] if place else [5 + 2 * BINS]
        expected = [*passes[algorithm], rows + (5 if place else 6), *totals]
        assert [agenda.length_at(place, position) for position in range(len(expected))] == expected
        with pytest.raises(IndexError):
            agenda.length_at(place, len(expected))
