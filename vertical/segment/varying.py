"""Checks whether the partial sums of enough parties vary over the rows, so masked sums hide them.

If the partials of one party vary and the partials of all other parties are constant, a masked sum reveals that party's
partials. The parties therefore send each other two flags about their partials, without the server. If a sum would
reveal partials, the run ends before the sum is computed.
"""

from collections.abc import Callable, Mapping
from enum import IntFlag

import numpy as np
from jaxtyping import Float64
from scipy import sparse

from vertical.problem.blocks import NO_PENALTY
from vertical.problem.blocks.base import Block, Features, product
from vertical.problem.objectives import Array
from vertical.segment.plan import Holding, SegmentPlan
from vertical.transport.frames import FinalError, protocol_error

MIN_PARTIES = 3
"""The minimum number of parties whose partials must vary. An owner's ``fewest-parties`` may require more."""
# A party's partials hide other parties' partials only if no value occurs in more than this share of the rows. Values
# whose distance is at most the second share of the range count as equal.
_MAX_ALIKE, _NEAR = 0.95, 1e-4
# Smaller differences are rounding errors (in partials), or too small to train a weight (in columns).
_ROUNDING, _SMALL = 2.0**-40, 1e-6
# maximum number of columns that are compared one by one
_MAX_COLUMNS = 4096
# approximate maximum number of rows that are compared after an update
_SAMPLE = 4096
# With fewer rows only the weights determine the flags, since a single row cannot vary.
_FEW_ROWS = 20


class Flags(IntFlag):
    """The two flags of a party's partials."""

    NONE = 0
    SHOWN = 1
    """The partials differ between rows, so a sum reveals them if no other party's partials hide them."""
    HIDES = 2
    """The partials differ enough to hide another party's partials."""


BOTH = Flags.SHOWN | Flags.HIDES


def flags_of_values(values: Float64[np.ndarray, "n"], min_range: float = _ROUNDING) -> Flags:
    """Return the flags of a value per row.

    Args:
        values: The values.
        min_range: The minimum difference of two values that counts as a difference.
    """
    ordered = np.sort(values)
    spread = float(ordered[-1] - ordered[0]) if len(ordered) else 0.0
    if not spread > min_range:
        return Flags.NONE
    near = max(_NEAR * spread, _SMALL * float(np.abs(ordered[[0, -1]]).max()), min_range)
    alike = int((np.searchsorted(ordered, ordered + near, side="right") - np.arange(len(ordered))).max())
    return BOTH if alike <= _MAX_ALIKE * len(ordered) else Flags.SHOWN


def flags_of_columns(features: Features) -> Flags:
    """Return the flags that partials of these columns can have after training.

    The function first compares sums of the columns with fixed random weights, then single columns.

    Args:
        features: The (n, d) features, dense or sparse.
    """
    rows, columns = features.shape
    if not rows or not columns:
        return Flags.NONE
    weights = np.random.default_rng(0).uniform(0.5, 1.5, (columns,))
    together = flags_of_values(product(features, weights), _SMALL)
    if together == BOTH:
        return together
    by_column = sparse.csc_array(features) if sparse.issparse(features) else np.asarray(features)
    for column in range(min(columns, _MAX_COLUMNS)):
        values = by_column[:, [column]]
        dense: Array = values.toarray() if sparse.issparse(values) else values
        together |= flags_of_values(dense[:, 0], _SMALL)
        if together == BOTH:
            break
    return together


def flags_of_party(me: int, plan: SegmentPlan, holding: Holding, block: Block) -> bytes:
    """Return a party's flags at the start of a segment.

    Args:
        me: The party's index.
        plan: The segment's plan.
        holding: The party's data.
        block: The party's block, with the segment's initial weights.

    Returns:
        For each of a row's partials, a byte with its present flags. Then for each, a byte with its flags after an
        update of the block.
    """
    partials = block.partials().reshape(-1, plan.width)
    if plan.score:
        now = [_flags_of_scores(values, block) for values in partials.T]
        return bytes(now + now)
    now = [flags_of_values(values) for values in partials.T]
    learns = plan.epochs > 0 and plan.moves(me)
    moved = flags_of_columns(holding.features) if learns else Flags.NONE
    later = [flag | moved for flag in now]
    if plan.evaluate and holding.test_features is not None and plan.test_rows >= _FEW_ROWS:
        tested = block.predict(holding.test_features).reshape(-1, plan.width)
        now_tested = [flags_of_values(values) for values in tested.T]
        columns = flags_of_columns(holding.test_features) if learns else Flags.NONE
        later = [_both(first, second | columns) for first, second in zip(later, now_tested, strict=True)]
        now = [_both(first, second) for first, second in zip(now, now_tested, strict=True)]
    return bytes(now + later)


def _both(first: Flags, second: Flags) -> Flags:
    """Return the flags of training and test rows together: shown if either is shown, hiding if both hide."""
    return (first | second) & Flags.SHOWN | (first & second & Flags.HIDES)


def _flags_of_scores(values: Float64[np.ndarray, "n"], block: Block) -> Flags:
    """Return the flags of partials in a segment that scores rows, which may have a single row."""
    if not block.weights.any():
        return Flags.NONE
    return BOTH if len(values) < _FEW_ROWS or float(np.ptp(values)) > _ROUNDING else Flags.SHOWN


def check_start(plan: SegmentPlan, min_parties: int, flag_bytes: Mapping[int, bytes]) -> bool:
    """Check the flags that all parties sent at the start of a segment.

    Args:
        plan: The segment's plan.
        min_parties: The number of parties that must hide each other's partials.
        flag_bytes: The result of `flags_of_party` of each party.

    Returns:
        Whether no party's partials vary now.

    Raises:
        PartyError: A party sent malformed bytes.
        FinalError: Too few parties hide partials.
    """
    width = plan.width
    for party, body in flag_bytes.items():
        if len(body) != 2 * width or max(body) > BOTH:
            raise protocol_error(party, f"its flags are {body[:8].hex()}, not {2 * width} bytes of at most {int(BOTH)}")
    for position in range(2 * width if plan.epochs else width):
        check_flags(plan, min_parties, {party: Flags(body[position]) for party, body in flag_bytes.items()})
    return not any(Flags.SHOWN in Flags(flag) for body in flag_bytes.values() for flag in body[:width])


class VariationWatch:
    """A function that returns the present flags of a linear block, whose weights a penalty can make zero.

    The flags depend on the columns with nonzero weights. If these columns have changed, the flags are computed again,
    from a sample of the rows.

    Args:
        holding: The party's data.
        block: The party's block.
    """

    def __init__(self, holding: Holding, block: Block) -> None:
        features = holding.features
        if sparse.issparse(features):
            maxima, minima = features.max(axis=0).toarray(), features.min(axis=0).toarray()
        else:
            maxima, minima = np.max(features, axis=0), np.min(features, axis=0)
        self._differ = np.ravel(maxima - minima) > _SMALL
        self._sample, self._block = features[:: -(-features.shape[0] // _SAMPLE)], block
        self._support = b""
        self._flags = Flags.NONE

    def __call__(self) -> Flags:
        chosen = (self._block.weights != 0) & self._differ
        support = np.packbits(chosen).tobytes()
        if support != self._support:
            shown = Flags.SHOWN if chosen.any() else Flags.NONE
            self._support, self._flags = support, shown | flags_of_columns(self._sample[:, np.flatnonzero(chosen)])
        return self._flags


Look = Callable[[], Flags]


def check_flags(plan: SegmentPlan, min_parties: int, flags: Mapping[int, Flags]) -> None:
    """Check that a sum reveals no party's partials.

    There is nothing to hide if no party has the flag SHOWN, or if the only party with SHOWN is the only party that can
    compute sums. With ``update_passive`` every party can compute sums from the thetas, otherwise only active parties.

    Args:
        plan: The segment's plan.
        min_parties: The number of parties that must hide each other's partials.
        flags: The flags of all parties, by party.

    Raises:
        FinalError: Too few parties hide partials. The error names the first party that hides nothing.
    """
    viewers = set(plan.active) if plan.score or not plan.update_passive else set(range(plan.parties))
    shown = {party for party, flag in flags.items() if Flags.SHOWN in flag}
    if shown and (len(viewers) > 1 or shown != viewers):
        _check_count(plan, min_parties, flags)


def check_collaborators(plan: SegmentPlan, min_parties: int, flags: Mapping[int, Flags]) -> None:
    """Check that a sum reveals no partials of the collaborators, before any party contributes to the sum.

    Args:
        plan: The segment's plan.
        min_parties: The number of parties that must hide each other's partials, including the dominator.
        flags: The flags of all parties except the dominator.

    Raises:
        FinalError: Too few parties hide partials. The error names the first party that hides nothing.
    """
    if any(Flags.SHOWN in flag for flag in flags.values()):
        _check_count(plan, min_parties - 1, flags)


def _check_count(plan: SegmentPlan, min_parties: int, flags: Mapping[int, Flags]) -> None:
    silent = sorted(party for party, flag in flags.items() if Flags.HIDES not in flag)
    if (count := len(flags) - len(silent)) >= min_parties:
        return
    if plan.penalty != NO_PENALTY:
        hint = "lower vfb2.penalty-weight, or add parties"
    elif not plan.update_passive:
        hint = "remove vfb2.update-passive, or lower vfb2.active-parties to 1"
    else:
        hint = "add varying columns at these parties: check feature-columns, drop-columns and missing-values"
    names = ", ".join(map(str, silent))
    reason = f"its partial sums do not vary over the rows (all such parties: {names})"
    reason = reason if len(silent) > 1 else "its partial sums do not vary over the rows"
    parties = f"{len(flags)} parties" if len(flags) == plan.parties else f"the {len(flags)} parties that send"
    bare = f"they vary at {count} of {parties}, and masks hide them only if they vary at {min_parties} or more"
    raise FinalError(silent[0] if silent else None, f"{reason}; {bare}: {hint}")
