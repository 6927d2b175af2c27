"""Which parties' partial sums vary over the rows.

A masked sum of one party's varying partials and of constants shows that party's bare partials. The parties therefore
tell each other, over the mesh, two facts about their partials; the server takes no part. The run ends before anything
is summed if partials are shown while fewer parties than needed hide one another's.
"""

from collections.abc import Callable, Mapping
from enum import IntFlag

import numpy as np
from jaxtyping import Float64
from scipy import sparse

from clients.vertical.segment.plan import Holding, Plan
from clients.vertical.transport.frames import PartyError
from problems.vertical.blocks import NO_PENALTY
from problems.vertical.blocks.base import Block, Features, product
from problems.vertical.objectives import Array

FEWEST = 3
"""The fewest parties whose partials must vary. An owner may demand more by ``fewest-parties``."""
# A party hides others only if no value, with all values closer to it than this share of the range, has more of the rows
_MOST_ALIKE, _NEAR = 0.95, 1e-4
# Differences below are rounding errors of partials, and too small in columns to train a weight
_ROUNDING, _SMALL = 2.0**-40, 1e-6
# Columns that are compared one by one
_MOST_COLUMNS = 4096
# With fewer rows, the weights alone decide: a single row cannot vary
_FEW_ROWS = 20


class Flags(IntFlag):
    """What a party's partials are to the sums that they are in."""

    NONE = 0
    SHOWN = 1
    """They differ between rows, so a sum shows them if nothing hides them."""
    HIDES = 2
    """They differ enough to hide the partials of another party."""


MASKS_HIDE = "masks hide them only if they vary at"
"""Part of every error about silent parties."""
BOTH = Flags.SHOWN | Flags.HIDES


def flags_of_values(values: Float64[np.ndarray, "n"], least: float = _ROUNDING) -> Flags:
    """Compare one number of every row.

    Args:
        values: The numbers.
        least: The smallest range of numbers that counts as a difference.
    """
    ordered = np.sort(values)
    spread = float(ordered[-1] - ordered[0]) if len(ordered) else 0.0
    if not spread > least:
        return Flags.NONE
    near = max(_NEAR * spread, _SMALL * float(np.abs(ordered[[0, -1]]).max()), least)
    alike = int((np.searchsorted(ordered, ordered + near, side="right") - np.arange(len(ordered))).max())
    return BOTH if alike <= _MOST_ALIKE * len(ordered) else Flags.SHOWN


def flags_of_columns(features: Features) -> Flags:
    """Compare the rows of some columns: together, by a fixed random weight for each, then column by column.

    Args:
        features: (n, d), dense or sparse.
    """
    rows, columns = features.shape
    if not rows or not columns:
        return Flags.NONE
    weights: Array = 0.5 + np.random.default_rng(0).random(columns)
    together = flags_of_values(product(features, weights), _SMALL)
    if together == BOTH:
        return together
    by_column = sparse.csc_array(features) if sparse.issparse(features) else np.asarray(features)
    for column in range(min(columns, _MOST_COLUMNS)):
        values = by_column[:, [column]]
        dense: Array = values.toarray() if sparse.issparse(values) else values
        together |= flags_of_values(dense[:, 0], _SMALL)
        if together == BOTH:
            break
    return together


def flags_of_party(me: int, plan: Plan, holding: Holding, block: Block) -> tuple[Flags, Flags]:
    """Return a party's flags at the start of a segment.

    Args:
        me: The party's index.
        plan: The segment's plan.
        holding: The party's data.
        block: Its block, with the weights that the segment starts from.

    Returns:
        The flags of its partials now, and of its partials once its block has been updated.
    """
    partials = block.partials().reshape(-1, plan.width)
    if plan.score:
        now = Flags.SHOWN if block.weights.any() else Flags.NONE
        varied = len(partials) < _FEW_ROWS or bool((np.ptp(partials, axis=0) > _ROUNDING).any())
        return (BOTH, BOTH) if now and varied else (now, now)
    now = Flags.NONE
    for place in range(plan.width):
        now |= flags_of_values(partials[:, place])
    if not (plan.epochs and plan.moves(me)):
        return now, now
    later = flags_of_columns(holding.features)
    if plan.evaluate and holding.test_features is not None and plan.test_rows >= _FEW_ROWS:
        later &= flags_of_columns(holding.test_features) | Flags.SHOWN
    return now, now | later


def check_start(plan: Plan, fewest: int, facts: Mapping[int, bytes]) -> bool:
    """Check the flags that all parties sent at the start of a segment.

    Args:
        plan: The segment's plan.
        fewest: The number of parties that must hide one another's partials.
        facts: Two bytes of each party, see `flags_of_party`.

    Returns:
        Whether no party's partials vary now.

    Raises:
        PartyError: A party sent something else, or too few parties hide partials.
    """
    for party, body in facts.items():
        if len(body) != 2 or max(body) > BOTH:
            raise PartyError(party, f"its flags are {body[:8].hex()}, not two bytes of at most {int(BOTH)}")
    for moment in (0, 1) if plan.epochs else (0,):
        check_flags(plan, fewest, {party: Flags(body[moment]) for party, body in facts.items()})
    return not any(Flags.SHOWN in Flags(body[0]) for body in facts.values())


class Watch:
    """The flags of a block whose weights may become zero during a segment.

    The flags are those of the columns that have weights, and are computed again only if other columns have.

    Args:
        holding: The party's data.
        block: Its block.
    """

    def __init__(self, holding: Holding, block: Block) -> None:
        self._features, self._block = holding.features, block
        self._support = b""
        self._flags = Flags.NONE

    def __call__(self) -> Flags:
        chosen = self._block.weights != 0
        support = np.packbits(chosen).tobytes()
        if support != self._support:
            self._support, self._flags = support, flags_of_columns(self._features[:, np.flatnonzero(chosen)])
        return self._flags


Look = Callable[[], Flags]


def check_flags(plan: Plan, fewest: int, flags: Mapping[int, Flags]) -> None:
    """Check that no party's partials are shown while too few hide them.

    Without SHOWN at any party there is nothing to hide. Nor is there if the only party with it is the only one that
    sees sums: with ``update_passive`` every party computes sums from the thetas, otherwise only the active ones do.

    Args:
        plan: The segment's plan.
        fewest: The number of parties that must hide one another's partials.
        flags: The flags of all parties, by party.

    Raises:
        PartyError: There are fewer; names the first party that hides nothing.
    """
    viewers = set(plan.active) if plan.score or not plan.update_passive else set(range(plan.parties))
    shown = {party for party, flag in flags.items() if Flags.SHOWN in flag}
    if shown and (len(viewers) > 1 or shown != viewers):
        _check_count(plan, fewest, flags)


def check_collaborators(plan: Plan, fewest: int, flags: Mapping[int, Flags]) -> None:
    """Check a sum before anything of it is sent, as `check_flags`.

    Args:
        plan: The segment's plan.
        fewest: The number of parties that must hide one another's partials, the dominator included.
        flags: The flags of all parties except the dominator.

    Raises:
        PartyError: There are fewer; names the first party that hides nothing.
    """
    if any(Flags.SHOWN in flag for flag in flags.values()):
        _check_count(plan, fewest - 1, flags)


def _check_count(plan: Plan, fewest: int, flags: Mapping[int, Flags]) -> None:
    silent = sorted(party for party, flag in flags.items() if Flags.HIDES not in flag)
    if (count := len(flags) - len(silent)) >= fewest:
        return
    if plan.penalty != NO_PENALTY:
        hint = "lower vfb2.penalty-weight"
    elif not plan.update_passive:
        hint = "leave out vfb2.update-passive, or lower vfb2.active-parties to 1"
    else:
        hint = "give these parties columns that vary: check feature-columns, drop-columns and missing-values"
    names = ", ".join(map(str, silent))
    reason = f"its partial sums do not vary over the rows (nor do those of all parties {names})"
    reason = reason if len(silent) > 1 else "its partial sums do not vary over the rows"
    bare = f"they vary at {count} of {len(flags)} parties, and {MASKS_HIDE} {fewest} or more"
    raise PartyError(silent[0] if silent else None, f"{reason}; {bare}: {hint}")
