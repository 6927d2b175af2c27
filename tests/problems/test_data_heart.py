"""Tests of Heart Disease on files in the publisher's format: no header line, ? for missing cells."""

from pathlib import Path

import numpy as np
import pytest

from problems.data import DataError, DataSpec, load
from problems.data.formats.uci import HEART_FILES
from tests.refusals import refuses, spell

HEALTHY = "{age},1.0,4.0,120.0,200.0,0.0,2.0,150.0,0.0,-0.5,?,?,?,0"
ILL = HEALTHY[:-1] + "{degree}"


def write(folder: Path, counts: list[tuple[int, int]], extra: str = "") -> DataSpec:
    for file, (healthy, ill) in zip(HEART_FILES, counts, strict=True):
        lines = [
            line.format(age=30 + row, degree=row % 4 + 1) for row, line in enumerate([HEALTHY] * healthy + [ILL] * ill)
        ]
        (folder / file).write_text("\n".join([*lines, extra]))
    return DataSpec("heart-disease", str(folder), partition="natural")


def test_a_hospital_is_split_within_its_classes_if_it_can_be(tmp_path: Path) -> None:
    incomplete = HEALTHY.replace("120.0", "?").format(age=40) + "\n" + HEALTHY.replace("150.0", "-9.0").format(age=41)
    spec = write(tmp_path, [(50, 50), (100, 20), (2, 31), (0, 12)], incomplete)
    data = load(spec, 4)
    counts = [(len(site.negatives), len(site.positives)) for site in map(data.client, range(4))]
    assert counts[:2] == [(33, 33), (66, 13)]
    assert [sum(pair) for pair in counts[2:]] == [21, 7]
    assert len(data.train) + len(data.test) == 265  # without the incomplete rows
    with refuses(DataError, "number of clients: got 5, allowed: at most 4"):
        load(spec, 5)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (ILL.replace("4.0", "5.0"), "processed.cleveland.data, column 'cp': got unknown code 5, allowed: 1, 2, 3, 4"),
        (ILL.replace("120.0", "high"), "got 14 columns, 13 of them of numbers, allowed: 14 columns of numbers"),
        (ILL + ",1", "got a file that cannot be read as a table"),
    ],
)
def test_a_file_that_is_none_of_the_hospitals(line: str, told: str, tmp_path: Path) -> None:
    spec = write(tmp_path, [(20, 20)] * 4, line.format(age=50, degree=1))
    with pytest.raises(DataError) as caught:
        load(spec, 4)
    assert told in spell(caught.value)
    (tmp_path / HEART_FILES[3]).unlink()
    with refuses(DataError, "got no such files in data-dir"):
        load(spec, 4)


def test_the_copy_in_the_package_has_the_published_patients() -> None:
    """Training rows of each hospital without and with the disease, as docs/data-sets.md lists them."""
    data = load(DataSpec("heart-disease", partition="natural"), 4)
    counts = [(len(site.negatives), len(site.positives)) for site in map(data.client, range(4))]
    assert counts == [(108, 91), (107, 65), (0, 30), (19, 66)]
    assert len(data.test) == 104 + 89 + 16 + 45


def test_two_nodes_have_two_hospitals_each(caplog: pytest.LogCaptureFixture) -> None:
    spec = DataSpec("heart-disease", partition="natural", validation_fraction=0.2)
    four, two = load(spec, 4), load(spec, 2)
    assert two.site_names == ("Cleveland and Switzerland", "Hungary and VA Long Beach")
    for client in (0, 1):
        merged = np.concatenate([four.client(site).features for site in (client, client + 2)])
        assert sorted(map(tuple, two.client(client).features)) == sorted(map(tuple, merged))
    assert two.test.sites is not None
    assert np.bincount(two.test.sites).tolist() == [104 + 16, 89 + 45]
    assert load(spec, 1).site_names == ("Cleveland and 3 more",)
    merged = "4 sites are merged into 2 clients (Cleveland and Switzerland; Hungary and VA Long Beach)"
    assert caplog.messages[0] == f"{merged}; use 4 clients to keep each site separate"
