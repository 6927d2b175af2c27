"""Two-trees masking, the secure sum of VFB2's paper (Algorithm 1; `vertical.records` has the title of the paper).

Each party adds a random mask to its value. The parties sum the masked values along one tree and the masks along another
tree. The *dominator*, the root of both trees, subtracts the second sum from the first.

| paper | here |
|---|---|
| o_l = w_Gl^T (x_i)_Gl | party l's value |
| delta_l | party l's uniform mask (`pairwise.random_elements`) |
| T_1, T_2 | ``first``, which sums value + mask, and ``second``, which sums the masks |
| xi_1 - xi_2 (output) | the result at the dominator |

The paper's Definition 4 does not suffice to hide values (docs/vertical-leaks.md). In the trees of `make_pair`, only the
dominator therefore has children in both trees. `benchmarks.attacks.trees` tests which values any two trees hide.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache


class TreeError(ValueError):
    """Two trees that would reveal a value to a party, or parents that do not form a tree."""


@dataclass(frozen=True)
class Tree:
    """A tree of parties: party p sends the sum of its subtree to ``parent[p]``, which is -1 for the root."""

    root: int
    parent: tuple[int, ...]

    @property
    def parties(self) -> int:
        return len(self.parent)

    def children(self, party: int) -> tuple[int, ...]:
        """Return the parties that send to ``party``, in increasing order."""
        return tuple(child for child, parent in enumerate(self.parent) if parent == party)

    def subtree(self, party: int) -> frozenset[int]:
        """Return ``party`` and all parties below it in the tree."""
        below = frozenset({party})
        for child in self.children(party):
            below |= self.subtree(child)
        return below


@lru_cache(maxsize=256)
def make_pair(parties: int, dominator: int) -> tuple[Tree, Tree]:
    """Return two trees with the dominator as their root. The dominator learns only the sum over all other parties.

    For q >= 4 parties, both trees are heaps of depth log2 q. Only the dominator has children in both trees: each other
    party receives only masked values or only masks. For 3 parties the trees are a star and a chain. With 2 parties
    nothing can hide the other party's value from the dominator.

    Raises:
        ValueError: There are fewer than 3 parties, or the dominator does not exist.
    """
    if parties < 3:
        raise ValueError(
            f"two trees over {parties} parties: the dominator would learn its only collaborator's values; at least 3 "
            "parties are needed"
        )
    if not 0 <= dominator < parties:
        raise ValueError(f"dominator {dominator} of {parties} parties must be 0 to {parties - 1}")
    collaborators = [party for party in range(parties) if party != dominator]
    if parties == 3:
        first, second = _make_tree(dominator, collaborators, [0, 0]), _make_tree(dominator, collaborators, [0, 1])
    else:
        above = [(position - 1) // 2 for position in range(1, parties)]
        # positions 1 to s of a heap have children; a shift by s moves leaves of the first tree to these positions
        shift = (parties - 2) // 2
        first = _make_tree(dominator, collaborators, above)
        second = _make_tree(dominator, collaborators[shift:] + collaborators[:shift], above)
    # the dominator has at most two children in each tree, so it can remove only the masks of equal subtrees
    received, masks = ({tree.subtree(child) for child in tree.children(dominator)} for tree in (first, second))
    if received & masks or any(first.children(party) and second.children(party) for party in collaborators):
        raise TreeError(
            f"a party could unmask other parties in the trees of {parties} parties for dominator {dominator}"
        )
    return first, second


def _make_tree(root: int, collaborators: list[int], above: Collection[int]) -> Tree:
    """Return a tree with ``root`` at position 0 and ``collaborators[k]`` at position k + 1, under ``above[k]``."""
    positions = [root, *collaborators]
    parent = [-1] * len(positions)
    for party, position in zip(collaborators, above, strict=True):
        parent[party] = positions[position]
    return Tree(root, tuple(parent))
