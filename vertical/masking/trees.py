"""Two-trees masking, the secure aggregation of VFB2's paper (Algorithm 1; `vertical.records` has its title).

| paper | here |
|---|---|
| o_l = w_Gl^T (x_i)_Gl | party l's value |
| delta_l | party l's mask, uniform and its own (`pairwise.random_elements`) |
| T_1, T_2 | ``first``, which sums value + mask, and ``second``, which sums the masks |
| xi_1 - xi_2 (output) | the result at the dominator, the root of both |

The paper's Definition 4 is not sufficient (docs/vertical-leaks.md). Instead, in `make_pair` only the dominator has
children in both trees. `benchmarks.attacks.trees` tests what any two trees hide.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache


class TreeError(ValueError):
    """Trees that would reveal too much to a party, or parents that do not form a tree."""


@dataclass(frozen=True)
class Tree:
    """A tree of parties: party p sends its subtree's sum to ``parent[p]``, which is -1 for the root."""

    root: int
    parent: tuple[int, ...]

    @property
    def parties(self) -> int:
        return len(self.parent)

    def children(self, party: int) -> tuple[int, ...]:
        """Return the parties that send to ``party``, in increasing order."""
        return tuple(child for child, parent in enumerate(self.parent) if parent == party)

    def subtree(self, party: int) -> frozenset[int]:
        """Return ``party`` and all parties below it, whose sum it sends to its parent."""
        below = frozenset({party})
        for child in self.children(party):
            below |= self.subtree(child)
        return below


@lru_cache(maxsize=256)
def make_pair(parties: int, dominator: int) -> tuple[Tree, Tree]:
    """Return two trees with a dominator as their root, which learns only the sum over all other parties.

    For 4 parties or more both are heaps of depth log2 q, in which only the dominator has children in both: each other
    party receives only masked values or only masks. For 3 parties they are a star and a chain. With 2 parties nothing
    can hide the other party's value from the dominator.

    Raises:
        ValueError: There are fewer than 3 parties, or the dominator does not exist.
    """
    if parties < 3:
        raise ValueError(
            f"two trees over {parties} parties: the dominator would learn its only collaborator's values; at least 3 "
            "parties are needed"
        )
    if not 0 <= dominator < parties:
        raise ValueError(f"dominator {dominator} of {parties} parties")
    collaborators = [party for party in range(parties) if party != dominator]
    if parties == 3:
        first, second = _make_tree(dominator, collaborators, [0, 0]), _make_tree(dominator, collaborators, [0, 1])
    else:
        above = [(position - 1) // 2 for position in range(1, parties)]
        # the places 1 to s of a heap have children; a shift by s puts leaves of the first tree there
        shift = (parties - 2) // 2
        first = _make_tree(dominator, collaborators, above)
        second = _make_tree(dominator, collaborators[shift:] + collaborators[:shift], above)
    # with at most two children in each tree, the dominator can remove the masks of equal subtrees only
    received, masks = ({tree.subtree(child) for child in tree.children(dominator)} for tree in (first, second))
    if received & masks or any(first.children(party) and second.children(party) for party in collaborators):
        raise TreeError(f"a party could unmask others in the trees over {parties} parties for dominator {dominator}")
    return first, second


def _make_tree(root: int, collaborators: list[int], above: Collection[int]) -> Tree:
    """Return the tree with ``root`` at place 0 and ``others[k]`` at place k + 1, under the place ``above[k]``."""
    positions = [root, *collaborators]
    parent = [-1] * len(positions)
    for party, position in zip(collaborators, above, strict=True):
        parent[party] = positions[position]
    return Tree(root, tuple(parent))
