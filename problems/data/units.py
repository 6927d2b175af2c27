"""Detection of sites whose numbers in a column may have another unit, such as pounds instead of kilograms.

The numbers of such a site are far from the numbers of all other sites. Two signs count: a centre that is many spreads
away, or a centre and a spread that differ from the other sites' by the same factor.
"""

from collections.abc import Sequence
from math import log

import numpy as np
from jaxtyping import Bool, Float64, Int64

from problems.data.agreement import Statistics, needs
from problems.data.preprocessing import MARKS, Feature, Preprocessing

FAR = 30
"""If the deviation is more than 30 times the range of nearly all cells, a few far cells cause the deviation."""
_SPREADS, _OFFSET = 3.0, 8.0
"""Distances of centres, in spreads: the usual sites are within the first; a site beyond the second is strange."""
_RATIO, _LARGE_RATIO = 1.8, 5.0
"""The smallest factor between two units; the second if the spread is more than `_MAX_VARIATION` of the centre."""
_ALIKE = 1.5
"""The greatest ratio between the factor of the centres and the factor of the spreads."""
_MAX_VARIATION = 0.6


def find_units(
    features: Sequence[Feature],
    counts: Int64[np.ndarray, "sites c"],
    centres: Float64[np.ndarray, "sites c"],
    spreads: Float64[np.ndarray, "sites c"],
    *,
    log_scale: bool = False,
) -> list[tuple[int, str]]:
    """Return the sites whose numbers in a column are far from the numbers of all other sites.

    Args:
        features: The features of the c numbers.
        counts: The number of cells of each site and number; sites without cells are left out.
        centres: The means or medians.
        spreads: The deviations.
        log_scale: Whether centres and spreads were computed from the cells' logarithms.

    Returns:
        Pairs of a site's index and a text with the column and its figures.
    """
    strange_sites = list[tuple[int, str]]()
    for index, feature in enumerate(features):
        sites = np.flatnonzero(counts[:, index])
        centre, spread = centres[sites, index], spreads[sites, index]
        unit = log(2) if log_scale else 1.0
        if feature.kind != "number" or len(sites) < 2 or _are_flags(centre / unit, spread / unit):
            continue
        # two sites have no majority: the site with the smaller spread is the reference
        middle, usual = np.median(centre), np.median(spread)
        if len(sites) == 2:
            reference = int(np.argmin(spread))
            middle, usual = centre[reference], spread.max() if log_scale else spread[reference]
        strange = _is_far(centre, spread, middle, usual, log_scale=log_scale)
        usual_sites = ~strange
        close = np.abs(centre[usual_sites] - middle) <= _SPREADS * max(usual, spread[usual_sites].max(initial=0.0))
        # strange sites are known only if the usual sites are at least half of the sites, and agree with each other
        if 2 * strange.sum() > len(sites) or not close.all():
            continue
        usual_centres = centre[usual_sites]
        nearest = np.abs(centre[:, None] - usual_centres).min(axis=1)
        strange &= nearest > 2 / 3 * np.abs(centre - middle)
        of = "log(1 + x)" if log_scale else "cells"
        for at in np.flatnonzero(strange):
            figures = f"centre {centre[at]:.3g}, spread {spread[at]:.3g} of {of}"
            elsewhere = (
                f"centres {usual_centres.min():.3g} to {usual_centres.max():.3g}, spread {usual:.3g} at the other sites"
            )
            strange_sites.append((int(sites[at]), f"{feature.column!r} ({figures}; {elsewhere})"))
    return strange_sites


def _are_flags(means: Float64[np.ndarray, "s"], deviations: Float64[np.ndarray, "s"]) -> bool:
    """Return whether a column may contain only 0 and 1: its mean may then differ much between sites."""
    inside = (means >= 0) & (means <= 1)
    return bool(inside.all() and np.allclose(deviations**2, means * (1 - means), rtol=1e-3, atol=1e-9))


def _is_far(
    centre: Float64[np.ndarray, "s"], spread: Float64[np.ndarray, "s"], middle: float, usual: float, *, log_scale: bool
) -> Bool[np.ndarray, "s"]:
    """Find the sites that are many spreads away, or whose centre and spread both differ by a similar factor."""
    offset = np.abs(centre - middle)
    if usual == 0:
        return np.zeros(len(centre), dtype=bool)
    far: np.ndarray = offset > _OFFSET * np.maximum(usual, spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        wider = np.log(spread / usual)
        if log_scale:
            far |= (offset > log(_RATIO)) & (offset > _SPREADS * usual) & (np.abs(wider) < log(_ALIKE))
            return far
        larger = np.log(centre / middle)
        alike = np.abs(larger - wider) < log(_ALIKE)
        factor = np.abs(larger)
    steady = usual < _MAX_VARIATION * abs(middle)
    strange: np.ndarray = far | (alike & (factor > log(_RATIO if steady else _LARGE_RATIO)))
    return strange


def find_strange_sites(preprocessing: Preprocessing, sites: Sequence[Statistics]) -> list[tuple[int, str]]:
    """Return the sites that may use other units or have a few extreme cells, according to their statistics.

    Args:
        preprocessing: The preprocessing of all sites, not yet fitted.
        sites: The statistics of each site.
    """
    _, has_deviations, has_quantiles = needs(preprocessing)
    if len(sites) < 2 or not (has_deviations or has_quantiles):
        return []
    counts = np.stack([site.counts for site in sites])
    marks = [feature.kind in MARKS for feature in preprocessing.inputs]
    borders = [site.sketches(preprocessing) for site in sites] if has_quantiles else []
    log_scale = preprocessing.scale == "log"
    if has_deviations:
        centres = np.stack([site.means for site in sites if site.means is not None])
        spreads = np.sqrt(np.stack([site.variances for site in sites if site.variances is not None]))
    else:
        counts = np.array([[len(part) for part in parts] for parts in borders])
        quartiles = np.array(
            [[np.quantile(part if len(part) else [0.0], [0.25, 0.5, 0.75]) for part in parts] for parts in borders]
        )
        centres, spreads = quartiles[..., 1], (quartiles[..., 2] - quartiles[..., 0]) / 1.349
    with np.errstate(all="ignore"):  # a site may send any numbers
        strange = find_units(preprocessing.inputs, np.where(marks, 0, counts), centres, spreads, log_scale=log_scale)
    if has_deviations and has_quantiles and not log_scale:
        for site, parts in enumerate(borders):
            for index, part in enumerate(parts):
                width = np.ptp(part) if len(part) > 1 else 0.0
                if width > 0 and spreads[site, index] > FAR * width:
                    figures = f"deviation {spreads[site, index]:.3g}, most cells within {width:.3g}"
                    strange.append((site, f"{preprocessing.inputs[index].column!r} ({figures})"))
    return strange
