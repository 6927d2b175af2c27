"""Tests of private set intersection and of digests of row ids: the common rows, and the rejected inputs."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from vertical import intersection
from vertical.alignment import digest
from vertical.intersection import TAG_BYTES, Intersection, IntersectionError, common_rows

PRIME, A = 2**255 - 19, 486662


def on_curve(u: int) -> bool:
    return u < PRIME and pow(u**3 + A * u**2 + u, (PRIME - 1) // 2, PRIME) == 1


def fixed_key(name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def times(scalar: int, u: int) -> int:
    """Return the u coordinate of a multiple of a point, by the Montgomery ladder: of P + Q from P, Q and P - Q."""
    (x, z), (a, b) = (1, 0), (u, 1)
    for bit in f"{scalar:b}":
        both = (x * a - z * b) ** 2 % PRIME, u * (x * b - z * a) ** 2 % PRIME
        p = (x, z) if bit == "0" else (a, b)
        one, other = p[0] ** 2 - p[1] ** 2, p[0] * p[1]
        double = one**2 % PRIME, 4 * other * (p[0] ** 2 + A * other + p[1] ** 2) % PRIME
        (x, z), (a, b) = (double, both) if bit == "0" else (both, double)
    return x * pow(z, -1, PRIME) % PRIME


def split(tags: bytes) -> list[bytes]:
    return [tags[at : at + TAG_BYTES] for at in range(0, len(tags), TAG_BYTES)]


ids = st.lists(st.sampled_from([f"row {i}" for i in range(12)]) | st.text(max_size=3), unique=True, max_size=10)


@settings(max_examples=60)
@given(ids, ids)
def test_two_parties_find_their_common_rows_in_one_order(one: list[str], other: list[str]) -> None:
    a, b = Intersection(one), Intersection(other)
    twice_a, twice_b = b.reblind(a.blind()), a.reblind(b.blind())
    own, theirs = a.pair(twice_a, twice_b).own, b.pair(twice_b, twice_a).own
    assert own.dtype == theirs.dtype == np.int64
    assert {one[row] for row in own} == set(one) & set(other)
    assert [one[row] for row in own] == [other[row] for row in theirs]
    # the party that matched can send the rows to the other party, which then need not match
    assert (b.rows(a.pair(twice_a, twice_b).theirs) == theirs).all()


@settings(max_examples=25)
@given(st.lists(ids, min_size=2, max_size=4))
def test_a_reporter_finds_the_rows_that_all_have(lists: list[list[str]]) -> None:
    parties = dict(enumerate(map(Intersection, lists), start=2))
    reporter, others = parties[2], {p: party for p, party in parties.items() if p != 2}
    matches = {
        p: reporter.pair(party.reblind(reporter.blind()), reporter.reblind(party.blind()))
        for p, party in others.items()
    }
    own, places = common_rows(matches)
    names = [lists[0][row] for row in own]
    assert set(names) == set.intersection(*map(set, lists))
    assert own.dtype == np.int64
    for p, party in others.items():
        assert [lists[p - 2][row] for row in party.rows(places[p])] == names


def test_no_order_says_anything_about_the_rows() -> None:
    names = [f"row {i:03}" for i in range(200)]
    a, b = Intersection(names, key=fixed_key("a")), Intersection(names[::-1], key=fixed_key("b"))
    assert all(one < other for one, other in pairwise(split(a.blind())))
    assert Intersection(names[::-1], key=fixed_key("a")).blind() == a.blind()
    rows = a.pair(b.reblind(a.blind()), a.reblind(b.blind())).own
    # a rank correlation of 200 random ranks has a standard deviation of 0.07; the keys are fixed
    assert abs(np.corrcoef(rows, np.arange(200))[0, 1]) < 0.3


def test_a_tag_is_the_hashed_point_times_the_key() -> None:
    domain, secret = hashlib.sha256(b"vertical row ids " + b"run 7").digest(), hashlib.sha256(b"a").digest()
    scalar = int.from_bytes(secret, "little") % 2**254 // 8 * 8 + 2**254  # as RFC 7748 reads a key
    for name in map(str, range(8)):
        hashes = (hashlib.sha256(domain + bytes([n]) + name.encode()).digest() for n in range(256))
        u = next(u for u in (int.from_bytes(one, "little") % 2**255 for one in hashes) if on_curve(u))
        tag = Intersection([name], context=b"run 7", key=fixed_key("a")).blind()
        assert tag == times(scalar, u).to_bytes(32, "little")


def test_processes_find_the_same_tags_and_name_a_malformed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"row {i}" for i in range(50)]
    alone = Intersection(names, key=fixed_key("a"))
    other = Intersection(names, key=fixed_key("b")).blind()
    tags, twice = alone.blind(), alone.reblind(other)
    monkeypatch.setattr(intersection, "_PIECE", 4)
    monkeypatch.setattr(intersection, "cpu_count", lambda: 2)
    spread = Intersection(names, key=fixed_key("a"))
    assert (spread.blind(), spread.reblind(other)) == (tags, twice)
    with pytest.raises(IntersectionError, match="not a point of the curve"):
        spread.reblind(other + off_curve())


def test_no_id_can_be_read_off_the_tags_without_the_key() -> None:
    names = [f"row {i}" for i in range(20)]
    mine, theirs = Intersection(names), Intersection([*names[10:], "other"])
    seen = set(split(mine.blind()))
    assert not seen & set(split(theirs.blind()))
    twice = mine.reblind(theirs.blind())
    assert not seen & set(split(twice))
    assert len(set(split(theirs.reblind(mine.blind()))) & set(split(twice))) == 10


def off_curve() -> bytes:
    return next(u for u in range(1, 100) if not on_curve(u)).to_bytes(32, "little")


@pytest.mark.parametrize("malformed", [
    off_curve(),
    # invalid coordinates: the field's prime, and numbers above it
    PRIME.to_bytes(32, "little"),
    b"\xff" * 32,
    # points of order 2 and 4, which every key takes to infinity
    bytes(32),
    (1).to_bytes(32, "little"),
    # a point whose u is on the curve, written as u + prime, and with the bit that X25519 ignores
    (PRIME + next(u for u in range(19) if on_curve(u))).to_bytes(32, "little"),
    (2**255 + next(u for u in range(2, 100) if on_curve(u))).to_bytes(32, "little"),
])  # fmt: skip
def test_a_malformed_point_is_refused(malformed: bytes) -> None:
    party = Intersection(["a"])
    good = Intersection(["a", "b"]).blind()
    for tags in (malformed, good + malformed, malformed + good):
        with pytest.raises(IntersectionError, match="not a point of the curve"):
            party.reblind(tags)


def test_a_tag_cut_short_or_sent_twice_is_refused() -> None:
    party, other = Intersection(["a", "b"]), Intersection(["b", "c"])
    tags = other.blind()
    for wrong, told in (
        (tags[:-1], "63 bytes of tags, not a multiple of 32"),
        (tags + b"\0", "65 bytes of tags, not a multiple of 32"),
        (tags + tags[:32], "a tag twice"),
    ):
        with pytest.raises(IntersectionError, match=told):
            party.reblind(wrong)
    mine, theirs = other.reblind(party.blind()), party.reblind(tags)
    for back, seen, told in (
        (mine[:32], theirs, "returned 1 tags of the 2 that it got"),
        (mine[:32] * 2, theirs, "a tag twice"),
        (mine, theirs + b"\0", "65 bytes"),
    ):
        with pytest.raises(IntersectionError, match=told):
            party.pair(back, seen)


def test_ids_are_texts_that_occur_once() -> None:
    with pytest.raises(ValueError, match="row 3 has the id of row 1") as caught:
        Intersection(["a", "secret", "c", "secret"])
    assert "secret" not in str(caught.value)
    with pytest.raises(TypeError, match="the id of row 1 is int"):
        Intersection(["a", 1])  # type: ignore[list-item]


SALT = bytes(range(16))
texts = st.lists(st.text(st.characters(codec=None), max_size=5), max_size=6)


@given(texts, texts, st.binary(min_size=16, max_size=20), st.binary(min_size=16, max_size=20))
def test_digests_are_equal_for_equal_lists_and_salts_only(
    one: list[str], other: list[str], salt: bytes, another: bytes
) -> None:
    assert digest(one, salt) == digest(list(one), salt)
    assert (digest(one, salt) == digest(other, salt)) == (one == other)
    assert (digest(one, salt) == digest(one, another)) == (salt == another)


def test_the_digest_is_sha256_of_the_framed_list() -> None:
    framed = bytes(7) + b"\x10" + SALT + bytes(7) + b"\x02" + bytes(7) + b"\x01a" + bytes(7) + "\x02é".encode()
    assert digest(["a", "é"], SALT) == hashlib.sha256(framed).digest()
