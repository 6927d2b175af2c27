"""GUSTO-I: 40,830 patients with a heart attack, at 121 groups of hospitals.

The GUSTO Investigators, New England Journal of Medicine 329, 1993, as published with Steyerberg, "Clinical Prediction
Models". The label is death within 30 days. The treatment is not a feature.
"""

from dataclasses import replace
from pathlib import Path

from problems.data.formats.tables import table
from problems.data.samples import Source
from problems.data.spec import GUSTO_SITES, DataError, DataSpec

GUSTO_FILES = ("gusto.csv", "gusto.csv.gz")
DEATH = "DAY30"
_YES_NO = "SHO,HIG,DIA,HYP,HRT,TTR,ANT,HTN,PAN,FAM,PREVCVD,PREVCABG"
_CODES = (
    "SEX[female|male],KILLIP[one|two|three|four],MILOC[Inferior|Anterior|Other],PMI[no|yes],SMK[never|current|quit]"
)
COLUMNS = f"{_YES_NO},AGE,STE,PULSE,SYSBP,HEIGHT,WEIGHT,{_CODES}"


def gusto(path: Path, spec: DataSpec) -> Source:
    """Return the patients with their sites, and one 0/1 feature for each listed code.

    Args:
        path: The published file.
        spec: The run's options. `site_column` selects the sites: 121 or 48 groups of hospitals, or 16 regions.

    Raises:
        DataError: The file lacks a column, or a cell differs from the published file.
    """
    columns = replace(
        spec, dataset="csv", label_column=DEATH, feature_columns=COLUMNS, site_column=spec.site_column or GUSTO_SITES[0]
    )
    try:
        return table(path, None, columns)
    except DataError as error:
        raise DataError.of(error, str(path), hint="use the file as it is published") from error
