"""Tests of the dealer that is a third party: over TLS on this machine, with parties that lie."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vertical.shares.dealer import Dealer, DealerAccess, DealRequest, fetch_package
from vertical.shares.deals import Offer
from vertical.shares.numbers import SHIFT, add
from vertical.shares.order import DealOrder
from vertical.shares.package import Package
from vertical.transport.addresses import Address, free_port
from vertical.transport.endpoint import Limits
from vertical.transport.frames import PartyError
from vertical.transport.identity import Identity, fingerprint

PARTIES = [Identity.create(f"party {party}") for party in range(2)]
DEALER, STRANGER = Identity.create("dealer"), Identity.create("stranger")
ORDER = DealOrder(
    problem="logistic",
    columns=(2, 3),
    decays=True,
    rows=10,
    test_rows=4,
    batch_size=4,
    seed=1,
    first_epoch=0,
    epochs=2,
    labelled=0,
    evaluates=True,
)
Ask = tuple[Identity, DealRequest]


def request(me: int, **changes: Any) -> DealRequest:
    names = tuple(fingerprint(party.certificate) for party in PARTIES)
    fields = {"run": "0" * 32, "serial": 3, "me": me, "parties": names, "order": ORDER, **changes}
    return DealRequest.model_construct(**fields)


def fetch(*turns: list[Ask], certificate: bytes = DEALER.certificate, closed: bool = False) -> list[Any]:
    """Return the answers to requests. The requests of one list are sent at the same time."""

    async def run() -> list[Any]:
        dealer, answers = Dealer(DEALER, [party.certificate for party in PARTIES], patience=0.3), list[Any]()
        address = Address("tcp", f"127.0.0.1:{free_port()}")
        async with await dealer.listen(address) as server:
            access = DealerAccess(address, certificate)
            if closed:
                server.close()
            for asks in turns:
                together = [fetch_package(access, identity, asked, Limits()) for identity, asked in asks]
                answers += await asyncio.gather(*together, return_exceptions=True)
        return answers

    return asyncio.run(run())


def test_each_party_gets_its_own_numbers_of_one_deal() -> None:
    bodies = fetch([(PARTIES[me], request(me)) for me in range(2)])
    offers, count = list[Offer](), ORDER.corrections
    for party, body in enumerate(bodies):
        offers.append(Package.from_bytes(body, ORDER.plan, last=party == 1, corrections=count).update(4))
    assert len({body[:32] for body in bodies}) == 2
    total = Offer(*map(add, zip(*offers, strict=True)))
    np.testing.assert_array_equal(total.truncated, total.weights_mask >> np.uint64(SHIFT))


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (lambda: [(STRANGER, request(0))], "cannot get random numbers of its dealer"),
        (lambda: [(PARTIES[1], request(0))], "party 0 has another certificate"),
        (lambda: [(PARTIES[0], request(0))], r"parties \[1\] have not asked for numbers within 0.3 s"),
        (lambda: [(PARTIES[0], request(0))] * 2, "party 0 asks twice for the same numbers"),
        (lambda: [(PARTIES[0], request(0, run="x"))], "the request cannot be read: run: String should match pattern"),
        (
            lambda: [(PARTIES[0], request(0, parties=(fingerprint(PARTIES[0].certificate), "0")))],
            r"the dealer has no certificate of parties \[1\]",
        ),
        (
            lambda: [(PARTIES[0], request(0, order=ORDER.model_copy(update={"columns": (2, 3, 1)})))],
            "the numbers of parties, of certificates and of columns differ",
        ),
        (
            lambda: [(PARTIES[0], request(0, order=ORDER.model_copy(update={"rows": 10**12})))],
            "bytes, above 8,589,934,592: lower vfb2.epochs",
        ),
        (
            lambda: [(PARTIES[0], request(0)), (PARTIES[1], request(1, order=ORDER.model_copy(update={"seed": 2})))],
            "party [01] asks for other numbers than party [01]",
        ),
    ],
)
def test_a_party_that_does_not_fit_gets_no_numbers(asks: Callable[[], list[Ask]], words: str) -> None:
    answers = fetch(asks())
    assert all(isinstance(answer, PartyError) for answer in answers)
    with pytest.raises(PartyError, match=words):
        raise min(answers, key=lambda answer: "within" in str(answer))


def test_numbers_are_never_dealt_twice() -> None:
    *_, answer = fetch([(PARTIES[me], request(me)) for me in range(2)], [(PARTIES[0], request(0))])
    assert "the numbers of attempt 3 of run" in str(answer)
    assert "were dealt before" in str(answer)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"certificate": STRANGER.certificate}, "the certificates do not fit"),
        ({"closed": True}, "Connection refused"),
    ],
)
def test_a_party_names_the_fault_of_its_dealer(options: dict[str, Any], words: str) -> None:
    (answer,) = fetch([(PARTIES[0], request(0))], **options)
    assert isinstance(answer, PartyError)
    assert words in answer.reason
    assert answer.public == "cannot get random numbers of its dealer"
