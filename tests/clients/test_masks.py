"""Tests of pairwise masks: exact cancellation, disjoint streams, and elements that reveal nothing about the hidden
values."""

import hashlib
import hmac
from itertools import product

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy.keys import agree
from vertical.masking.pairwise import PairwiseMasks, pair_info, random_elements

PARTIAL, SNAPSHOT, EVALUATION = 1, 2, 3


def key(one: int, other: int) -> bytes:
    return hashlib.sha256(b"a fixed key" + bytes(sorted((one, other)))).digest()


def party(me: int, parties: int, chunk: int = 64) -> PairwiseMasks:
    return PairwiseMasks(me, parties, {r: key(me, r) for r in range(parties) if r != me}, chunk=chunk)


def counter_mode(secret: bytes, kind: int, dominator: int, update: int, length: int) -> NDArray[np.uint64]:
    """Return the stream by the library's own counter mode, started at the address."""
    start = bytes([0, kind]) + dominator.to_bytes(2, "big") + update.to_bytes(4, "big") + bytes(8)
    encryptor = Cipher(algorithms.AES(secret), modes.CTR(start)).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)


def expected(me: int, parties: int, kind: int, dominator: int, update: int, length: int) -> NDArray[np.uint64]:
    mask = np.zeros(length, dtype=np.uint64)
    for peer in set(range(parties)) - {me, dominator}:
        stream = counter_mode(key(me, peer), kind, dominator, update, length)
        mask = mask + stream if me < peer else mask - stream
    return mask


@pytest.mark.parametrize("parties", [3, 4, 5, 9])
def test_masks_cancel_exactly_for_every_dominator(parties: int) -> None:
    everyone = [party(p, parties) for p in range(parties)]
    for dominator, (kind, update, length) in product(
        range(parties), [(PARTIAL, 0, 32), (PARTIAL, 1, 32), (PARTIAL, 2, 7), (SNAPSHOT, 0, 5001), (PARTIAL, 90, 1)]
    ):
        masks = [everyone[p].mask(kind, dominator, update, length) for p in range(parties) if p != dominator]
        assert all(mask.shape == (length,) and mask.dtype == np.uint64 for mask in masks)
        total = sum(masks, np.zeros(length, dtype=np.uint64))
        assert (total == 0).all()
        # no smaller group of masks cancels
        assert all((total - left_out != 0).all() for left_out in masks)


addresses = st.lists(
    st.tuples(
        st.sampled_from([0, PARTIAL, 255]),
        st.sampled_from([1, 2, 3]),
        st.one_of(st.integers(0, 12), st.sampled_from([2**32 - 1, 2**32 - 2, 2**31])),
        st.integers(1, 40),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda address: address[:3],
)


@given(addresses, st.integers(1, 5), st.sampled_from([1, 2, 7, 64]))
def test_a_mask_depends_on_its_address_alone(asked: list[tuple[int, int, int, int]], parties: int, chunk: int) -> None:
    masks = party(0, 3 + parties, chunk)
    for address in asked:
        assert (masks.mask(*address) == expected(0, 3 + parties, *address)).all()


def test_the_block_counter_never_runs_into_the_update() -> None:
    masks = party(0, 3)
    # the longest stream of the last update, then the first of the next dominator, which is next in address order
    last = masks.mask(PARTIAL, 1, 2**32 - 1, 200_000)
    following = masks.mask(PARTIAL, 2, 0, 200_000)
    assert (last == expected(0, 3, PARTIAL, 1, 2**32 - 1, 200_000)).all()
    assert (following == expected(0, 3, PARTIAL, 2, 0, 200_000)).all()
    assert len(set(last.tolist()) & set(following.tolist())) == 0
    with pytest.raises(ValueError, match=r"update 4294967296 .* 0 to 2\^32 - 1"):
        masks.mask(PARTIAL, 1, 2**32, 1)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 0, 2, 1], [9, 8, 0, 1]])
def test_an_address_is_handed_out_once(order: list[int]) -> None:
    masks = party(1, 4)
    for update in order:
        mask = masks.mask(PARTIAL, 0, update, 8)
        assert (mask == expected(1, 4, PARTIAL, 0, update, 8)).all()
        mask += np.uint64(1)  # the caller may change it
    for update, length in product(order, (8, 1, 9)):
        with pytest.raises(ValueError, match=f"update {update} .kind 1, dominator 0. was handed out before"):
            masks.mask(PARTIAL, 0, update, length)
    # another kind or dominator has another address
    masks.mask(SNAPSHOT, 0, order[0], 8)
    masks.mask(PARTIAL, 2, order[0], 8)


def test_what_was_handed_out_in_order_takes_no_memory() -> None:
    masks = party(1, 4)
    for update in [1, 0, *range(2, 1000)]:
        masks.mask(PARTIAL, 0, update, 1)
    assert not masks._streams[PARTIAL, 0]._ahead


def test_random_elements_are_fresh_and_of_all_sizes() -> None:
    elements = np.concatenate([random_elements(100) for _ in range(100)])
    assert len(set(elements.tolist())) == elements.size
    # each of the 64 bits is set in about half of the 10,000; 0.44 is 12 standard deviations away
    ones = (elements[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
    assert ((ones > 0.44) & (ones < 0.56)).all()


def test_two_parties_have_nothing_to_hide_behind() -> None:
    with pytest.raises(ValueError, match="at least 3 parties"):
        PairwiseMasks(0, 2, {1: key(0, 1)})
    with pytest.raises(ValueError, match="at least 3 parties"):
        PairwiseMasks(0, 1, {})


def test_keys_must_be_one_of_its_own_for_each_peer() -> None:
    keys = {r: key(0, r) for r in range(1, 4)}
    for me, wrong, what in [
        (0, {1: keys[1], 2: keys[2]}, r"each of the parties \[1, 2, 3\], not for \[1, 2\]"),
        (0, keys | {0: key(0, 0)}, r"not for \[0, 1, 2, 3\]"),
        (0, keys | {2: b"short"}, "shared with party 2 has 5 bytes, not 32"),
        (0, keys | {2: keys[3]}, "parties 2 and 3 share the same key"),
        (4, keys | {0: key(0, 4)}, "party 4 of 4"),
    ]:
        with pytest.raises(ValueError, match=what):
            PairwiseMasks(me, 4, wrong)
    with pytest.raises(ValueError, match="chunk 0"):
        party(0, 4, chunk=0)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ((256, 1, 0, 4), "kind 256"),
        ((-1, 1, 0, 4), "kind -1"),
        ((1, 4, 0, 4), "dominator 4 of 4"),
        ((1, -1, 0, 4), "dominator -1 of 4"),
        ((1, 0, 0, 4), "party 0 dominates"),
        ((1, 1, -1, 4), "update -1"),
        ((1, 1, 0, 0), "length 0"),
    ],
)
def test_an_address_out_of_range_is_refused(address: tuple[int, int, int, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        party(0, 4).mask(*address)


ALICE = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"alice").digest())
BOB = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"bob").digest())
CAROL = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"carol").digest())


def public(private: X25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def test_both_ends_agree_on_one_key() -> None:
    info = pair_info(3, 0, 1)
    ours = agree(ALICE, public(BOB), info=info)
    assert ours == agree(BOB, public(ALICE), info=info)
    # HKDF-SHA256 (RFC 5869) written out, one block
    secret = hmac.digest(bytes(32), ALICE.exchange(BOB.public_key()), "sha256")
    bound = info + b"".join(sorted([public(ALICE), public(BOB)]))
    assert ours == hmac.digest(secret, bound + b"\x01", "sha256")


def test_keys_differ_by_segment_pair_and_peer() -> None:
    pairs = ((0, 1), (0, 2), (1, 2), (0, 258), (1, 256))
    infos = [pair_info(serial, *pair) for serial in (0, 1, 2**40) for pair in pairs]
    assert len({agree(ALICE, public(peer), info=info) for info in infos for peer in (BOB, CAROL)}) == 2 * len(infos)
    assert pair_info(5, 7, 2) == pair_info(5, 2, 7)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        *((weak, "small order") for weak in (bytes(32), b"\x01" + bytes(31), (2**255 - 20).to_bytes(32, "little"))),
        (bytes(31), "of 31 bytes; X25519 has 32"),
        (public(ALICE), "our own public key"),
    ],
)
def test_a_public_key_that_makes_no_secret_is_refused(given: bytes, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        agree(ALICE, given, info=b"")


@pytest.mark.parametrize("pair", [(1, 1), (-1, 2)])
def test_a_pair_is_two_parties(pair: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="are not a pair"):
        pair_info(0, *pair)
