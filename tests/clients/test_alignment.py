"""Digests of row ids."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.alignment.common_rows import digest

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
