"""Tests of secure sums: the survivors determine the sum exactly, sent values are uniform, and no client can be
unmasked."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy import graph, keys, shamir
from privacy.secure_sum import (
    Group,
    Member,
    Secrets,
    SecureSumError,
    _own_stream,
    agree_on_boxes,
    mask,
    reveal,
    share_out,
    unmask,
    vouch,
)

BITS = 32


class Clients:
    """Clients that have completed the first two stages."""

    def __init__(self, count: int, share: float = 2 / 3) -> None:
        self.secrets = {place: Secrets.make() for place in range(count)}
        self.group = Group({place: own.member() for place, own in self.secrets.items()}, share, b"a round")
        self.agreed = {place: agree_on_boxes(place, own, self.group) for place, own in self.secrets.items()}
        self.boxes = {
            place: share_out(place, own, self.group, self.agreed[place]) for place, own in self.secrets.items()
        }

    def mask(self, values: dict[int, np.ndarray], present: list[int]) -> dict[int, np.ndarray]:
        return {place: mask(place, self.secrets[place], self.group, present, values[place], BITS) for place in values}

    def vouch(
        self, places: list[int], present: list[int], survivors: list[int], fewest: int = 3
    ) -> dict[int, dict[int, bytes]]:
        return {
            place: vouch(place, self.agreed[place], self.group, b"", present, survivors, fewest) for place in places
        }

    def reveal(
        self,
        answering: list[int],
        present: list[int],
        survivors: list[int],
        vouched: dict[int, dict[int, bytes]] | None = None,
    ) -> dict[int, dict[int, bytes]]:
        if vouched is None:
            vouched = self.vouch(survivors, present, survivors)
        return {
            place: reveal(
                place,
                self.agreed[place],
                self.group,
                b"",
                present,
                survivors,
                {sender: codes[place] for sender, codes in vouched.items() if place in codes},
                {sender: self.boxes[sender][place] for sender in present if place in self.boxes[sender]},
            )
            for place in answering
        }


def draw(count: int, length: int = 5) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(count)
    return {place: rng.integers(2**BITS, size=length, dtype=np.uint32) for place in range(count)}


def total(values: dict[int, np.ndarray], places: list[int]) -> list[int]:
    return [sum(int(values[place][column]) for place in places) % 2**BITS for column in range(5)]


@settings(max_examples=25)
@given(st.integers(3, 6), st.data())
def test_the_sum_is_that_of_the_clients_whose_values_arrived(count: int, data: st.DataObject) -> None:
    clients, values = Clients(count), draw(count)
    leaving = st.sets(st.integers(0, count - 1), max_size=2)
    first, second, third = data.draw(leaving), data.draw(leaving), data.draw(leaving)
    present = sorted(set(range(count)) - first)
    survivors = [place for place in present if place not in second]
    answering = [place for place in survivors if place not in third]
    try:
        uploads = clients.mask({place: values[place] for place in survivors}, present)
        revealed = clients.reveal(answering, present, survivors)
        found = unmask(clients.group, present, uploads, revealed, BITS)
    except SecureSumError:
        # if all clients are neighbours, the responders are too few to unmask one of themselves
        assert len(answering) <= clients.group.threshold or len(survivors) < 3
    else:
        assert found.tolist() == total(values, survivors)
        assert len(answering) >= clients.group.threshold


def test_a_large_group_needs_few_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("privacy.secure_sum.smallest_degree", lambda count, share: 8)
    clients, values = Clients(30), draw(30)
    assert {len(peers) for peers in clients.group.neighbours.values()} == {8}
    present, survivors = list(range(29)), list(range(1, 29))  # six of eight neighbours must stay, and two leave
    uploads = clients.mask({place: values[place] for place in survivors}, present)
    found = unmask(clients.group, present, uploads, clients.reveal(survivors, present, survivors), BITS)
    assert found.tolist() == total(values, survivors)


def test_what_a_client_sends_is_uniform_and_says_nothing_of_its_values() -> None:
    clients, length = Clients(4), 40_000
    values = {place: np.arange(length, dtype=np.uint32) << 8 for place in range(4)}
    sent = clients.mask(values, list(range(4)))
    for one in sent.values():
        counts = np.bincount(one >> 26, minlength=64)
        # chi-squared with 63 degrees of freedom: above 110 with probability 2e-4
        assert ((counts - length / 64) ** 2 / (length / 64)).sum() < 110
        assert abs(np.corrcoef(one.astype(float), values[0].astype(float))[0, 1]) < 4 / np.sqrt(length)


def test_keys_that_agree_in_all_foldings_make_different_masks() -> None:
    key = bytes(range(32))
    swapped = key[4:8] + key[:4] + key[8:]  # the same XOR of its eight words
    assert (keys.stream(key, 100, BITS) != keys.stream(swapped, 100, BITS)).all()


def test_members_who_were_told_different_things_share_no_box() -> None:
    clients, others = Clients(4), Clients(4)
    mixed = Group({**clients.group.members, 3: others.group.members[3]}, 2 / 3, b"a round")
    agreed = agree_on_boxes(1, clients.secrets[1], mixed)
    everyone, box = list(range(4)), {0: clients.boxes[0][1]}
    for group, confirmed, shares in ((clients.group, mixed, None), (mixed, mixed, {}), (clients.group,) * 2 + ([0],)):
        codes = {place: vouch(place, clients.agreed[place], confirmed, b"", everyone, everyone)[1] for place in (0, 2)}
        if shares is None:
            with pytest.raises(SecureSumError, match="0 neighbours have the same view of the sum"):
                reveal(1, agreed, group, b"", everyone, everyone, codes, box)
        else:
            assert list(reveal(1, agreed, group, b"", everyone, everyone, codes, box)) == list(shares)


def test_masks_of_clients_that_were_asked_different_things_do_not_cancel() -> None:
    clients, values, everyone = Clients(4), draw(4), list(range(4))
    sent = {
        place: mask(place, own, clients.group, everyone, values[place], BITS, b"this" if place else b"that")
        for place, own in clients.secrets.items()
    }
    found = unmask(clients.group, everyone, sent, clients.reveal(everyone, everyone, everyone), BITS, b"this")
    assert (found != np.array(total(values, everyone), np.uint32)).all()
    # neither do the pairs' masks, without the clients' own masks
    for place, own in clients.secrets.items():
        sent[place] -= _own_stream(own.seed, clients.group, b"this" if place else b"that", 5, BITS)
    assert sum(sent.values()).tolist() != total(values, everyone)  # type: ignore[union-attr]


def attack(clients: Clients, victim: int) -> bool:
    """Return whether a server that lies about dropouts, to unmask a lone victim, gets all the shares that it needs.

    The victim masks with a threshold of its neighbours. The server reports to each client that the client and the
    victim survived, and that as many of these neighbours left as the client accepts. The client therefore reveals
    shares of the victim's seed and of their mask keys.
    """
    group, everyone = clients.group, set(clients.secrets)
    partners = group.neighbours[victim][: group.threshold]
    spare = {place: len(peers) - group.threshold for place, peers in group.neighbours.items()}
    left: dict[int, set[int]] = {place: set() for place in everyone}
    for partner in partners:
        for place in sorted(set(group.neighbours[partner]) - {victim}, key=spare.__getitem__)[-group.threshold :]:
            left[place].add(partner)
            spare[place] -= 1
    views = {place: sorted(everyone - gone) for place, gone in left.items() if place != victim}
    vouched: dict[int, dict[int, bytes]] = {}
    shares: dict[int, dict[int, bytes]] = {}
    for place, survivors in views.items():
        with contextlib.suppress(SecureSumError):
            vouched |= clients.vouch([place], sorted(everyone), survivors)
    for place, survivors in views.items():
        with contextlib.suppress(SecureSumError):
            shares |= clients.reveal([place], sorted(everyone), survivors, vouched)

    def count(owner: int, *, seed: bool) -> int:
        return sum(owner in told and (owner not in left[place]) == seed for place, told in shares.items())

    return count(victim, seed=True) >= group.threshold and all(
        count(partner, seed=False) >= group.threshold for partner in partners
    )


@pytest.mark.parametrize("count", [7, 100, 140])
def test_a_server_that_lies_about_who_left_cannot_unmask_one(count: int) -> None:
    assert not attack(Clients(count), 0)


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 200), st.integers(0, 2**32 - 1), st.floats(0.5, 0.9))
def test_no_client_that_reveals_shares_can_lose_its_mask_key(count: int, seed: int, share: float) -> None:
    """Check the claim of docs/secure-sums.md over random views of the clients and random colluding clients."""
    rng, degree = np.random.default_rng(seed), graph.smallest_degree(count, share)
    peers = graph.neighbours(range(count), degree, seed.to_bytes(32, "big"))
    threshold, (colluding, _) = graph.threshold_of(share, degree), graph.count_tolerated(count, share)
    bad = set(rng.permutation(count)[:colluding].tolist())
    view = rng.integers(2, size=count) if seed % 2 else (np.arange(count) < rng.integers(count)).astype(int)
    same = {p: sum(q in bad or view[q] == view[p] for q in peers[p]) for p in range(count)}
    reveals = {p for p in range(count) if p not in bad and same[p] >= threshold}
    for place in reveals:
        against = sum(q in bad or (q in reveals and view[q] != view[place]) for q in peers[place])
        assert against < threshold


def test_the_page_states_how_many_clients_may_collude() -> None:
    page = (Path(__file__).parents[2] / "docs" / "secure-sums.md").read_text()
    for count in (3, 5, 10, 60, 100, 1000):
        degree = graph.smallest_degree(count, 2 / 3)
        threshold, (anywhere, at_random) = graph.threshold_of(2 / 3, degree), graph.count_tolerated(count, 2 / 3)
        row = f"| {count:,} | {degree} | {threshold} | {degree - threshold} | {anywhere} | {at_random} |"
        assert row in page, row


@pytest.mark.parametrize(("colluding", "found"), [(graph.count_tolerated(1000, 2 / 3)[1], False), (260, True)])
def test_a_late_key_that_is_chosen_last_unmasks_nobody(colluding: int, found: bool) -> None:
    """A server tries orders of a ring of 1,000, by the key of its last client, until enough of its clients are near one
    victim. The search succeeds above the number in the page."""
    degree, bad = graph.smallest_degree(1000, 2 / 3), np.arange(1000) < colluding
    needed = 2 * graph.threshold_of(2 / 3, degree) - degree
    most = 0
    for tried in range(200):
        ring = np.tile(bad[graph.order_ring(1000, tried.to_bytes(32, "big"))], 2).cumsum()
        near = ring[degree : degree + 1000] - np.append(0, ring[:999])
        most = max(most, int(near.max()))
    assert (most >= needed) == found
    assert found or most < needed - 20


def test_wrong_shares_are_found_and_named() -> None:
    clients, values, everyone = Clients(5), draw(5), list(range(5))
    uploads, revealed = clients.mask(values, everyone), clients.reveal(everyone, everyone, everyone)
    revealed[1][3] = revealed[1][4]
    with pytest.raises(SecureSumError, match=r"partition 3: the shares of its seed are wrong, from \[0, 1, 2, 4\]"):
        unmask(clients.group, everyone, uploads, revealed, BITS)


def test_too_few_answers_name_who_is_missing() -> None:
    clients, values, everyone = Clients(5), draw(5), list(range(5))
    revealed = clients.reveal([0, 1], everyone, everyone)
    with pytest.raises(SecureSumError, match="1 shares of its seed, needed: 3; no answer from partitions 2, 3, 4"):
        unmask(clients.group, everyone, clients.mask(values, everyone), revealed, BITS)


def test_a_client_refuses_what_would_endanger_it() -> None:
    clients, values = Clients(5), draw(5)
    own = clients.secrets[0]
    for present in ([1, 2, 3], [0, 1, 2], [0, 1, 2, 7]):  # without the client, too few neighbours, an unknown client
        with pytest.raises(SecureSumError, match="take part, of which too few are neighbours"):
            mask(0, own, clients.group, present, values[0], BITS)
    for survivors in ([0, 1], [0, 1, 9]):
        with pytest.raises(SecureSumError, match=r"a sum over \d clients of 5, allowed: at least 3"):
            clients.vouch([0], list(range(5)), survivors)
    with pytest.raises(SecureSumError, match="a sum over 4 clients of 5, allowed: at least 5"):
        clients.vouch([0], list(range(5)), [0, 1, 2, 3], fewest=5)
    for survivors in ([1, 2, 3, 4], [0, 1, 2]):  # without the client, too few of its neighbours
        with pytest.raises(SecureSumError, match="a sum without this client, or with fewer than 3 of its neighbours"):
            clients.vouch([0], list(range(5)), survivors)
    with pytest.raises(SecureSumError, match="2 clients; a secure sum needs at least 3"):
        Group(dict(list(clients.group.members.items())[:2]), 2 / 3, b"")
    with pytest.raises(SecureSumError, match="the same key"):
        Group(dict.fromkeys(range(3), own.member()), 2 / 3, b"")


@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.integers(0, 6), st.randoms())
def test_a_secret_comes_back_from_enough_shares_and_not_from_fewer(
    secret: bytes, threshold: int, more: int, random: object
) -> None:
    shares = shamir.split(secret, threshold, range(threshold + more))
    chosen = dict(random.sample(sorted(shares.items()), threshold))  # type: ignore[attr-defined]
    assert shamir.join(chosen) == secret
    if threshold > 1:
        chosen.popitem()
        with contextlib.suppress(ValueError):
            assert shamir.join(chosen) != secret


def test_the_modulus_of_the_shares_is_prime() -> None:
    # Fermat's test to 20 bases
    assert all(pow(base, shamir._PRIME - 1, shamir._PRIME) == 1 for base in range(2, 22))


@pytest.mark.parametrize("count", [60, 200, 1000])
def test_neighbours_are_symmetric_and_as_many_as_is_safe(count: int) -> None:
    degree = graph.smallest_degree(count, 0.6)
    peers = graph.neighbours(range(count), degree, bytes(range(32)))
    assert all(len(set(own)) == degree and place not in own for place, own in peers.items())
    assert all(place in peers[peer] for place, own in peers.items() for peer in own)
    # simulated: with a fifth of the clients silent, no client has too few neighbours
    rng = np.random.default_rng(0)
    threshold = graph.threshold_of(0.6, degree)
    for _ in range(20):
        left = set(rng.permutation(count)[: count - count // 5].tolist())
        assert min(len(left.intersection(own)) for own in peers.values()) >= threshold


def test_members_are_compared_with_what_they_told() -> None:
    own = Secrets.make()
    assert own.member() == own.member()
    assert isinstance(own.member(), Member)
    assert "seed" not in repr(own)
    assert own != Secrets.make()
