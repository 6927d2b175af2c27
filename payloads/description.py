"""The records of a description of columns: sums of a site's rows, and the questions for counts by bins.

All sums are of integers, so secure sums give the same result as single sites' replies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from payloads.record import FloatArray, IntArray, Payload, array

CLASSES = ("negative", "positive", "unknown")
"""The classes of rows. A site has negatives and positives, or only rows of an unknown class."""
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
"""The levels of the quantiles in a table."""
TOTALS, QUANTILES = "totals", "quantiles"
"""The exchanges. `BINS` is a series, since a client answers each exchange once in a secure sum."""
BINS = tuple(f"bins-{number}" for number in range(1, 5))
MOST_BORDERS = 800
"""The largest number of borders of a column in a question."""


@dataclass(frozen=True, eq=False)
class Totals(Payload):
    """A site's sums of its rows, for c columns of numbers and k levels of text columns; by class: 3 numbers each."""

    rows: IntArray = array(3, kind="int", combined="total")
    # 1 for a site with too few rows, which sends zeros only; and for a site that hides the classes of its rows
    withheld: IntArray = array(1, kind="int", combined="total")
    unclassed: IntArray = array(1, kind="int", combined="total")
    # numbers: missing cells by class; 1 if too few cells are missing, or present, in a class
    gaps: IntArray = array("g", kind="int", combined="total")
    few_gaps: IntArray = array("c", kind="int", combined="total")
    # numbers: the cells behind the sums, the sums' digits, and 1 if a rare value became a common value in the sums
    cells: IntArray = array("c", kind="int", combined="total")
    sums: IntArray = array("l", kind="int", combined="total")
    moved: IntArray = array("c", kind="int", combined="total")
    # numbers: 1 if some cells look like codes for "missing", such as 999
    sentinels: IntArray = array("c", kind="int", combined="total")
    # levels, then the missing cells of each text column, then its texts without a level: rows by class, 0 if hidden
    marks: IntArray = array("m", kind="int", combined="total")
    few_marks: IntArray = array("k", kind="int", combined="total")
    # text columns: the rows of all hidden levels by class
    pooled: IntArray = array("p", kind="int", combined="total")


@dataclass(frozen=True, eq=False)
class BinQuestion(Payload):
    """The borders of each column's bins, ascending, infinite after the last border; and the origins of squares."""

    borders: FloatArray = array("c", "b", finite=False)
    # empty if no squares are wanted
    origins: FloatArray = array("o")


@dataclass(frozen=True, eq=False)
class Bins(Payload):
    """A site's counts by column, class and bin; and the digits of sums of differences from the origins, and squares."""

    counts: IntArray = array("h", kind="int", combined="total")
    offsets: IntArray = array("s", kind="int", combined="total")
    squares: IntArray = array("s", kind="int", combined="total")


@dataclass(frozen=True, eq=False)
class SiteQuantiles(Payload):
    """A site's quantiles of each column of numbers, at `LEVELS`; 0 and not known for too few cells."""

    values: FloatArray = array("c", 5)
    known: IntArray = array("c", kind="int")


PHASES: Mapping[str, type[Payload]] = MappingProxyType(
    {TOTALS: Totals, **dict.fromkeys(BINS, Bins), QUANTILES: SiteQuantiles}
)
"""The type of a site's answer in each exchange."""
