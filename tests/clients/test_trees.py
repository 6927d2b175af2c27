"""Two-trees masking: what each party, and each coalition, could unmask."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.vertical.masks import random_elements
from clients.vertical.ring import decode, encode
from clients.vertical.trees import Tree, TreeError, check_pair, exposes, make_pair, significantly_different

# the paper's Figure 5, its parties 1 to 4 as 0 to 3
FIGURE = Tree(0, (-1, 0, 0, 2)), Tree(0, (-1, 0, 0, 1))
STAR, CHAIN = Tree(0, (-1, 0, 0, 0)), Tree(0, (-1, 0, 1, 2))


@st.composite
def trees(draw: st.DrawFn, parties: int, root: int) -> Tree:
    order = [root, *draw(st.permutations([p for p in range(parties) if p != root]))]
    parent = [-1] * parties
    for place in range(1, parties):
        parent[order[place]] = order[draw(st.integers(0, place - 1))]
    return Tree(root, tuple(parent))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tree, Tree]:
    parties = draw(st.integers(2, 7))
    return draw(trees(parties, 0)), draw(trees(parties, draw(st.sampled_from([0, 0, 0, parties - 1]))))


def subsets(items: list[int]) -> list[frozenset[int]]:
    return [frozenset(some) for size in range(1, len(items) + 1) for some in combinations(items, size)]


def unions(sets: list[frozenset[int]]) -> set[frozenset[int]]:
    return {
        frozenset(chain.from_iterable(some)) for size in range(1, len(sets) + 1) for some in combinations(sets, size)
    }


def by_unions(first: Tree, second: Tree, party: int) -> set[frozenset[int]]:
    """All the groups that one party could unmask: unions of subtrees it receives in the first and in the second."""
    received = [[tree.subtree(child) for child in tree.children(party)] for tree in (first, second)]
    return unions(received[0]) & unions(received[1])


def by_ranks(first: Tree, second: Tree, coalition: frozenset[int]) -> set[frozenset[int]]:
    """All the groups that a coalition could unmask: those whose plain sum is in the span of what it sees."""
    parties = first.parties
    seen = [np.eye(2 * parties)[[member, parties + member]] for member in coalition]
    for member in coalition:
        for tree, masked in ((first, 1), (second, 0)):
            for child in tree.children(member):
                below = np.isin(np.arange(parties), list(tree.subtree(child)))
                seen.append(np.concatenate([masked * below, below])[None].astype(float))
    span = np.concatenate(seen)
    rank = np.linalg.matrix_rank(span)
    found = set()
    for group in subsets([p for p in range(parties) if p not in coalition]):
        plain = np.concatenate([np.isin(np.arange(parties), list(group)), np.zeros(parties)])
        if np.linalg.matrix_rank(np.vstack([span, plain])) == rank:
            found.add(group)
    return found


def without_total(
    first: Tree, second: Tree, coalition: frozenset[int], groups: set[frozenset[int]]
) -> set[frozenset[int]]:
    """Without what the root is told."""
    if {first.root, second.root} <= coalition:
        groups = groups - {frozenset(range(first.parties)) - coalition}
    return groups


@given(pairs())
def test_what_one_party_could_unmask_is_what_it_can_cover_with_subtrees_of_both_kinds(pair: tuple[Tree, Tree]) -> None:
    for party in range(pair[0].parties):
        everything = by_unions(*pair, party)
        groups = list(exposes(*pair, (party,)))
        assert without_total(*pair, frozenset({party}), unions(groups)) == without_total(
            *pair, frozenset({party}), everything
        )


@given(pairs(), st.data())
def test_what_a_coalition_could_unmask_is_in_the_span_of_what_it_sees(
    pair: tuple[Tree, Tree], data: st.DataObject
) -> None:
    coalition = data.draw(st.frozensets(st.integers(0, pair[0].parties - 1), min_size=1))
    groups = list(exposes(*pair, coalition))
    assert len(frozenset().union(*groups)) == sum(map(len, groups))
    everything = without_total(*pair, coalition, by_ranks(*pair, coalition))
    assert without_total(*pair, coalition, unions(groups)) == everything


@given(pairs())
def test_the_check_passes_a_pair_exactly_when_nobody_could_unmask_anything(pair: tuple[Tree, Tree]) -> None:
    first, second = pair
    open_to = [
        party
        for party in range(first.parties)
        if without_total(first, second, frozenset({party}), by_unions(first, second, party))
    ]
    if open_to or second.root != 0:
        with pytest.raises(TreeError, match=f"^party {open_to[0]} could unmask" if second.root == 0 else "not at the"):
            check_pair(first, second, first.parties, 0)
    else:
        check_pair(first, second, first.parties, 0)


@pytest.mark.parametrize("parties", range(3, 34))
def test_made_pairs_pass_for_every_dominator(parties: int) -> None:
    for dominator in range(parties):
        first, second = make_pair(parties, dominator)
        check_pair(first, second, parties, dominator)
        assert first.root == second.root == dominator
        assert first.subtree(dominator) == second.subtree(dominator) == frozenset(range(parties))
        if parties > 3:
            depth = int(np.log2(parties))
            for tree in (first, second):
                for party in range(parties):
                    assert len(tree.children(party)) <= 2
                    steps = 0
                    while party != dominator:
                        party, steps = tree.parent[party], steps + 1
                    assert steps <= depth
            both = [p for p in range(parties) if first.children(p) and second.children(p)]
            assert both == [dominator]


def test_three_parties_get_a_star_and_a_chain() -> None:
    assert make_pair(3, 1) == (Tree(1, (1, -1, 1)), Tree(1, (1, -1, 0)))


def test_two_parties_are_refused_unless_asked_for() -> None:
    with pytest.raises(ValueError, match="at least 3 parties"):
        make_pair(2, 0)
    with pytest.raises(ValueError, match="at least 3 parties"):
        make_pair(1, 0, allow_bare=True)
    assert make_pair(2, 1, allow_bare=True) == (Tree(1, (1, -1)), Tree(1, (1, -1)))
    for dominator in (-1, 3):
        with pytest.raises(ValueError, match=f"dominator {dominator} of 3"):
            make_pair(3, dominator)


@pytest.mark.parametrize(("first", "second", "party", "group"), [
    # every subtree is of one party, and Definition 4 looks at larger ones only
    (STAR, STAR, 0, "the value of party 1 and of the value of party 2 and of the value of party 3"),
    # party 1 receives party 2's masked value and its mask
    (Tree(0, (-1, 0, 1, 0)), Tree(0, (-1, 0, 1, 1)), 1, "the value of party 2"),
    # no two subtrees are equal, but 1 and 2 together are one, 3 and {4, 5} are {3, 4} and 5
    (
        Tree(0, (-1, 0, 0, 0, 3, 0)),
        Tree(0, (-1, 0, 1, 0, 0, 4)),
        0,
        "the sum over parties 1, 2 and of the sum over parties 3, 4, 5",
    ),
])  # fmt: skip
def test_definition_four_passes_pairs_that_hide_nothing(first: Tree, second: Tree, party: int, group: str) -> None:
    assert significantly_different(first, second)
    with pytest.raises(TreeError, match=f"^party {party} could unmask {group}: "):
        check_pair(first, second, first.parties, 0)


def test_the_papers_figure_passes_both() -> None:
    assert significantly_different(*FIGURE)
    check_pair(*FIGURE, 4, 0)


def test_definition_four_refuses_equal_subtrees() -> None:
    assert not significantly_different(CHAIN, Tree(0, (-1, 0, 3, 1)))
    assert not significantly_different(FIGURE[0], FIGURE[0])
    assert significantly_different(CHAIN, Tree(0, (-1, 2, 0, 0)))


def test_the_papers_example_of_collusion() -> None:
    # Appendix B: its parties 2 and 3 take the mask off party 4
    assert exposes(*FIGURE, (1, 2)) == (frozenset({3}),)
    assert exposes(*FIGURE, (1,)) == exposes(*FIGURE, (2,)) == ()
    # the dominator with 1 or 2 learns no more than the sum over the others, which it is told; with 3 it does
    assert exposes(*FIGURE, (0, 1)) == exposes(*FIGURE, (0, 2)) == ()
    assert exposes(*FIGURE, (0, 3)) == (frozenset({1}), frozenset({2}))
    assert exposes(*FIGURE, (0, 1, 2)) == ()


def test_groups_of_a_coalition_do_not_overlap() -> None:
    first, second = Tree(0, (-1, 2, 0, 0, 0, 2)), Tree(0, (-1, 0, 0, 2, 5, 2))
    # 5 receives party 4's mask, 0 its masked value and the sum of the others'
    assert exposes(first, second, (0, 5)) == (frozenset({1, 2, 3}), frozenset({4}))


@pytest.mark.parametrize("coalition", [(), (4,), (-1, 0)])
def test_a_coalition_is_of_parties(coalition: tuple[int, ...]) -> None:
    with pytest.raises(TreeError, match="coalition"):
        exposes(*FIGURE, coalition)


@pytest.mark.parametrize("parties", [3, 4, 5, 8, 12])
def test_both_trees_together_give_the_dominator_the_sum_and_nobody_a_plain_value(parties: int) -> None:
    generator = np.random.default_rng(parties)
    values = generator.normal(size=(parties, 6))
    plain = [encode(row) for row in values]
    own = [random_elements(6) for _ in range(parties)]
    for dominator in range(parties):
        first, second = make_pair(parties, dominator)

        def received(tree: Tree, elements: list[np.ndarray], to: int) -> list[np.ndarray]:
            zero = np.zeros(6, dtype=np.uint64)
            return [sum((elements[p] for p in tree.subtree(child)), zero) for child in tree.children(to)]

        masked = [value + mask for value, mask in zip(plain, own, strict=True)]
        zero = np.zeros(6, dtype=np.uint64)
        totals = [sum(received(tree, seen, dominator), zero) for tree, seen in ((first, masked), (second, own))]
        # q - 1 values, each rounded to 2^-40
        np.testing.assert_allclose(
            decode(totals[0] - totals[1]),
            np.delete(values, dominator, axis=0).sum(axis=0),
            rtol=0,
            atol=parties * 2.0**-40,
        )
        secrets = {
            sum((plain[p] for p in group), np.zeros(6, dtype=np.uint64)).tobytes()
            for group in subsets(list(range(parties)))
            if parties <= 8 and group != frozenset(range(parties)) - {dominator}
        }
        for party in range(parties):
            sums = [received(first, masked, party), received(second, own, party)]
            for taken in sums[0]:
                assert taken.tobytes() not in secrets
                for mask in (*sums[1], own[party]):
                    assert (taken - mask).tobytes() not in secrets


@pytest.mark.parametrize(("root", "parent", "what"), [
    (3, (-1, 0, 0), "root 3 of a tree of 3 parties"),
    (-1, (-1, 0, 0), "root -1"),
    (0, (), "root 0 of a tree of 0 parties"),
    (0, (1, 0, 0), "the root 0 has the parent 1"),
    (0, (-1, -1, 0), "party 1 has the parent -1"),
    (0, (-1, 3, 0), "party 1 has the parent 3; allowed are 0 to 2"),
    (0, (-1, 2, 1), "party 1 is not connected to the root 0"),
    (0, (-1, 0, 2), "party 2 is not connected to the root 0"),
])  # fmt: skip
def test_what_is_no_tree_is_refused(root: int, parent: tuple[int, ...], what: str) -> None:
    with pytest.raises(TreeError, match=what):
        Tree(root, parent)


def test_children_and_subtrees() -> None:
    tree = Tree(2, (2, 0, -1, 0, 2))
    assert tree.children(2) == (0, 4)
    assert tree.children(0) == (1, 3)
    assert tree.children(4) == ()
    assert tree.subtree(0) == frozenset({0, 1, 3})
    assert tree.subtree(4) == frozenset({4})
    assert tree.parties == 5


def test_trees_of_other_sizes_or_roots_are_refused() -> None:
    with pytest.raises(TreeError, match="over 4 and 3 parties"):
        check_pair(STAR, Tree(0, (-1, 0, 0)), 4, 0)
    with pytest.raises(TreeError, match="over 4 parties for a segment of 5"):
        check_pair(*FIGURE, 5, 0)
    with pytest.raises(TreeError, match="the first tree ends at party 0, not at the dominator 1"):
        check_pair(*FIGURE, 4, 1)
    with pytest.raises(TreeError, match="the second tree ends at party 1, not at the dominator 0"):
        check_pair(FIGURE[0], Tree(1, (1, -1, 0, 0)), 4, 0)
