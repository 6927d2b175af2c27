"""Private set intersection: the rows that all have, and what is refused; and digests of row ids."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from clients.vertical.alignment import TAG_BYTES, Intersection, IntersectionError, common_rows, digest

PRIME = 2**256 - 2**224 + 2**192 + 2**96 - 1
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B


def on_curve(x: int) -> bool:
    square = (x**3 - 3 * x + B) % PRIME
    return x < PRIME and pow(square, (PRIME - 1) // 2, PRIME) in (0, 1)


def fixed_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(hashlib.sha256(name.encode()).digest()) >> 1, ec.SECP256R1())


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
    # the party that matched can name the rows to the other, which then need not match
    assert (b.rows(a.pair(twice_a, twice_b).other) == theirs).all()


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
    domain = hashlib.sha256(b"vertical row ids " + b"run 7").digest()
    scalar = 3
    for name in map(str, range(30)):
        hashes = (int.from_bytes(hashlib.sha256(domain + bytes([n]) + name.encode()).digest()) for n in range(256))
        x = next(x for x in hashes if on_curve(x))
        # x of 3 P by the division polynomials of y^2 = x^3 + a x + b, a = -3: x - psi2 psi4 / psi3^2
        curve = x**3 - 3 * x + B
        psi3 = 3 * x**4 - 18 * x**2 + 12 * B * x - 9
        psi2_psi4 = 8 * curve * (x**6 - 15 * x**4 + 20 * B * x**3 - 45 * x**2 + 12 * B * x - 8 * B**2 + 27)
        tripled = (x - psi2_psi4 * pow(psi3, -2, PRIME)) % PRIME
        key = ec.derive_private_key(scalar, ec.SECP256R1())
        assert Intersection([name], context=b"run 7", key=key).blind() == tripled.to_bytes(32)


def test_no_id_can_be_read_off_the_tags_without_the_key() -> None:
    names = [f"row {i}" for i in range(20)]
    mine, theirs = Intersection(names), Intersection([*names[10:], "other"])
    seen = set(split(mine.blind()))
    assert not seen & set(split(theirs.blind()))
    twice = mine.reblind(theirs.blind())
    assert not seen & set(split(twice))
    assert len(set(split(theirs.reblind(mine.blind()))) & set(split(twice))) == 10


def off_curve() -> bytes:
    return next(x for x in range(1, 100) if not on_curve(x)).to_bytes(32)


@pytest.mark.parametrize("malformed", [
    off_curve(),
    # no coordinate: the field's prime itself, and what is above it
    PRIME.to_bytes(32),
    b"\xff" * 32,
    # a point whose x is on the curve, written as x + prime
    (PRIME + next(x for x in range(100) if on_curve(x))).to_bytes(32),
])  # fmt: skip
def test_a_malformed_point_is_refused(malformed: bytes) -> None:
    party = Intersection(["a"])
    good = Intersection(["a", "b"]).blind()
    for tags in (malformed, good + malformed, malformed + good):
        with pytest.raises(IntersectionError, match="no point of the curve"):
            party.reblind(tags)


def test_a_tag_cut_short_or_sent_twice_is_refused() -> None:
    party, other = Intersection(["a", "b"]), Intersection(["b", "c"])
    tags = other.blind()
    for wrong, told in (
        (tags[:-1], "63 bytes of tags; each has 32"),
        (tags + b"\0", "65 bytes of tags; each has 32"),
        (tags + tags[:32], "a tag twice"),
    ):
        with pytest.raises(IntersectionError, match=told):
            party.reblind(wrong)
    mine, theirs = other.reblind(party.blind()), party.reblind(tags)
    for back, seen, told in (
        (mine[:32], theirs, "1 of our tags came back; we sent 2"),
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
    with pytest.raises(ValueError, match="a key on secp384r1"):
        Intersection(["a"], key=ec.generate_private_key(ec.SECP384R1()))


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
