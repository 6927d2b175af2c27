"""Tests of two-trees masking: the groups that each party, and each coalition, could unmask."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attacks.trees import check_pair, exposes, significantly_different
from vertical.masking.trees import Tree, TreeError, make_pair

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
    return {frozenset().union(*some) for size in range(1, len(sets) + 1) for some in combinations(sets, size)}


def by_unions(first: Tree, second: Tree, party: int) -> set[frozenset[int]]:
    """Return all groups that one party could unmask: unions of subtrees whose sums it receives in both trees, except
    the root's total."""
    received = [[tree.subtree(child) for child in tree.children(party)] for tree in (first, second)]
    return without_total(first, second, frozenset({party}), unions(received[0]) & unions(received[1]))


def by_ranks(first: Tree, second: Tree, coalition: frozenset[int]) -> set[frozenset[int]]:
    """Return all groups that a coalition could unmask: groups whose plain sum is in the span of its view."""
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
    return without_total(first, second, coalition, found)


def without_total(
    first: Tree, second: Tree, coalition: frozenset[int], groups: set[frozenset[int]]
) -> set[frozenset[int]]:
    """Return the groups without the total, which the root receives by design."""
    if {first.root, second.root} <= coalition:
        groups = groups - {frozenset(range(first.parties)) - coalition}
    return groups


@given(pairs(), st.data())
def test_what_a_coalition_could_unmask_is_in_the_span_of_what_it_sees(
    pair: tuple[Tree, Tree], data: st.DataObject
) -> None:
    coalition = data.draw(st.frozensets(st.integers(0, pair[0].parties - 1), min_size=1))
    groups = list(exposes(*pair, coalition))
    assert len(frozenset().union(*groups)) == sum(map(len, groups))  # the groups do not overlap
    assert without_total(*pair, coalition, unions(groups)) == by_ranks(*pair, coalition)


@given(pairs())
def test_the_check_passes_a_pair_exactly_when_nobody_could_unmask_anything(pair: tuple[Tree, Tree]) -> None:
    first, second = pair
    open_to = [party for party in range(first.parties) if by_unions(first, second, party)]
    if open_to or second.root != 0:
        with pytest.raises(TreeError, match=f"^party {open_to[0]} could unmask" if second.root == 0 else "not at the"):
            check_pair(first, second, first.parties, 0)
    else:
        check_pair(first, second, first.parties, 0)


@pytest.mark.parametrize("parties", [*range(3, 10), 16, 17, 33])
def test_made_pairs_pass_for_every_dominator(parties: int) -> None:
    for dominator in range(parties):
        first, second = make_pair(parties, dominator)
        check_pair(first, second, parties, dominator)
        if parties == 3:
            continue
        for tree in (first, second):
            assert max(len(tree.children(party)) for party in range(parties)) <= 2
            for party in range(parties):
                steps = 0
                while party != dominator:
                    party, steps = tree.parent[party], steps + 1
                assert steps <= int(np.log2(parties))
        assert [p for p in range(parties) if first.children(p) and second.children(p)] == [dominator]


def test_two_parties_are_refused() -> None:
    for parties in (1, 2):
        with pytest.raises(ValueError, match="at least 3 parties"):
            make_pair(parties, 0)
    for dominator in (-1, 3):
        with pytest.raises(ValueError, match=f"dominator {dominator} of 3"):
            make_pair(3, dominator)


@pytest.mark.parametrize(("first", "second", "party", "group"), [
    # every subtree has one party, and Definition 4 covers larger subtrees only
    (STAR, STAR, 0, "the value of party 1 and of the value of party 2 and of the value of party 3"),
    # party 1 receives party 2's masked value and its mask
    (Tree(0, (-1, 0, 1, 0)), Tree(0, (-1, 0, 1, 1)), 1, "the value of party 2"),
    # no two subtrees are equal, but {1} with {2} equals {1, 2}, and {3} with {4, 5} equals {3, 4} with {5}
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


def test_definition_four_refuses_equal_subtrees() -> None:
    assert significantly_different(*FIGURE)
    check_pair(*FIGURE, 4, 0)
    assert significantly_different(CHAIN, Tree(0, (-1, 2, 0, 0)))
    assert not significantly_different(CHAIN, Tree(0, (-1, 0, 3, 1)))
    assert not significantly_different(FIGURE[0], FIGURE[0])


def test_the_papers_example_of_collusion() -> None:
    # Appendix B: its parties 2 and 3 take the mask off party 4
    assert exposes(*FIGURE, (1, 2)) == (frozenset({3}),)
    assert exposes(*FIGURE, (1,)) == exposes(*FIGURE, (2,)) == ()
    # the dominator with 1 or 2 learns only the sum over the other parties, which it receives anyway; with 3 it learns
    # more
    assert exposes(*FIGURE, (0, 1)) == exposes(*FIGURE, (0, 2)) == ()
    assert exposes(*FIGURE, (0, 3)) == (frozenset({1}), frozenset({2}))
    assert exposes(*FIGURE, (0, 1, 2)) == ()
