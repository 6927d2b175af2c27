"""A warning if several rows may belong to the same patient: such rows must not be in training and in test rows.

The warning suggests the key ``group-column``, which keeps the rows of a patient together.
"""

import logging
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from problems.data.formats.inspection import ID_NAME

if TYPE_CHECKING:
    import pandas as pd

FEWEST_VALUES, FEWEST_IDS = 10, 20
"""The smallest number of different values in a column that is named after persons, and in another column of ids.
Columns with fewer values probably identify sites or wards."""
SHARED = 0.05
"""The smallest share of rows with a repeated value for which a column that is named after persons is reported."""

_PERSON = re.compile(
    r"(?i:(?:.*[\W_])?(?:patient|subject|person|participant|pat|customer|client|member|household|family|pid|mrn|ssn)s?"
    r"[\W_]?(?:id|ids|no|nr|num|number|key|code|identifier|name)?)"
)
_log = logging.getLogger(__name__)


def warn_of_repeats(frame: "pd.DataFrame", unused: Iterable[str], features: Iterable[str]) -> None:
    """Warn of each column with repeated values whose name suggests persons or ids.

    Args:
        frame: The table as it was read.
        unused: The columns that are neither features nor labels, sites or groups.
        features: The columns of features; only names that suggest persons are reported.
    """
    suspects = {name: bool(_PERSON.fullmatch(name)) for name in (*unused, *features)}
    ids = {name for name in unused if ID_NAME.fullmatch(name)}
    for name, person in suspects.items():
        if not person and name not in ids:
            continue
        cells = frame[name].dropna()
        try:
            sizes = cells.value_counts()
        except TypeError:  # cells that are lists
            continue
        shared = int(sizes[sizes > 1].sum())
        if len(sizes) < (FEWEST_VALUES if person else FEWEST_IDS) or shared < SHARED * len(cells):
            continue
        if person or 2 * len(sizes) <= len(cells):
            text = (
                "column %r has %s values in %s rows: rows of one %s may be trained and tested on; set group-column=%r"
            )
            what = (
                "value" if not person else re.split(r"(?i)[\W_]?(?:id|no|nr|num|number|key|code)s?$", name)[0] or name
            )
            _log.warning(text, name, f"{len(sizes):,}", f"{len(cells):,}", what.lower(), name)
