"""Checks of the pairs of trees that hide partial sums in a vertical run: Definition 4 of VFB2, and an exact test.

Definition 4 is not sufficient: it ignores subtrees of a single party, and compares subtrees one by one, although a
party can combine several subtrees (docs/vertical-leaks.md). `check_pair` tests the exact condition by linear algebra.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from vertical.masking.trees import Tree, TreeError

# elimination modulo this prime is exact (`exposes`); the product of two residues fits an int64
_PRIME = 2**31 - 1


def significantly_different(first: Tree, second: Tree) -> bool:
    """Return whether Definition 4 holds.

    No subtree of more than one but not all parties may have the same parties in both trees.

    Raises:
        TreeError: The parents form no tree, or the trees differ in their number of parties.
    """
    _check_trees(first, second)

    def inner(tree: Tree) -> set[frozenset[int]]:
        subtrees = (tree.subtree(party) for party in range(tree.parties))
        return {subtree for subtree in subtrees if 1 < len(subtree) < tree.parties}

    return not inner(first) & inner(second)


def exposes(first: Tree, second: Tree, coalition: Collection[int]) -> tuple[frozenset[int], ...]:
    """Return the groups of other parties whose plain sum of values a coalition can compute. Empty: no such groups.

    The group of all other parties is excluded, since only a root can compute its sum, which a root may know. Groups do
    not overlap. Each sum that the coalition can compute is a combination of the groups' sums and of the total.

    Each member sees its own value v and mask d, the sum of v + d over the subtree of each of its children in ``first``,
    and the sum of d over the subtree of each of its children in ``second``. The coefficients of all parties' values and
    masks form a matrix [V | D] with a row for each of these quantities. The masks are uniform and independent, so the
    rows reveal about the values exactly c V for the combinations c with c D = 0. Subtrees of a tree are nested or
    disjoint, so D is totally unimodular: elimination divides only by +-1, ranks modulo a prime equal ranks over Z_2^64,
    and the reduced basis of all c V, without the coalition's own values, has one 0/1 row for each group.

    Raises:
        TreeError: The parents form no tree, the trees differ in their number of parties, the coalition is empty, or a
            member of the coalition is not a party.
    """
    _check_trees(first, second)
    members = frozenset(coalition)
    if not members or not members <= set(range(first.parties)):
        raise TreeError(f"coalition {sorted(members)}; it takes one or more of the parties 0 to {first.parties - 1}")
    others = [party for party in range(first.parties) if party not in members]
    place = {party: column for column, party in enumerate(others)}

    # what was seen, minus the members' own values and masks, which they know: [D | V] over the other parties
    rows = []
    for tree, has_values in ((first, True), (second, False)):
        for child in (child for member in members for child in tree.children(member)):
            below = [place[party] for party in tree.subtree(child) if party in place]
            seen = np.zeros((2, len(others)), dtype=np.int64)
            seen[0, below] = 1
            seen[1, below] = has_values
            rows.append(seen.ravel())
    if not rows or not others:
        return ()
    reduced = _row_echelon(np.array(rows))
    # the reduced rows without masks span all that is known about the values alone
    plain = reduced[(reduced[:, : len(others)] == 0).all(axis=1), len(others) :]
    groups = tuple(frozenset(others[column] for column in np.flatnonzero(values)) for values in plain)
    # only a root receives the sum over all others, and it may know it
    return tuple(group for group in groups if group != frozenset(others))


def check_pair(first: Tree, second: Tree, parties: int, dominator: int) -> None:
    """Check that no single party can learn another party's value, or a sum of values.

    Only the dominator, the root of both trees, may learn the sum over all other parties. A party can remove the masks
    exactly if some of the subtrees that it receives in ``first`` together contain the same parties as some of the
    subtrees that it receives in ``second`` (`exposes`). The parties are assumed to be honest but curious, and not to
    collude: the two parents of a party that is a leaf of both trees could always find its value together.

    Args:
        parties: The number of the segment's parties, which each tree must have.
        dominator: The party that must be the root of both trees.

    Raises:
        TreeError: A party can learn a value or a sum, the trees do not fit the segment, or the parents form no tree.
    """
    _check_trees(first, second)
    if first.parties != parties:
        raise TreeError(f"trees over {first.parties} parties for a segment of {parties}")
    for name, tree in (("first", first), ("second", second)):
        if tree.root != dominator:
            raise TreeError(
                f"the {name} tree ends at party {tree.root}, not at the dominator {dominator}: "
                f"the sum is for the dominator alone"
            )
    for party in range(parties):
        groups = exposes(first, second, (party,))
        if groups:
            which = " and of ".join(_words(group) for group in groups)
            raise TreeError(
                f"party {party} could unmask {which}: it receives the sum of their masked values in one tree and the "
                f"sum of their masks in the other"
            )


def _check_trees(first: Tree, second: Tree) -> None:
    """Raise TreeError if the parents form no tree, or if the trees differ in their parties."""
    if first.parties != second.parties:
        raise TreeError(f"two trees over {first.parties} and {second.parties} parties; both take the same")
    for tree in (first, second):
        if not 0 <= tree.root < tree.parties:
            raise TreeError(f"root {tree.root} of a tree of {tree.parties} parties")
        for party, parent in enumerate(tree.parent):
            if party == tree.root and parent != -1:
                raise TreeError(f"the root {party} has the parent {parent}; a root's parent is -1")
            if party != tree.root and not 0 <= parent < tree.parties:
                raise TreeError(f"party {party} has the parent {parent}; allowed are 0 to {tree.parties - 1}")
        for party in range(tree.parties):
            above = party
            for _ in range(tree.parties):
                above = tree.parent[above] if above != tree.root else tree.root
            if above != tree.root:
                raise TreeError(f"party {party} is not connected to the root {tree.root}: its parents form a ring")


def _words(group: frozenset[int]) -> str:
    names = ", ".join(map(str, sorted(group)))
    return f"the value of party {names}" if len(group) == 1 else f"the sum over parties {names}"


def _row_echelon(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the non-zero rows of the reduced echelon form modulo the prime."""
    rows = rows % _PRIME
    rank = 0
    for column in range(rows.shape[1]):
        candidates = np.flatnonzero(rows[rank:, column])
        if not candidates.size:
            continue
        chosen = rank + int(candidates[0])
        rows[[rank, chosen]] = rows[[chosen, rank]]
        rows[rank] = rows[rank] * pow(int(rows[rank, column]), -1, _PRIME) % _PRIME
        factors = rows[:, column].copy()
        factors[rank] = 0
        rows = (rows - factors[:, None] * rows[rank]) % _PRIME
        rank += 1
        if rank == len(rows):
            break
    return rows[:rank]
