"""Table one: the facts about each column, over all sites and by site, from the sums of `methods.table_one`."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from methods.cohort import Columns
from methods.table_one import Part, Pool, merge_bins
from payloads.description import LEVELS
from problems.data.borders import write_borders
from problems.data.monotone import merge_borders
from problems.data.quantiles import FEWEST_ROWS, GROUPS, has_tails
from problems.data.quantiles import LEVELS as ALL_LEVELS
from problems.data.units import find_units

BINS = 10
"""The number of bins of a number for its information value."""
_SMALLEST_BIN = 4  # see `_count_bins`
QUANTILE_NAMES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)
_MISSING, _UNLISTED, _HIDDEN = "missing", "other texts", "suppressed"

Facts = dict[str, Any]


def describe(pool: Pool, sites: Sequence[str]) -> Facts:
    """Return table one as an object of numbers, texts, lists and dictionaries.

    Args:
        pool: The sums of all exchanges.
        sites: The name of each site.
    """
    parts = [] if pool.summed else pool.parts
    whole, shown = pool.all, [bool(part.rows.sum()) for part in parts]
    withheld = int(whole.totals["withheld"][0])
    facts: Facts = {
        "num_sites": len(sites),
        "sites": [{"site": name, **_outcome(part)} if show else {"site": name, "rows": None}
                  for name, part, show in zip(sites, parts, shown, strict=False)],
        "sites_that_show_nothing": withheld,
        "sites_that_hide_the_outcome": int(whole.totals["unclassed"][0]),
        **_outcome(whole),
    }  # fmt: skip
    units = _find_units(pool, parts)
    facts["sum_of_least_cells"] = pool.grouped
    facts["rows_for_information"] = 2 * _SMALLEST_BIN * pool.grouped if _count_bins(pool, whole) < 2 else None
    columns = [_number(pool, whole, parts, index, units) for index in range(len(pool.columns.numbers))]
    columns += [_text(pool, whole, parts, name) for name in pool.columns.texts]
    order = {name: place for place, name in enumerate(dict.fromkeys(one.column for one in pool.columns.inputs))}
    columns.sort(key=lambda column: order[column["column"]])
    monotone = {one["column"]: one["monotone_borders"] for one in columns if one["kind"] in ("number", "date")}
    return {**facts, "columns": columns, "monotone_borders": write_borders(monotone)}


def _outcome(part: Part) -> Facts:
    negatives, positives, unknown = part.rows.tolist()
    known = negatives + positives
    return {
        "rows": known + unknown,
        "positives": positives if known else None,
        "negatives": negatives if known else None,
        "prevalence": positives / known if known else None,
    }


def _count_bins(pool: Pool, whole: Part) -> int:
    """Return the number of bins of a number for its information value; below 2 if the value must be left out.

    If sites count groups of rows, the counts of a bin are wrong by about half of the sum of all least cells. A bin then
    has on average at least `_SMALLEST_BIN` times this sum of rows of the smaller class. Errors add about 0.02 to the
    value.
    """
    return min(BINS, int(whole.rows[:2].min()) // (_SMALLEST_BIN * pool.grouped)) if pool.grouped else BINS


def _number(pool: Pool, whole: Part, parts: Sequence[Part], index: int, units: dict[int, list[int]]) -> Facts:
    """Return the facts about the number of an index among the numbers."""
    feature = pool.columns.inputs[pool.columns.numbers[index]]
    entry = _of_number(whole, index)
    quantiles = pool.levels(index, LEVELS)
    entry |= {name: _finite(value) for name, value in zip(QUANTILE_NAMES, quantiles, strict=True)}
    by_site = [_of_number(part, index) if part.rows.sum() else None for part in parts]
    for place, reply in enumerate(pool.quantiles):
        if (site := by_site[place]) is not None:
            known = bool(reply.known[index])
            site |= {
                name: float(value) if known else None
                for name, value in zip(QUANTILE_NAMES, reply.values[index], strict=True)
            }
    differences = [_difference_of_number(whole, part, index) for part in parts]
    bins = _count_bins(pool, whole)
    borders, counts = merge_bins(pool.borders[index], pool.counts[index], bins)
    gaps = whole.totals["gaps"].reshape(-1, 3)[index]
    bounds = [*pairwise([None, *map(float, borders), None])]
    names = [_name_bin(low, high) for low, high in bounds]
    # cells that a site hides as missing or present would falsify a small bin
    fewest = _SMALLEST_BIN * pool.grouped if whole.totals["few_gaps"][index] else 0
    if gaps.any() and gaps[:2].min() >= fewest:
        cells, names = np.concatenate([counts, gaps[:, None]], axis=1), [*names, _MISSING]
    else:
        cells = counts
    merged = pool.deviation * (pool.counts.shape[2] / counts.shape[1]) ** 0.5
    information = find_information(cells[0], cells[1], names, merged, is_known=bins > 1)
    for row, (low, high) in zip(information["bins"], [*bounds, (None, None)], strict=False):
        row |= {"low": low, "high": high}
    return {
        "column": feature.column,
        "kind": "number" if feature.kind == "empty" else feature.kind,
        "all": entry,
        "by_site": by_site,
        "differences": differences,
        **_largest(differences),
        **information,
        "information_rounded": pool.grouped > 0,
        "monotone_borders": _find_monotone_borders(borders, counts),
        "warnings": _warnings(pool, whole, index, units.get(index, [])),
    }


def _find_monotone_borders(borders: Float64[np.ndarray, "b"], counts: Int64[np.ndarray, "3 bins"]) -> list[float]:
    """Return borders for training between which the weight of evidence is monotone, with `FEWEST_ROWS` of each class.

    A bin of training ends with its upper border, and a bin of a description before it.
    """
    kept = merge_borders(borders.tolist(), counts[0], counts[1], FEWEST_ROWS)
    return [math.nextafter(border, -math.inf) for border in kept]


def _name_bin(low: float | None, high: float | None) -> str:
    if low is None:
        return "all" if high is None else f"< {high:g}"
    return f">= {low:g}" if high is None else f"{low:g} to < {high:g}"


def _of_number(part: Part, index: int) -> Facts:
    gaps = part.totals["gaps"].reshape(-1, 3)[index]
    moments = part.moments(index)
    return {
        "cells": int(part.totals["cells"][index]),
        "missing": int(gaps.sum()),
        "missing_hidden": bool(part.totals["few_gaps"][index]),
        "mean": moments and moments[0],
        "deviation": moments and moments[1],
        "rare_values_changed": bool(part.totals["moved"][index]),
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _difference_of_number(whole: Part, part: Part, index: int) -> float | None:
    """Return the standardised difference of a site's mean from the mean of all other sites."""
    mine, others = part.moments(index), whole.without(part).moments(index)
    if mine is None or others is None:
        return None
    return _standardise(mine[0] - others[0], (mine[1] ** 2 + others[1] ** 2) / 2)


def _standardise(difference: float, variance: float) -> float | None:
    if variance <= 0:
        return 0.0 if difference == 0 else None
    return difference / math.sqrt(variance)


def _largest(differences: Sequence[float | None]) -> Facts:
    known = {place: value for place, value in enumerate(differences) if value is not None}
    if len(differences) < 2 or not known:
        return {"largest_difference": None, "largest_difference_site": None}
    place = max(known, key=lambda site: abs(known[site]))
    return {"largest_difference": known[place], "largest_difference_site": place}


def _text(pool: Pool, whole: Part, parts: Sequence[Part], name: str) -> Facts:
    """Return the facts about a text column."""
    columns = pool.columns
    by_site = [_of_text(columns, part, name) if part.rows.sum() else None for part in parts]
    differences = [_difference_of_text(columns, whole, part, name) for part in parts]
    marks = whole.totals["marks"].reshape(-1, 3)[columns.parts[name]]
    pooled = whole.totals["pooled"].reshape(-1, 3)[list(columns.texts).index(name)]
    names = [*_level_names(columns, name), _MISSING, _UNLISTED]
    few = whole.totals["few_marks"][columns.parts[name]] > 0
    # a level of which too many rows may be hidden forms a bin with the hidden rows, so the counts are right
    unsure = few & (marks < _SMALLEST_BIN * pooled)[:, :2].any(axis=1)
    cells = np.concatenate([np.where(unsure[:, None], 0, marks), pooled[None] + marks[unsure].sum(axis=0)])
    names.append(", ".join([*(text for text, one in zip(names, unsure, strict=True) if one), _HIDDEN]))
    filled = cells.sum(axis=1) > 0
    information = find_information(
        cells[filled, 0],
        cells[filled, 1],
        [text for text, one in zip(names, filled, strict=True) if one],
        pool.deviation,
        is_known=filled.sum() > 1 or not few.any(),
    )
    return {
        "column": name,
        "kind": "category",
        "all": _of_text(columns, whole, name),
        "by_site": by_site,
        "differences": differences,
        **_largest(differences),
        **information,
        "information_rounded": bool(few.any()),
        "warnings": [],
    }


def _level_names(columns: Columns, name: str) -> list[str]:
    return [columns.inputs[index].value for index in columns.texts[name]]


def _of_text(columns: Columns, part: Part, name: str) -> Facts:
    marks = part.totals["marks"].reshape(-1, 3)[columns.parts[name]].sum(axis=1).tolist()
    few = part.totals["few_marks"][columns.parts[name]].tolist()
    pooled = int(part.totals["pooled"].reshape(-1, 3)[list(columns.texts).index(name)].sum())
    cells = int(part.rows.sum()) - marks[-2]
    levels = [
        {"level": level, "count": count, "share": count / cells if cells else None, "hidden": bool(hidden)}
        for level, count, hidden in zip(_level_names(columns, name), marks, few, strict=False)
    ]
    return {
        "cells": cells,
        "missing": marks[-2],
        "missing_hidden": bool(few[-2]),
        "levels": levels,
        "other_texts": marks[-1],
        "suppressed": pooled,
    }


def _difference_of_text(columns: Columns, whole: Part, part: Part, name: str) -> float | None:
    """Return the largest standardised difference of a level's share at a site from its share at all other sites."""
    mine, others = (_of_text(columns, one, name) for one in (part, whole.without(part)))
    found = []
    for level, other in zip(mine["levels"], others["levels"], strict=True):
        if level["hidden"] or other["hidden"] or not (mine["cells"] and others["cells"]):
            continue
        shares = level["share"], other["share"]
        found.append(_standardise(shares[0] - shares[1], sum(share * (1 - share) for share in shares) / 2))
    known = [value for value in found if value is not None]
    return max(known, key=abs, default=None)


def find_information(
    negatives: Int64[np.ndarray, "b"],
    positives: Int64[np.ndarray, "b"],
    names: Sequence[str],
    deviation: float = 0.0,
    *,
    is_known: bool = True,
) -> Facts:
    """Return the information value of a column about the outcome, and the weight of evidence of each bin.

    The weight is log(p / q), with the bin's share p of all positives and q of all negatives; the information value is
    the sum of (p - q) log(p / q). If a bin has no positive or no negative, 0.5 is added to both of its counts.

    Args:
        negatives: The number of negatives in each bin.
        positives: The number of positives in each bin.
        names: The names of the bins.
        deviation: The standard deviation of the noise in each count.
        is_known: Whether the counts suffice, although sites hide small counts.

    Returns:
        "information_value", which is None if the counts do not suffice, without both classes, or with a mean count of
        the smaller class below 4 standard deviations; and "bins".
    """
    zeros = ((negatives == 0) | (positives == 0)) & (negatives + positives > 0)
    rows: list[Facts] = [
        {"bin": name, "negatives": int(negative), "positives": int(positive)}
        for name, negative, positive in zip(names, negatives, positives, strict=True)
    ]
    smaller = min(negatives.sum(), positives.sum())
    if not is_known or not smaller or 4 * deviation * len(names) > smaller:
        return {"information_value": None, "bins": [row | {"weight_of_evidence": None} for row in rows]}
    value = 0.0
    for row, zero in zip(rows, zeros, strict=True):
        p, q = ((row[side] + 0.5 * bool(zero)) / total for side, total in
                (("positives", positives.sum()), ("negatives", negatives.sum())))  # fmt: skip
        weight = math.log(p / q) if p and q else None
        value += (p - q) * (weight or 0.0)
        row["weight_of_evidence"] = weight
    return {"information_value": float(value), "bins": rows}


def _warnings(pool: Pool, whole: Part, index: int, strange: Sequence[int]) -> list[Facts]:
    warnings: list[Facts] = []
    moments = whole.moments(index)
    if moments is not None and len(pool.borders):
        quantiles: Float64[np.ndarray, "1 q"] = pool.levels(index, ALL_LEVELS)[None]
        cells, deviation = whole.totals["cells"][[index]], np.array([moments[1]])
        if np.isfinite(quantiles).all() and has_tails(cells, quantiles, deviation)[0]:
            warnings.append({"warning": "long tail", "text": "few extreme cells determine mean and deviation"})
    if sites := int(whole.totals["sentinels"][index]):
        text = f'values that may mean "missing", such as 999, at {sites} site{"s" * (sites > 1)}'
        warnings.append({"warning": "sentinel codes", "text": text})
    if strange:
        text = "numbers far from the numbers of all other sites, perhaps in another unit"
        warnings.append({"warning": "units", "text": text, "sites": list(strange)})
    return warnings


def _find_units(pool: Pool, parts: Sequence[Part]) -> dict[int, list[int]]:
    """Return the sites whose numbers may have another unit, by the index of the number."""
    numbers = [pool.columns.inputs[index] for index in pool.columns.numbers]
    if len(parts) < 2 or not numbers:
        return {}
    moments = [[part.moments(index) for index in range(len(numbers))] for part in parts]
    counts = np.array([[0 if one is None else GROUPS for one in row] for row in moments])
    centres, spreads = (
        np.array([[0.0 if one is None else one[side] for one in row] for row in moments]) for side in (0, 1)
    )
    strange: dict[int, list[int]] = {}
    with np.errstate(all="ignore"):
        for number in range(len(numbers)):
            found = find_units([numbers[number]], *(array[:, [number]] for array in (counts, centres, spreads)))
            if found:
                strange[number] = [site for site, _ in found]
    return strange
