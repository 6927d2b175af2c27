"""The error that names a party, and its form on the wire."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.failures import PartyError


def test_its_words_name_the_culprit() -> None:
    assert str(PartyError(3, "it is silent")) == "party 3: it is silent"
    assert str(PartyError(None, "nobody came")) == "nobody came"
    assert isinstance(PartyError(0, ""), RuntimeError)


@given(party=st.none() | st.integers(0, 11), reason=st.text(max_size=300))
def test_the_wire_gives_it_back(party: int | None, reason: str) -> None:
    reason = reason.encode(errors="replace").decode()
    error = PartyError.from_bytes(PartyError(party, reason).to_bytes(), 12)
    assert (error.party, error.reason) == (party, reason)


def test_a_long_reason_is_cut_also_inside_a_letter() -> None:
    body = PartyError(1, "é" * 5000).to_bytes()
    assert len(body) == 2004
    assert PartyError.from_bytes(body, 2).reason == "é" * 1000
    assert len(PartyError.from_bytes(body + b"x" * 5000, 2).reason) == 1000
    assert PartyError.from_bytes(PartyError(1, "x" + "é" * 5000).to_bytes(), 2).reason.startswith("x" + "é" * 999)


@pytest.mark.parametrize("body", [b"", b"\x01\x00\x00", b"\x02\x00\x00\x00no such party", b"\xfe\xff\xff\xff"])
def test_what_is_no_abort_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="an abort"):
        PartyError.from_bytes(body, 2)


def test_it_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(PartyError(2, "gone")))
    assert (error.party, error.reason, str(error)) == (2, "gone", "party 2: gone")
