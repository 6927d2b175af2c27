"""Tests of a data owner's requirements for a run: pins of peers, and minimum settings."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from tests.clients.test_identity import Authority
from tests.refusals import refuses
from vertical.policy import Policy, PolicyError, parse_maskings, parse_pins
from vertical.transport.identity import Identity, fingerprint

ME, BOB, CAROL, EVE = (Identity.create(name).certificate for name in ("me", "bob", "carol", "eve"))
PINS = {fingerprint(BOB): "bob", fingerprint(CAROL): "carol"}
RUN: dict[str, Any] = {"label_epsilon": 0.0, "masking": "pairwise", "intersection": False}


@pytest.mark.parametrize(
    ("policy", "run", "told"),
    [
        ({"fewest_parties": 4}, {}, "fewest-parties: got a run of 3 parties, allowed: 4 or more parties; add parties"),
        ({"largest_label_epsilon": 1.0}, {"label_epsilon": 1.5}, "label-epsilon=1.5, allowed: above 0 and at most 1;"),
        ({"largest_label_epsilon": 1.0}, {}, "largest-label-epsilon: got a run with vfb2.label-epsilon=0, allowed"),
        (
            {"allow_intersection": False},
            {"intersection": True},
            "allow-intersection: got a run that searches for common ids",
        ),
        ({"allowed_maskings": ("two-trees",)}, {}, "vfb2.masking='pairwise', allowed: two-trees; set vfb2.masking"),
    ],
)
def test_a_run_below_the_policy_is_refused(policy: dict[str, Any], run: dict[str, Any], told: str) -> None:
    Policy().check_run(3, **{**RUN, **run})
    with refuses(PolicyError, told):
        Policy(**policy).check_run(3, **{**RUN, **run})


def test_a_run_that_is_good_enough_is_not() -> None:
    policy = Policy(3, largest_label_epsilon=1.0, allow_intersection=False, allowed_maskings=("pairwise",))
    policy.check_run(3, label_epsilon=1.0, masking="pairwise", intersection=False)
    policy.check_peers([ME, BOB, CAROL], 0, ME)


@pytest.mark.parametrize(
    ("certificates", "me", "told"),
    [
        ([ME, BOB, EVE], 0, f"got party 2 without a pin; the SHA-256 of its certificate: {fingerprint(EVE)}, allowed"),
        ([BOB, BOB, ME], 2, "got parties 0 and 1 under the pin 'bob', allowed: one party for each pin"),
        ([BOB, ME, b"no certificate"], 1, "party 2 without a pin"),
    ],
)
def test_every_peer_is_under_a_pin_of_its_own(certificates: list[bytes], me: int, told: str) -> None:
    Policy().check_peers(certificates, me, ME)
    policy = Policy(pins=PINS, authorities=(CAROL,))
    assert policy.check_peers([BOB, CAROL, ME], 2, ME) == ["bob", "carol", ""]
    with refuses(PolicyError, told):
        policy.check_peers(certificates, me, ME)


def test_one_certificate_is_one_party() -> None:
    with refuses(PolicyError, "fewest-parties: got a run of 2 parties, allowed: 3 or more"):
        Policy(3).check_peers([ME, BOB, BOB], 0, ME)


def test_an_authority_that_is_pinned_vouches_for_one_party(tmp_path: Path) -> None:
    """It vouches for certificates that it has signed itself; the owner's own party counts if its certificate is signed
    too."""
    authority = Authority(tmp_path)
    one, two = (Identity.from_files(*authority.party(name)).certificate for name in ("one", "two"))
    middle, root = (part.public_bytes(Encoding.DER) for part in (authority.middle, authority.root))
    policy = Policy(pins={**PINS, fingerprint(middle): "bank"}, authorities=(root, middle))
    assert policy.check_peers([ME, one, BOB], 0, ME) == ["", "bank", "bob"]
    for me, parties in enumerate(([one, two, BOB], [two, one, BOB], [BOB, one, two])):
        with refuses(PolicyError, r"parties \d and \d under the pin 'bank'"):
            policy.check_peers(parties, me, parties[me])
    # not for certificates that another authority signed, and not if the owner does not trust the pinned authority
    for pins, authorities in (({fingerprint(root): "root"}, (root,)), ({fingerprint(middle): "bank"}, (root,))):
        with refuses(PolicyError, "party 1 without a pin"):
            Policy(pins=pins, authorities=authorities).check_peers([ME, one], 0, ME)


def test_pins_are_read_as_tools_write_them() -> None:
    digest = fingerprint(BOB)
    colons = ":".join(digest[place : place + 2] for place in range(0, 64, 2)).upper()
    assert parse_pins(f"bob={colons}  carol={fingerprint(CAROL)}") == PINS
    assert parse_maskings("pairwise, two-trees") == ("pairwise", "two-trees")
    for text, told in (
        ("bob", "got 'bob', allowed: name=SHA-256"),
        (f"={digest}", "allowed: name=SHA-256"),
        (f"bob={digest[1:]}", "allowed: name=SHA-256"),
        (f"bob={digest[1:]}g", "allowed: name=SHA-256"),
        (f"bob={digest} bob={fingerprint(CAROL)}", "got the name 'bob' twice, allowed: each name once"),
        (f"bob={digest} carol={colons}", f"got the SHA-256 '{digest}' twice"),
        (" ", "got nothing, allowed: at least one pin"),
    ):
        with refuses(PolicyError, told):
            parse_pins(text)
    for text, told in (("none", "got 'none', allowed: pairwise, two-trees"), (",", "got nothing, allowed")):
        with refuses(PolicyError, told):
            parse_maskings(text)
