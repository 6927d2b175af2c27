"""Two-trees masking, the secure aggregation of VFB2's paper (Algorithm 1; `vertical.records` has its title).

| paper | here |
|---|---|
| o_l = w_Gl^T (x_i)_Gl | party l's value |
| delta_l | party l's mask, uniform and its own (`pairwise.random_elements`) |
| T_1, T_2 | ``first``, which adds up value + mask, and ``second``, the masks |
| xi_1 - xi_2 (output) | what the dominator, the root of both, computes |

The paper's Definition 4 is not enough (docs/vertical-leaks.md): `make_pair` gives children in both trees
to the dominator alone. `benchmarks.attacks.trees` tests what any two trees hide.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache


class TreeError(ValueError):
    """Trees that would show a party more than it may know, or parents that form no tree."""


@dataclass(frozen=True)
class Tree:
    """Who sends to whom: ``parent[p]`` is the party that p sends its subtree's sum to, -1 for the root."""

    root: int
    parent: tuple[int, ...]

    @property
    def parties(self) -> int:
        return len(self.parent)

    def children(self, party: int) -> tuple[int, ...]:
        """Return the parties that send to ``party``, in increasing order."""
        return tuple(child for child, parent in enumerate(self.parent) if parent == party)

    def subtree(self, party: int) -> frozenset[int]:
        """``party`` and all parties below it, whose sum it sends to its parent."""
        below = frozenset({party})
        for child in self.children(party):
            below |= self.subtree(child)
        return below


@lru_cache(maxsize=256)
def make_pair(parties: int, dominator: int) -> tuple[Tree, Tree]:
    """Make two trees for a dominator, the root of both: only it learns a sum of values, that over all others.

    For 4 parties or more both are heaps (of depth log2 q), arranged so that only the dominator has children in both:
    each other party receives masked values only, or masks only. For 3 parties they are a star and a chain. With 2
    nothing can hide the other party's value from the dominator.

    Raises:
        ValueError: There are fewer than 3 parties, or there is no such dominator.
    """
    if parties < 3:
        raise ValueError(
            f"two trees over {parties} parties: the dominator would learn its only collaborator's values; at least 3 "
            "parties are needed"
        )
    if not 0 <= dominator < parties:
        raise ValueError(f"dominator {dominator} of {parties} parties")
    others = [party for party in range(parties) if party != dominator]
    if parties == 3:
        first, second = _make_tree(dominator, others, [0, 0]), _make_tree(dominator, others, [0, 1])
    else:
        above = [(place - 1) // 2 for place in range(1, parties)]
        # the places 1 to s of a heap have children; a shift by s puts leaves of the first tree there in the second
        shift = (parties - 2) // 2
        first = _make_tree(dominator, others, above)
        second = _make_tree(dominator, others[shift:] + others[:shift], above)
    # with two children at most in each tree, the dominator can take the masks off equal subtrees only
    received, masks = ({tree.subtree(child) for child in tree.children(dominator)} for tree in (first, second))
    if received & masks or any(first.children(party) and second.children(party) for party in others):
        raise TreeError(f"a party could unmask others in the trees over {parties} parties for dominator {dominator}")
    return first, second


def _make_tree(root: int, others: list[int], above: Collection[int]) -> Tree:
    """Return the tree whose place 0 is ``root`` and place k + 1 is ``others[k]``, under the place ``above[k]``."""
    places = [root, *others]
    parent = [-1] * len(places)
    for party, place in zip(others, above, strict=True):
        parent[party] = places[place]
    return Tree(root, tuple(parent))
