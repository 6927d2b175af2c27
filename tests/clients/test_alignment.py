"""Digests of row ids, and who is named when they differ."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.alignment import AlignmentError, check_digests, digest

SALT = bytes(range(16))
texts = st.lists(st.text(st.characters(codec=None), max_size=5), max_size=6)


@given(texts, texts, st.binary(min_size=16, max_size=20), st.binary(min_size=16, max_size=20))
def test_digests_are_equal_for_equal_lists_and_salts_only(
    one: list[str], other: list[str], salt: bytes, another: bytes
) -> None:
    assert digest(one, salt) == digest(list(one), salt)
    assert (digest(one, salt) == digest(other, salt)) == (one == other)
    assert (digest(one, salt) == digest(one, another)) == (salt == another)


@pytest.mark.parametrize(("one", "other"), [
    (["a", "b"], ["b", "a"]),
    (["ab", "c"], ["a", "bc"]),
    (["a", "b"], ["a", "b", ""]),
    ([], [""]),
    (["7"], ["07"]),
    (["\0\0\0\0\0\0\0\x01a", "b"], ["", "\0\0\0\0\0\0\0\x01ab"]),
    (["\ud800"], ["\ud801"]),
])  # fmt: skip
def test_what_looks_alike_when_joined_has_another_digest(one: list[str], other: list[str]) -> None:
    assert digest(one, SALT) != digest(other, SALT)


def test_salt_and_ids_do_not_run_into_each_other() -> None:
    # the salt that holds the frame of a first id is not the shorter salt with that id
    frame = (1).to_bytes(8, "big") + b"a"
    assert digest(["a"], SALT) != digest([], SALT + frame)


def test_the_digest_is_sha256_of_the_framed_list() -> None:
    framed = bytes(7) + b"\x10" + SALT + bytes(7) + b"\x02" + bytes(7) + b"\x01a" + bytes(7) + "\x02é".encode()
    assert digest(["a", "é"], SALT) == hashlib.sha256(framed).digest()


def test_a_short_salt_or_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(ValueError, match="salt of 15 bytes; at least 16"):
        digest(["a"], SALT[:15])
    with pytest.raises(TypeError, match="the id of row 1 is int"):
        digest(["a", 7], SALT)  # type: ignore[list-item]


def test_equal_digests_pass() -> None:
    check_digests({0: b"x", 1: b"x", 5: b"x"}, {0: 3, 1: 3, 5: 3})
    check_digests({2: b"x"}, {2: 3})


@pytest.mark.parametrize(("digests", "rows", "named", "message"), [
    (
        "xxyx", (9, 9, 7, 9), (2,),
        "party 2 has 7 rows; parties 0, 1, 3 have 9 rows.",
    ),
    (
        "xxyx", (9, 9, 9, 9), (2,),
        "party 2 has the same number of rows, 9, but other ids or another order; parties 0, 1, 3 have 9 rows.",
    ),
    # the reporter is not right by being first
    (
        "yxx", (4, 5, 5), (0,),
        "party 0 has 4 rows; parties 1, 2 have 5 rows.",
    ),
    (
        "xy", (4, 5), (1,),
        "party 1 has 5 rows; party 0 has 4 rows.",
    ),
    (
        "xyz", (4, 4, 4), (1, 2),
        "parties 1, 2 have the same number of rows, 4, but other ids or another order; party 0 has 4 rows.",
    ),
    (
        "xyzx", (4, 4, 5, 4), (1, 2),
        "party 1 has 4 rows with other ids or in another order; party 2 has 5 rows; parties 0, 3 have 4 rows.",
    ),
    # equal digests do not help a party that counts otherwise
    ("xxx", (4, 4, 3), (2,), "party 2 has 3 rows; parties 0, 1 have 4 rows."),
])  # fmt: skip
def test_the_parties_that_differ_are_named(
    digests: str, rows: tuple[int, ...], named: tuple[int, ...], message: str
) -> None:
    with pytest.raises(AlignmentError) as caught:
        check_digests({p: name.encode() for p, name in enumerate(digests)}, dict(enumerate(rows)))
    assert message in str(caught.value)
    assert caught.value.parties == named


def test_a_digest_belongs_to_a_row_count() -> None:
    with pytest.raises(ValueError, match=r"digests of parties \[0, 1\] and row counts of parties \[0\]"):
        check_digests({0: b"x", 1: b"x"}, {0: 3})
    with pytest.raises(ValueError, match="digests of parties"):
        check_digests({}, {})
