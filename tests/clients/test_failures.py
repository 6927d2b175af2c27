"""The error that names a party, and its form on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.transport.failures import PartyError


@given(party=st.none() | st.integers(0, 11), reason=st.text(max_size=300))
def test_the_wire_gives_it_back(party: int | None, reason: str) -> None:
    reason = "".join(filter(str.isprintable, reason))
    error = PartyError.from_bytes(PartyError(party, reason).to_bytes(), 12)
    assert (error.party, error.reason) == (party, reason)


def test_line_breaks_and_escape_sequences_of_a_peer_are_spelt_out() -> None:
    body = PartyError(1, "gone\n\x1b[2J2026 INFO all is well\u2028\x00").to_bytes()
    assert PartyError.from_bytes(body, 2).reason == r"gone\n\x1b[2J2026 INFO all is well\u2028\x00"


@pytest.mark.parametrize("body", [b"", b"\x01\x00\x00", b"\x02\x00\x00\x00no such party", b"\xfe\xff\xff\xff"])
def test_what_is_no_abort_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="an abort"):
        PartyError.from_bytes(body, 2)
