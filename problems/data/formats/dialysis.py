"""6,805 patients on dialysis at 67 centres, with months to death.

The data set Dialysis of the R package RcmdrPlugin.survival. The time is in months, from 1 to 44; the label is death.
"""

from dataclasses import replace
from pathlib import Path

from problems.data.formats.tables import table
from problems.data.samples import Source
from problems.data.spec import TIMED, DataError, DataSpec

DIALYSIS_FILES = ("dialysis.csv", "dialysis.csv.gz")
LABEL, TIME, CENTRE = "event", "time", "fac_center"
COLUMNS = "num_age,num_begin,fac_disease[hypert|diabetes|renal|congen|other]"


def dialysis(path: Path, spec: DataSpec) -> Source:
    """Return the patients with their centres, and one 0/1 feature for each disease.

    Args:
        path: The published file.
        spec: The run's options. ``time-borders`` may replace the 44 months.

    Raises:
        DataError: The file lacks a column, or a cell differs from the published file.
    """
    columns = replace(
        spec,
        dataset="csv",
        label_column=LABEL,
        time_column=TIME,
        time_borders=spec.time_borders or TIMED[spec.dataset],
        feature_columns=COLUMNS,
        site_column=CENTRE,
    )
    try:
        return table(path, None, columns)
    except DataError as error:
        raise DataError.of(error, str(path), hint="use the file as it is published") from error
