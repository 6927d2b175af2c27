"""Bins of scores: edges that adapt to the scores at any scale, and bounds of the error of metrics from counts per bin.

Each score becomes a code: its float32 bits as an integer, in the order of the scores. Edges are codes, so a bin can be
as narrow as one number. The first bins are the same for every client, 16 for each power of 2 between 2^-24 and 2^24.
If their counts leave the AUC too uncertain, refined bins follow, which cut the histogram into equal shares (J. I. Munro
and M. S. Paterson, "Selection and sorting with limited storage", Theoretical Computer Science 12, 1980).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float64, Int, Int32, Int64
from numpy.typing import ArrayLike

# the accepted errors of AUC and of average precision
TOLERANCES = (1e-3, 4e-3)
# A bin with a greater share of the rows keeps its edges, so a score of many rows gets a separate bin.
_HEAVY = 2 * TOLERANCES[0]


def codes(scores: ArrayLike) -> Int32[np.ndarray, "n"]:
    """Return the integer codes of (n,) scores, in the order of the scores in float32; 0 and -0 have the same code.

    Raises:
        ValueError: A score is not finite as float32.
    """
    with np.errstate(over="ignore"):
        score = np.asarray(scores, dtype=np.float32)
    if not np.isfinite(score).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(score))} of {score.size} scores are not finite")
    bits = np.ascontiguousarray(score).view(np.int32)
    return np.where(bits < 0, np.iinfo(np.int32).min - bits, bits)


def scores_of(code: Int[np.ndarray, "n"]) -> Float64[np.ndarray, "n"]:
    """Return the scores of codes."""
    size = np.abs(code).astype(np.int32).view(np.float32).astype(np.float64)
    scores: np.ndarray = np.where(code < 0, -size, size)
    return scores


_TOP = int(codes([np.finfo(np.float32).max])[0])


def _both_signs(positive: Float64[np.ndarray, "scores"]) -> Int64[np.ndarray, "2*scores+1"]:
    code = codes(positive).astype(np.int64)
    return np.concatenate((-code[::-1], [0], code))


# Powers of 2 and 0, the threshold of accuracy, are always edges, so the scale and the sign of each score stay known.
_ALWAYS = _both_signs(2.0 ** np.arange(-24, 128))
_FIRST = _both_signs(
    np.concatenate(
        (
            [2.0**-149],
            2.0 ** np.arange(-126, -24),
            (2.0 ** np.arange(-24, 24)[:, None] * (1 + np.arange(16) / 16)).ravel(),
            2.0 ** np.arange(24, 128),
        )
    )
)
RISK_EDGES = _both_signs(
    np.concatenate(
        (np.arange(1, 16) / 256, (2.0 ** np.arange(-4, 5)[:, None] * (1 + np.arange(16) / 16)).ravel(), [32.0])
    )
).astype(np.int32)
"""The edges of fewer bins, for counts by time too: 1/256 apart near 0, then 16 between powers of 2, up to 32."""


def first_edges(bins: int, fixed_edges: Sequence[int] = ()) -> Int32[np.ndarray, "{bins-1}"]:
    """Return the edges of the first bins, which are the same for every client. The score 0 has a separate bin.

    Args:
        bins: The number of bins, at least 2,048.
        fixed_edges: Additional codes that must be edges.
    """
    return _fill(np.union1d(_FIRST, np.asarray(fixed_edges, np.int64)), bins - 1)


def find_bins(code: Int32[np.ndarray, "n"], edges: Int[np.ndarray, "edges"]) -> Int64[np.ndarray, "n"]:
    """Return the bin of each code, counted from 0.

    Args:
        code: The result of `codes`.
        edges: The edges between the bins, ascending. A bin includes its lower edge.
    """
    return np.searchsorted(edges, code, side="right")


def centres(edges: Int[np.ndarray, "edges"]) -> Float64[np.ndarray, "edges+1"]:
    """Return the score of the middle code of each bin. Bins between equal edges are always empty."""
    ends = _ends(edges)
    return scores_of(np.maximum((ends[:-1] + ends[1:] - 1) // 2, ends[:-1]).clip(-_TOP, _TOP))


def floors(edges: Int[np.ndarray, "edges"]) -> Float64[np.ndarray, "edges+1"]:
    """Return the smallest score of each bin: the score of its lower edge."""
    return scores_of(_ends(edges)[:-1])


def find_wide_bins(edges: Int[np.ndarray, "edges"]) -> Bool[np.ndarray, "edges+1"]:
    """Return whether each bin contains more than one code, so its rows may have different scores."""
    wide: np.ndarray = np.diff(_ends(edges)) > 1
    return wide


def bounds(edges: Int[np.ndarray, "edges"], negatives: ArrayLike, positives: ArrayLike) -> tuple[float, float]:
    """Bound the error of AUC and of average precision of binned scores, compared with the exact scores.

    The bound for AUC is half the share of pairs of a positive and a negative in a shared bin of more than one code. For
    average precision it is the sum over these bins of the share of positives times the range of possible precision.

    Args:
        edges: The edges, as codes.
        negatives: (edges + 1,) counts. Both bounds are 0 if a class is missing.
        positives: (edges + 1,) counts.
    """
    false, true = np.asarray(negatives, np.int64), np.asarray(positives, np.int64)
    if not false.any() or not true.any():
        return 0.0, 0.0
    unequal = find_wide_bins(edges)
    auc = float(_shares(false) @ (_shares(true) * unequal)) / 2
    hits, ranked = _from_above(true), _from_above(false + true)
    before = ranked - false - true
    highest = hits / np.maximum(before - (hits - true) + hits, 1)
    lowest = (hits - true + 1) / (before + false + 1)
    return auc, float(_shares(true) @ ((highest - lowest) * unequal * (true > 0)))


def refine(
    edges: Int[np.ndarray, "edges"], negatives: ArrayLike, positives: ArrayLike, fixed_edges: Sequence[int] = ()
) -> Int32[np.ndarray, "edges"]:
    """Return new edges that cut the rows into equal shares.

    Each class has the weight 1/2. The scores in a bin count as uniformly distributed.

    Args:
        edges: The edges of the counted bins, as codes.
        negatives: (edges + 1,) counts.
        positives: (edges + 1,) counts.
        fixed_edges: Codes that must be edges.
    """
    ends = _ends(edges)
    shares = (_shares(negatives) + _shares(positives)) / 2
    heavy = shares > _HEAVY
    fixed = np.unique(np.concatenate((_ALWAYS, np.asarray(fixed_edges, np.int64), ends[:-1][heavy], ends[1:][heavy])))
    # a heavy bin of a single number has its edges and needs no cut
    reached = np.append(0.0, np.cumsum(shares * ~(heavy & (np.diff(ends) == 1))))
    room = len(edges) - len(fixed)
    cuts = np.interp(np.linspace(0, reached[-1], room + 2)[1:-1], reached, ends)
    return _fill(np.union1d(fixed, cuts.astype(np.int64)), len(edges))


def _fill(edges: Int64[np.ndarray, "some"], count: int) -> Int32[np.ndarray, "{count}"]:
    """Return ``count`` edges: the last edge is repeated as needed, and the bins between its copies are empty."""
    inside = edges[(edges > -_TOP) & (edges <= _TOP)]
    return np.pad(inside, (0, count - len(inside)), mode="edge").astype(np.int32)


def _ends(edges: Int[np.ndarray, "edges"]) -> Int64[np.ndarray, "edges+2"]:
    return np.concatenate(([-_TOP], edges.astype(np.int64), [_TOP + 1]))


def _from_above(counts: Int64[np.ndarray, "bins"]) -> Int64[np.ndarray, "bins"]:
    """Return the count of each bin and all bins above it."""
    total: np.ndarray = np.cumsum(counts[::-1])[::-1]
    return total


def _shares(counts: ArrayLike) -> Float64[np.ndarray, "bins"]:
    count = np.asarray(counts, dtype=np.float64)
    shares: np.ndarray = count / max(count.sum(), 1.0)
    return shares
