"""Tests of GUSTO-I: sites at three levels, features of listed codes, and files that differ from the published file."""

from pathlib import Path

import pytest

from problems.data import DataError, DataSpec, load
from problems.data.formats.gusto import COLUMNS, DEATH
from problems.data.spec import parse_columns
from tests.refusals import refuses

NAMES = [column.name for column in parse_columns(COLUMNS)]
CODES = {column.name: column.categories for column in parse_columns(COLUMNS) if column.categories}


def write(folder: Path, rows: int = 240, **cells: str) -> DataSpec:
    lines = [",".join([DEATH, *NAMES, "REGL", "GRPL", "GRPS", "TX"])]
    for row in range(rows):
        codes = {name: values[row % len(values)] for name, values in CODES.items()}
        features = (
            [codes.get(name, str(row % 7 + 1)) for name in NAMES]
            if row
            else [cells.get(name, codes.get(name, "1")) for name in NAMES]
        )
        lines.append(",".join([str(row // 2 % 2), *features, str(row % 2), str(row % 3), str(row % 10 + 2), "SK"]))
    (folder / "gusto.csv").write_text("\n".join(lines))
    return DataSpec("gusto", str(folder), partition="natural")


@pytest.mark.parametrize(("column", "sites"), [("", 10), ("GRPS", 10), ("GRPL", 3), ("REGL", 2)])
def test_each_level_of_sites_makes_the_clients(column: str, sites: int, tmp_path: Path) -> None:
    spec = write(tmp_path)
    data = load(DataSpec(**{**vars(spec), "site_column": column}), sites)
    assert len(data.train) + len(data.test) == 240
    assert data.columns is not None
    assert len(data.columns.outputs) == len(NAMES) - len(CODES) + sum(map(len, CODES.values()))
    assert {"TX", "GRPS", "GRPL", "REGL"}.isdisjoint(data.columns.columns)
    with refuses(DataError, f"allowed: at most {sites}, since"):
        load(DataSpec(**{**vars(spec), "site_column": column}), sites + 1)


def test_another_file_is_refused(tmp_path: Path) -> None:
    with refuses(DataError, "use the file as it is published"):
        load(write(tmp_path, AGE="old"), 10)
    with refuses(DataError, "site-column: got 'TX'"):
        load(DataSpec("gusto", str(tmp_path), partition="natural", site_column="TX"), 10)
